# mypy: disallow-untyped-defs=False
# Numba infers the types of these functions, and both kinds of number fit them.
"""The inner loops, as plain functions in the part of Python that Numba compiles.

They run either way: as they stand on lists and Python integers, which is at once and exact at any size,
or compiled (:mod:`countdown_rl.puzzle.kernel_numba`) on int64 arrays. Nothing here imports anything, and all that is
compiled is in this one file: Numba takes the code it kept for stale only when this file changes.

**Classes.** Expressions are counted up to what does not change them as functions of the numbers:
reordering and re-bracketing sums and products, and moving a minus sign (``a - (b-c)*d`` is
``a + (c-b)*d``). A class is a number, a sum of terms (numbers and products, each plus or minus) or a
product of factors (numbers and sums, each above or below the line). Each is built once: the part that
holds the subset's lowest number, joined to the rest. A class stands for an expression and its negative,
where both can be written, and keeps the orientation whose value is not negative; so values are never
negative. Of n different numbers there are 1, 6, 68, 1170, 27142, 793002 expressions (OEIS A140606).

**Values** are unreduced fractions. Each number occurs once in a class, so its numerator and denominator
are sums of few products of different numbers, and stay below 16 times the product of all.

**Equal numbers** make equal classes; a 61-bit hash of the class that does not see which of the equal
numbers was used keeps each from being counted twice.
"""

#: A class is one integer, its tag: left and right, the classes it was joined from (a number: its index at
#: right), 20 bits each; how they were joined; its kind; its flags; how many characters its brackets take.
LEFT, RIGHT, JOIN, KIND, FLAGS, COST = 0, 20, 40, 43, 45, 50
PART = (1 << 20) - 1
LEAF, SUM, PRODUCT = 0, 1, 2
#: left + right, |left - right|, left * right, left / right, right / left.
ADD, TAKE, TIMES, OVER, UNDER = 0, 1, 2, 3, 4
#: Its negative can be written too; a product with nothing below the line; all its parts are positive
#: integers; it is one itself and so are its parts; it needs no sign but + and -.
FLIP, ABOVE, PARTS, WHOLE, ADDSUB = 1 << 45, 1 << 46, 1 << 47, 1 << 48, 1 << 49

_MASK = (1 << 61) - 1
_PLUS, _MINUS, _ZERO, _FACTOR = 0x1B873593CC9E2D51, 0x0E6546B64A3C1F29, 0x0D35A2D97F4A7C15, 0x1656667B1E3779B9
_BELOW = 0x07C15B9F4A7C1659
TEXT = 96


def mix(x):
    """Scramble 61 bits (after the finalizer of SplitMix64)."""
    x = x & 0x1FFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0x1F58476D1CE4E5B9) & 0x1FFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x14D049BB133111EB) & 0x1FFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def split_part(ordered, parts):
    """Which of *parts* equal shares a sorted set of numbers falls into."""
    state = 0x243F6A8885A308D
    for number in ordered:
        state = mix(state ^ number)
    return state % parts


def term_hash(tag, first, second, minus):
    """Hash of a class as a term: plus it, or *minus* it."""
    kind = tag >> KIND & 3
    if kind == PRODUCT:
        if second == 2:
            return mix(first + _ZERO)
        return mix(first + (_MINUS if second != minus else _PLUS))
    if minus:
        return mix(first + _MINUS) if kind == LEAF else second
    return mix(first + _PLUS) if kind == LEAF else first


def factor_hash(tag, first, second):
    """Hash of a number or a sum as a factor, the same for both its orientations."""
    if tag >> KIND & 3 == SUM and tag & FLIP and second < first:
        return mix(second + _FACTOR)
    return mix(first + _FACTOR)


def factor_sign(tag, first, second):
    """Which orientation a factor has: 0 or 1, or 2 where the two are the same."""
    if tag >> KIND & 3 != SUM or not tag & FLIP:
        return 0
    return 2 if first == second else 1 if second < first else 0


def join_signs(a, b):
    return 2 if a == 2 or b == 2 else a ^ b


def classify(join, left, right, p, q):
    """The tag, but for its parts, of the class p/q that *join* makes of two tags; -1 where it makes none."""
    left_kind, right_kind = left >> KIND & 3, right >> KIND & 3
    cost = (left >> COST) + (right >> COST)
    if join < TIMES:
        kind = SUM
        flags = FLIP if join == TAKE else (left | right) & FLIP
        if left_kind == LEAF and right_kind != PRODUCT:
            flags |= right & ADDSUB
    else:
        if q == 0 or (join == OVER and right_kind == PRODUCT and not right & ABOVE):
            return -1
        kind = PRODUCT
        cost += 2 * (left_kind == SUM) + 2 * (right_kind == SUM)
        flags = (left | right) & FLIP
        if join == TIMES and (right_kind != PRODUCT or right & ABOVE):
            flags |= ABOVE
    if left & WHOLE and right & (PARTS if right_kind == kind else WHOLE):
        flags |= PARTS
        if p > 0 and (kind == SUM or q == 1 or (p >= q and p % q == 0)):
            flags |= WHOLE
    return join << JOIN | kind << KIND | flags | cost << COST


def value(join, here, there, below, both):
    """Numerator and denominator of what *join* makes, from the products of tops and bottoms."""
    if join == ADD:
        return here + there, below
    if join == TAKE:
        return (here - there if here >= there else there - here), below
    if join == TIMES:
        return both, below
    return (here, there) if join == OVER else (there, here)


def hashes(join, swapped, left, left_first, left_second, right, right_first, right_second):
    """The two hash words of a joined class: a sum's orientations, or a product's factors and its sign."""
    if join < TIMES:
        left_minus = 1 if swapped else 0
        right_minus = 1 if join == TAKE and not swapped else 0
        first = term_hash(left, left_first, left_second, left_minus)
        first += term_hash(right, right_first, right_second, right_minus)
        second = term_hash(left, left_first, left_second, 1 - left_minus)
        second += term_hash(right, right_first, right_second, 1 - right_minus)
        return first & _MASK, second & _MASK
    first = factor_hash(left, left_first, left_second)
    sign = factor_sign(left, left_first, left_second)
    if join == UNDER:
        first = (first * _BELOW) & _MASK
    more, other = right_first, right_second
    if right >> KIND & 3 != PRODUCT:
        more = factor_hash(right, right_first, right_second)
        other = factor_sign(right, right_first, right_second)
    if join == OVER:
        more = (more * _BELOW) & _MASK
    return (first + more) & _MASK, join_signs(sign, other)


def is_new(key, seen):
    """Put *key* into the hash table *seen*; tells whether it was not there."""
    table = len(seen) - 1
    key |= 1
    slot = key >> 1 & table
    while seen[slot] != 0:
        if seen[slot] == key:
            return False
        slot = (slot + 1) & table
    seen[slot] = key
    return True


def record(t, tag, length, matched, counts, plain, ranks, best, found):
    """Note a class that reaches the t-th target."""
    counts[t] += 1
    if tag & ADDSUB:
        plain[t] = 1
    rank = (length + (tag >> COST)) * 2 + (0 if tag & ADDSUB else 1) + (0 if tag & WHOLE else 1000)
    if ranks[t] < 0 or rank < ranks[t]:
        ranks[t] = rank
        best[t] = tag
    if matched < len(found):
        found[matched] = tag
    return matched + 1


def search(
    nums, low, high, every, whole, joins, repeats,
    tops, bottoms, tags, firsts, seconds, starts, ends, seen, counts, plain, ranks, best, found,
):  # fmt: skip
    """Find every class whose value is a target in ``low..high``.

    Arguments, n being the count of *nums*:
        every, whole: the rule. joins: the joins that may be used, as bits.
        repeats: whether some number occurs twice. seen: zeros, a power of two above the matches there can be.
        tops ... seconds: room for the classes of all subsets but the last: values, tags and hashes.
        starts, ends: room for 2**n. They tell where the classes of a subset (as bits) lie.

    Results, per target t at t - low:
        counts: how many classes. plain: whether one needs only + and -. ranks: cost of the best, -1 for none.
        best: the tag of the best class. found: the tags of all, as far as there is room.

    Returns the number of classes matched.
    """
    n = len(nums)
    full = (1 << n) - 1
    size = 0
    matched = 0
    for mask in range(1, full + 1):
        starts[mask] = size
        wanted = mask == full or not every
        length = 0
        lowest = -1
        for i in range(n):
            if mask >> i & 1:
                if lowest < 0:
                    lowest = i
                if wanted:
                    length += 3
                    rest = nums[i]
                    while rest > 0:
                        length += 1
                        rest //= 10
        other = mask ^ (1 << lowest)
        part = other
        if other == 0:
            tops[size], bottoms[size] = nums[lowest], 1
            tags[size] = lowest << RIGHT | LEAF << KIND | PARTS | WHOLE | ADDSUB
            firsts[size], seconds[size] = nums[lowest], 0
            size += 1
        while part:
            # The part with the lowest number, and the rest: every way to split the subset, once.
            block = mask ^ part
            for b in range(starts[block], ends[block]):
                b_tag, b_top, b_bottom = tags[b], tops[b], bottoms[b]
                b_kind = b_tag >> KIND & 3
                allowed = joins & (0b11100 if b_kind == SUM else 0b00011 if b_kind == PRODUCT else 0b11111)
                for r in range(starts[part], ends[part]):
                    here, there = b_top * bottoms[r], tops[r] * b_bottom
                    below, both = b_bottom * bottoms[r], b_top * tops[r]
                    if mask == full and not (
                        # Most pairs of the last subset miss with every join, and end here.
                        (low * below <= here + there)
                        & ((here + there <= high * below) | (abs(here - there) <= high * below))
                        | (low * below <= both) & (both <= high * below)
                        | (low * there <= here) & (here <= high * there)
                        | (low * here <= there) & (there <= high * here)
                    ):
                        continue
                    for join in range(5):
                        if not allowed >> join & 1:
                            continue
                        p, q = value(join, here, there, below, both)
                        if mask == full and (p < low * q or p > high * q):
                            continue
                        tag = classify(join, b_tag, tags[r], p, q)
                        if tag < 0 or (whole and not tag & PARTS):
                            continue
                        tag |= b << LEFT | r << RIGHT
                        first, second = 0, 0
                        if repeats:
                            first, second = hashes(
                                join, join == TAKE and here < there,
                                b_tag, firsts[b], seconds[b], tags[r], firsts[r], seconds[r],
                            )  # fmt: skip
                        if mask != full:
                            tops[size], bottoms[size], tags[size] = p, q, tag
                            if repeats:
                                firsts[size], seconds[size] = first, second
                            size += 1
                        elif p % q == 0 and (tag & WHOLE or not whole):
                            t = p // q - low
                            if not repeats or is_new(mix(term_hash(tag, first, second, 0) + t), seen):
                                matched = record(t, tag, length, matched, counts, plain, ranks, best, found)
            part = (part - 1) & other
        ends[mask] = size
        if wanted:
            for e in range(starts[mask], size):
                p, q, tag = tops[e], bottoms[e], tags[e]
                if p < low * q or p > high * q or p % q or (whole and not tag & WHOLE):
                    continue
                t = p // q - low
                if not repeats or is_new(mix(term_hash(tag, firsts[e], seconds[e], 0) + t), seen):
                    matched = record(t, tag, length, matched, counts, plain, ranks, best, found)
    return matched


def write(tag, nums, tops, bottoms, tags, text, scratch):
    """Write the class of *tag* into *text* as ASCII codes.

    Terms are written plus before minus, factors above the line before those below, larger ones first, so
    that every result on the way is a positive integer where the class allows it; brackets stand only
    around sums in products. *scratch*: room for 128 integers. Returns the length of the text.
    """
    # A work list instead of recursion. Codes: -1 ( ; -2 ) ; -3 to -6 the signs; else a class to write.
    # The class asked for itself has no index; it stands in the list as -10.
    at = 0
    depth = 1
    scratch[0] = -10
    while depth > 0:
        depth -= 1
        item = scratch[depth]
        if item == -10:
            this = tag
        elif item < 0:
            if item == -1:
                text[at] = 40
                at += 1
            elif item == -2:
                text[at] = 41
                at += 1
            else:
                text[at], text[at + 1], text[at + 2] = 32, 43, 32
                if item == -4:
                    text[at + 1] = 45
                elif item == -5:
                    text[at + 1] = 42
                elif item == -6:
                    text[at + 1] = 47
                at += 3
            continue
        else:
            this = tags[item]
        kind, a, b, join = this >> KIND & 3, this & PART, this >> RIGHT & PART, this >> JOIN & 7
        if kind == LEAF:
            number = nums[b]
            digits = 0
            rest = number
            while True:
                digits += 1
                rest //= 10
                if rest == 0:
                    break
            for i in range(digits):
                text[at + digits - 1 - i] = 48 + number % 10
                number //= 10
            at += digits
            continue
        # Flatten: terms with their signs, or factors with their side of the line, kept from index 64 on.
        count = 0
        while True:
            side_l, side_r = 0, 0
            if join == TAKE:
                if tops[a] * bottoms[b] >= tops[b] * bottoms[a]:
                    side_r = 1
                else:
                    side_l = 1
            elif join == OVER:
                side_r = 1
            elif join == UNDER:
                side_l = 1
            if count == 0:
                turned = 0
            scratch[64 + count], scratch[96 + count] = a, side_l ^ turned
            count += 1
            turned ^= side_r
            if tags[b] >> KIND & 3 != kind:
                scratch[64 + count], scratch[96 + count] = b, turned
                count += 1
                break
            this = tags[b]
            a, b, join = this & PART, this >> RIGHT & PART, this >> JOIN & 7
        # Insertion sort: plus and above first, then by value, larger first.
        for i in range(1, count):
            e, side = scratch[64 + i], scratch[96 + i]
            k = i - 1
            while k >= 0:
                d, d_side = scratch[64 + k], scratch[96 + k]
                if d_side > side or (d_side == side and tops[d] * bottoms[e] < tops[e] * bottoms[d]):
                    scratch[64 + k + 1], scratch[96 + k + 1] = d, d_side
                    k -= 1
                else:
                    break
            scratch[64 + k + 1], scratch[96 + k + 1] = e, side
        # Push in reverse, so that the first comes off first.
        for k in range(count):
            i = count - 1 - k
            e, side = scratch[64 + i], scratch[96 + i]
            bracket = kind == PRODUCT and tags[e] >> KIND & 3 == SUM
            if bracket:
                scratch[depth] = -2
                depth += 1
            scratch[depth] = e
            depth += 1
            if bracket:
                scratch[depth] = -1
                depth += 1
            if i > 0:
                scratch[depth] = -3 - side - (2 if kind == PRODUCT else 0)
                depth += 1
    return at


def kind_of(count, plain):
    """The cell of a puzzle: 0 impossible; then add-sub with one, few, many solutions; then mul-div."""
    if count == 0:
        return 0
    return (1 if plain else 4) + (0 if count == 1 else 1 if count < 5 else 2)


def draw(
    seed, stream, indices, attempts, limit, sizes, values, tiles, part_from, part_to, parts, low, high, cells,
    every, whole, joins,
    out_nums, out_target, out_count, out_plain, out_text, out_length,
    tops, bottoms, tags, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found, scratch,
):  # fmt: skip
    """Draw the puzzles of some rows: row i by its own random numbers, tried until one is what it should be.

    Numbers and target are drawn evenly, and kept if they make a puzzle of the wanted kind. To be quick about
    it, all targets of a draw of numbers are solved at once; the draw is kept in proportion to how many can
    be reached (in full from a quarter of them on), and then one of those that will do is chosen.

    seed, stream: together with a row's index and the attempt they decide all that is drawn.
    attempts: where each row begins to try; afterwards where it would go on, -1 where *limit* was reached.
        A row that begins with -2 has its numbers, in order, and its target already: it stays -2.
    sizes: numbers in each row. values: what is drawn from, with replacement, or as *tiles* without.
    part_from, part_to: which of *parts* the numbers must fall into.
    cells: per row, the cells (see :func:`kind_of`) that will do, as bits. The rest as in :func:`search`.
    """
    pool = values.copy()
    for row in range(len(indices)):
        size = sizes[row]
        nums = out_nums[row, :size]
        base = mix(mix(mix(seed) ^ stream) ^ indices[row])
        attempt = attempts[row]
        if attempt < 0:  # the puzzle is given: only its order and its facts are wanted
            state = base
            repeats = False
            for i in range(size - 1, 0, -1):
                repeats = repeats or nums[i] == nums[i - 1]
            for i in range(size - 1, 0, -1):
                state = mix(state + 1)
                k = state % (i + 1)
                nums[i], nums[k] = nums[k], nums[i]
            if repeats:
                seen[:] = 0
            counts[0], plain[0], ranks[0] = 0, 0, -1
            search(
                nums, out_target[row], out_target[row], every, whole, joins, repeats,
                tops, bottoms, tags, firsts, seconds, starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            out_count[row], out_plain[row], out_length[row] = counts[0], plain[0], 0
            if counts[0] > 0:
                out_length[row] = write(best[0], nums, tops, bottoms, tags, out_text[row], scratch)
            continue
        attempts[row] = -1
        until = attempt + limit
        while attempt < until:
            state = mix(base ^ mix(attempt + 1))
            attempt += 1
            repeats = False
            for i in range(size):
                state = mix(state + 0x1E3779B97F4A7C15)
                if tiles:
                    k = i + state % (len(pool) - i)
                    pool[i], pool[k] = pool[k], pool[i]
                    number = pool[i]
                else:
                    number = values[state % len(values)]
                nums[i] = number
                k = i - 1
                while k >= 0 and scratch[k] > number:
                    scratch[k + 1] = scratch[k]
                    k -= 1
                repeats = repeats or (k >= 0 and scratch[k] == number)
                scratch[k + 1] = number
            if tiles:
                pool[:] = values  # the next draw must not depend on this one
            part = split_part(scratch[:size], parts)
            if part < part_from or part > part_to:
                continue
            if repeats:
                seen[:] = 0
            counts[:] = 0
            plain[:] = 0
            ranks[:] = -1
            search(
                nums, low, high, every, whole, joins, repeats,
                tops, bottoms, tags, firsts, seconds,
                starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            reached = 0
            for t in range(len(counts)):
                reached += counts[t] > 0
            state = mix(state + 0x1E3779B97F4A7C15)
            if cells[row] != 1 and state % len(counts) >= 4 * reached:
                continue
            fits = 0
            for t in range(len(counts)):
                fits += cells[row] >> kind_of(counts[t], plain[t]) & 1
            if fits == 0:
                continue
            left = mix(state + 0x1E3779B97F4A7C15) % fits
            for t in range(len(counts)):
                left -= cells[row] >> kind_of(counts[t], plain[t]) & 1
                if left < 0:
                    break
            out_target[row], out_count[row], out_plain[row] = low + t, counts[t], plain[t]
            out_length[row] = 0
            if counts[t] > 0:
                out_length[row] = write(best[t], nums, tops, bottoms, tags, out_text[row], scratch)
            attempts[row] = attempt
            break


def census(
    nums, distinct, copies, parts, low, high, steps, tally, listed, list_part, list_cells, every, whole, joins,
    tops, bottoms, tags, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found,
):  # fmt: skip
    """Count the puzzles there are, from the sorted set *nums* on (as indices into *distinct*, in order).

    tally: room for 3 splits by 7 cells (see :func:`kind_of`), added to. listed: room for the
    puzzles of split *list_part* and of *list_cells* (as bits), a row each: the target, then the numbers.
    copies: how often each number may be used. steps: how many sets to look at.

    Returns how many were listed and whether sets are left; *nums* is where to go on.
    """
    n = len(nums)
    ordered = nums.copy()
    size = 0
    while steps > 0:
        steps -= 1
        repeats = False
        legal = True
        run = 0
        for i in range(n):
            ordered[i] = distinct[nums[i]]
            run = run + 1 if i > 0 and nums[i] == nums[i - 1] else 1
            repeats = repeats or run > 1
            legal = legal and run <= copies[nums[i]]
        if legal:
            part = max(0, split_part(ordered, parts) - parts + 3)
            if repeats:
                seen[:] = 0
            counts[:] = 0
            plain[:] = 0
            ranks[:] = -1
            search(
                ordered, low, high, every, whole, joins, repeats,
                tops, bottoms, tags, firsts, seconds,
                starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            for t in range(len(counts)):
                cell = kind_of(counts[t], plain[t])
                tally[part, cell] += 1
                if size < len(listed) and part == list_part and list_cells >> cell & 1:
                    listed[size, 0] = low + t
                    for i in range(n):
                        listed[size, 1 + i] = ordered[i]
                    size += 1
        i = n - 1
        while i >= 0 and nums[i] == len(distinct) - 1:
            i -= 1
        if i < 0:
            return size, False
        step = nums[i] + 1
        for k in range(i, n):
            nums[k] = step
    return size, True

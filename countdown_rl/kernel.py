# mypy: disallow-untyped-defs=False
# Numba infers the types of these functions, and both kinds of number fit them.
"""The inner loops, as plain functions in the part of Python that Numba compiles.

They run either way: as they stand on lists and Python integers, which is at once and exact at any size,
or compiled (:mod:`countdown_rl.compiled`) on int64 arrays. Nothing here imports anything, and all that is
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

LEAF, SUM, PRODUCT = 0, 1, 2
#: Flags of a class: its negative can be written too; a product with nothing below the line; all its parts
#: are positive integers; it is one itself and so are its parts; it needs no sign but + and -.
FLIP, ABOVE, PARTS, WHOLE, ADDSUB = 1, 2, 4, 8, 16
#: How a class was joined from two: left + right, |left - right|, left * right, left / right, right / left.
ADD, TAKE, TIMES, OVER, UNDER = 0, 1, 2, 3, 4

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


def term_hash(kind, first, second, minus):
    """Hash of a class as a term: plus it, or *minus* it."""
    if kind == PRODUCT:
        if second == 2:
            return mix(first + _ZERO)
        return mix(first + (_MINUS if second != minus else _PLUS))
    if minus:
        return mix(first + _MINUS) if kind == LEAF else second
    return mix(first + _PLUS) if kind == LEAF else first


def factor_hash(kind, flags, first, second):
    """Hash of a number or a sum as a factor, the same for both its orientations."""
    if kind == SUM and flags & FLIP and second < first:
        return mix(second + _FACTOR)
    return mix(first + _FACTOR)


def factor_sign(kind, flags, first, second):
    """Which orientation a factor has: 0 or 1, or 2 where the two are the same."""
    if kind != SUM or not flags & FLIP:
        return 0
    return 2 if first == second else 1 if second < first else 0


def join_signs(a, b):
    return 2 if a == 2 or b == 2 else a ^ b


def classify(join, b_kind, b_flag, b_cost, r_kind, r_flag, r_cost, p, q):
    """Kind, flags and cost (characters in brackets) of the class p/q that *join* makes; -1 for none."""
    if join < TIMES:
        kind, cost = SUM, b_cost + r_cost
        flag = FLIP if join == TAKE else (b_flag | r_flag) & FLIP
        if b_kind == LEAF and r_kind != PRODUCT:
            flag |= r_flag & ADDSUB
    else:
        if q == 0 or (join == OVER and r_kind == PRODUCT and not r_flag & ABOVE):
            return -1, 0, 0
        kind, cost = PRODUCT, b_cost + r_cost + 2 * (b_kind == SUM) + 2 * (r_kind == SUM)
        flag = (b_flag | r_flag) & FLIP
        if join == TIMES and (r_kind != PRODUCT or r_flag & ABOVE):
            flag |= ABOVE
    if b_flag & WHOLE and r_flag & (PARTS if r_kind == kind else WHOLE):
        flag |= PARTS
        if p > 0 and (kind == SUM or q == 1 or (p >= q and p % q == 0)):
            flag |= WHOLE
    return kind, flag, cost


def hashes(join, swapped, b_kind, b_flag, b_first, b_second, r_kind, r_flag, r_first, r_second):
    """The two hash words of a joined class: a sum's orientations, or a product's factors and its sign."""
    if join < TIMES:
        b_minus = 1 if swapped else 0
        r_minus = 1 if join == TAKE and not swapped else 0
        first = term_hash(b_kind, b_first, b_second, b_minus) + term_hash(r_kind, r_first, r_second, r_minus)
        second = term_hash(b_kind, b_first, b_second, 1 - b_minus)
        second += term_hash(r_kind, r_first, r_second, 1 - r_minus)
        return first & _MASK, second & _MASK
    first = factor_hash(b_kind, b_flag, b_first, b_second)
    sign = factor_sign(b_kind, b_flag, b_first, b_second)
    if join == UNDER:
        first = (first * _BELOW) & _MASK
    more, other = r_first, r_second
    if r_kind != PRODUCT:
        more = factor_hash(r_kind, r_flag, r_first, r_second)
        other = factor_sign(r_kind, r_flag, r_first, r_second)
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


def record(t, target, left, right, join, kind, flag, cost, matched, counts, plain, ranks, best, found):
    """Note a class that reaches *target*, the t-th."""
    counts[t] += 1
    if flag & ADDSUB:
        plain[t] = 1
    rank = cost * 2 + (0 if flag & ADDSUB else 1) + (0 if flag & WHOLE else 1000)
    if ranks[t] < 0 or rank < ranks[t]:
        ranks[t] = rank
        best[4 * t], best[4 * t + 1], best[4 * t + 2], best[4 * t + 3] = left, right, join, kind
    i = 5 * matched
    if i < len(found):
        found[i], found[i + 1], found[i + 2], found[i + 3], found[i + 4] = target, left, right, join, kind
    return matched + 1


def search(
    nums, low, high, every, whole, add, take, times, over, repeats,
    tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found,
):  # fmt: skip
    """Find every class whose value is a target in ``low..high``.

    Arguments, n being the count of *nums*:
        every, whole: the rule. add, take, times, over: which signs may be used.
        repeats: whether some number occurs twice. seen: zeros, a power of two above the matches there can be.
        tops ... seconds: room for the classes of all subsets but the last.
        starts, ends: room for 2**n. They tell where the classes of a subset (as bits) lie.

    Results, per target t at t - low:
        counts: how many classes. plain: whether one needs only + and -. ranks: cost of the best, -1 for none.
        best: four a target, that is left, right, join and kind of the best class; a lone number is at right.
        found: as best, with the target before, for every class there is room for.

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
            tops[size], bottoms[size], kinds[size], flags[size] = (
                nums[lowest],
                1,
                LEAF,
                PARTS | WHOLE | ADDSUB,
            )
            lefts[size], rights[size], joins[size], costs[size] = -1, lowest, ADD, 0
            firsts[size], seconds[size] = nums[lowest], 0
            size += 1
        while part:
            # The part with the lowest number, and the rest: every way to split the subset, once.
            block = mask ^ part
            for b in range(starts[block], ends[block]):
                b_kind, b_flag, b_cost, b_top, b_bottom = kinds[b], flags[b], costs[b], tops[b], bottoms[b]
                b_first, b_second = firsts[b], seconds[b]
                sums, products = b_kind != SUM, b_kind != PRODUCT
                for r in range(starts[part], ends[part]):
                    r_top, r_bottom = tops[r], bottoms[r]
                    here, there, below = b_top * r_bottom, r_top * b_bottom, b_bottom * r_bottom
                    if mask == full and not (
                        # Most pairs of the last subset miss with every join, and end here.
                        (low * below <= here + there)
                        & ((here + there <= high * below) | (abs(here - there) <= high * below))
                        | (low * below <= b_top * r_top) & (b_top * r_top <= high * below)
                        | (low * there <= here) & (here <= high * there)
                        | (low * here <= there) & (there <= high * here)
                    ):
                        continue
                    for join in range(ADD, UNDER + 1):
                        if join == ADD:
                            if not (sums and add):
                                continue
                            p, q = here + there, below
                        elif join == TAKE:
                            if not (sums and take):
                                continue
                            p, q = (here - there if here >= there else there - here), below
                        elif join == TIMES:
                            if not (products and times):
                                continue
                            p, q = b_top * r_top, below
                        else:
                            if not (products and over):
                                continue
                            p, q = (here, there) if join == OVER else (there, here)
                        if mask == full and (p < low * q or p > high * q):
                            continue
                        kind, flag, cost = classify(join, b_kind, b_flag, b_cost, kinds[r], flags[r], costs[r], p, q)
                        if kind < 0 or (whole and not flag & PARTS):
                            continue
                        first, second = 0, 0
                        if repeats:
                            first, second = hashes(
                                join, join == TAKE and here < there, b_kind, b_flag, b_first, b_second,
                                kinds[r], flags[r], firsts[r], seconds[r],
                            )  # fmt: skip
                        if mask != full:
                            tops[size], bottoms[size], kinds[size], flags[size] = p, q, kind, flag
                            lefts[size], rights[size], joins[size], costs[size] = b, r, join, cost
                            firsts[size], seconds[size] = first, second
                            size += 1
                        elif p % q == 0 and (flag & WHOLE or not whole):
                            t = p // q - low
                            if not repeats or is_new(mix(term_hash(kind, first, second, 0) + t), seen):
                                matched = record(
                                    t, t + low, b, r, join, kind, flag, length + cost, matched,
                                    counts, plain, ranks, best, found,
                                )  # fmt: skip
            part = (part - 1) & other
        ends[mask] = size
        if wanted:
            for e in range(starts[mask], size):
                p, q, kind, flag = tops[e], bottoms[e], kinds[e], flags[e]
                if p < low * q or p > high * q or p % q or (whole and not flag & WHOLE):
                    continue
                t = p // q - low
                if not repeats or is_new(mix(term_hash(kind, firsts[e], seconds[e], 0) + t), seen):
                    matched = record(
                        t, t + low, lefts[e], rights[e], joins[e], kind, flag, length + costs[e], matched,
                        counts, plain, ranks, best, found,
                    )  # fmt: skip
    return matched


def write(left, right, join, kind, nums, tops, bottoms, kinds, lefts, rights, joins, text, at, scratch):
    """Write the class that *join* makes of *left* and *right* into *text*, from index *at*, as ASCII codes.

    Terms are written plus before minus, factors above the line before those below, larger ones first, so
    that every result on the way is a positive integer where the class allows it; brackets stand only
    around sums in products. *scratch*: room for 3 * 64 integers. Returns the index after the text.
    """
    # A work list instead of recursion. Codes: -1 ( ; -2 ) ; -3 to -6 the signs; else a class to write.
    # The class asked for itself has no index; it stands in the list as -10.
    depth = 1
    scratch[0] = -10
    while depth > 0:
        depth -= 1
        item = scratch[depth]
        if item == -10:
            this_kind, a, b, j = kind, left, right, join
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
            this_kind, a, b, j = kinds[item], lefts[item], rights[item], joins[item]
        if this_kind == LEAF:
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
            if j == TAKE:
                if tops[a] * bottoms[b] >= tops[b] * bottoms[a]:
                    side_r = 1
                else:
                    side_l = 1
            elif j == OVER:
                side_r = 1
            elif j == UNDER:
                side_l = 1
            if count == 0:
                turned = 0
            scratch[64 + count], scratch[96 + count] = a, side_l ^ turned
            count += 1
            turned ^= side_r
            if kinds[b] != this_kind:
                scratch[64 + count], scratch[96 + count] = b, turned
                count += 1
                break
            a, b, j = lefts[b], rights[b], joins[b]
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
            bracket = this_kind == PRODUCT and kinds[e] == SUM
            if bracket:
                scratch[depth] = -2
                depth += 1
            scratch[depth] = e
            depth += 1
            if bracket:
                scratch[depth] = -1
                depth += 1
            if i > 0:
                scratch[depth] = -3 - side - (2 if this_kind == PRODUCT else 0)
                depth += 1
    return at


def kind_of(count, plain):
    """The cell of a puzzle: 0 impossible; then add-sub with one, few, many solutions; then mul-div."""
    if count == 0:
        return 0
    return (1 if plain else 4) + (0 if count == 1 else 1 if count < 5 else 2)


def draw(
    seed, stream, indices, attempts, limit, sizes, values, tiles, part_from, part_to, parts, low, high, cells,
    every, whole, add, take, times, over,
    out_nums, out_target, out_count, out_plain, out_text, out_length,
    tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found, scratch,
):  # fmt: skip
    """Draw the puzzles of some rows: row i by its own random numbers, tried until one is what it should be.

    Numbers and target are drawn evenly, and kept if they make a puzzle of the wanted kind. To be quick about
    it, all targets of a draw of numbers are solved at once; the draw is kept in proportion to how many can
    be reached (in full from a quarter of them on), and then one of those that will do is chosen.

    seed, stream: together with a row's index and the attempt they decide all that is drawn.
    attempts: where each row begins to try, -1 for not at all; afterwards where it would go on, -1 where
        *limit* was reached.
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
        if attempt < 0:
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
                nums, low, high, every, whole, add, take, times, over, repeats,
                tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
                starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            fits, reached = 0, 0
            for t in range(len(counts)):
                fits += cells[row] >> kind_of(counts[t], plain[t]) & 1
                reached += counts[t] > 0
            state = mix(state + 0x1E3779B97F4A7C15)
            if fits == 0 or (cells[row] != 1 and state % len(counts) >= 4 * reached):
                continue
            left = mix(state + 0x1E3779B97F4A7C15) % fits
            for t in range(len(counts)):
                left -= cells[row] >> kind_of(counts[t], plain[t]) & 1
                if left < 0:
                    break
            out_target[row], out_count[row], out_plain[row] = low + t, counts[t], plain[t]
            out_length[row] = 0
            if counts[t] > 0:
                out_length[row] = write(
                    best[4 * t], best[4 * t + 1], best[4 * t + 2], best[4 * t + 3],
                    nums, tops, bottoms, kinds, lefts, rights, joins, out_text[row], 0, scratch,
                )  # fmt: skip
            attempts[row] = attempt
            break


def census(
    nums, distinct, copies, parts, low, high, steps, tally, listed, every, whole, add, take, times, over,
    tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found,
):  # fmt: skip
    """Count the puzzles there are, from the sorted set *nums* on (as indices into *distinct*, in order).

    tally: room for 3 splits by 7 cells (see :func:`kind_of`), added to. listed: rows for split, cell,
    target and the numbers, filled up in order; the count goes into its first free row's place.
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
                ordered, low, high, every, whole, add, take, times, over, repeats,
                tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
                starts, ends, seen, counts, plain, ranks, best, found,
            )  # fmt: skip
            for t in range(len(counts)):
                cell = kind_of(counts[t], plain[t])
                tally[part, cell] += 1
                if size < len(listed):
                    listed[size, 0], listed[size, 1], listed[size, 2] = part, cell, low + t
                    for i in range(n):
                        listed[size, 3 + i] = ordered[i]
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

# mypy: disallow-untyped-defs=False
# Numba infers the types of these functions, and both kinds of number fit them.
"""The inner loops, as plain functions in the part of Python that Numba compiles.

They run either way: as they stand on lists and Python integers, which is at once and exact at any size,
or compiled (:mod:`countdown_rl.compiled`) on int64 arrays. Nothing here imports anything.

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


def search(
    nums, low, high, every, whole, add, take, times, over, repeats,
    tops, bottoms, kinds, flags, lefts, rights, joins, costs, firsts, seconds,
    starts, ends, seen, counts, plain, ranks, best, found,
):  # fmt: skip
    """Find every class whose value is a target in ``low..high``.

    Arguments, n being the count of *nums*:
        every, whole: the rule. add, take, times, over: which signs may be used.
        repeats: whether some number occurs twice. seen: zeros, a power of two above twice the matches.
        tops ... seconds: room for the classes of all subsets but the last, plus one.
        starts, ends: room for 2**n. They tell where the classes of a subset (as bits) lie.

    Results, per target t at t - low:
        counts: how many classes. plain: whether one needs only + and -. ranks: cost of the best, -1 for none.
        best: five a target: left, right, join, kind, flags of the best class; left is -1 for a lone number.
        found: as best, with the target before, for every class there is room for.

    Returns the number of classes matched.
    """
    n = len(nums)
    full = (1 << n) - 1
    size = 0
    matched = 0
    room = len(found) // 6
    table = len(seen) - 1
    for mask in range(1, full + 1):
        starts[mask] = size
        wanted = mask == full or not every
        stored = mask != full
        used = 0
        length = 0
        lowest = -1
        for i in range(n):
            if mask >> i & 1:
                used += 1
                length += 3
                rest = nums[i]
                while rest > 0:
                    length += 1
                    rest //= 10
                if lowest < 0:
                    lowest = i
        first = 1 << lowest
        other = mask ^ first
        part = other
        single = used == 1
        while True:
            # The part with the lowest number, and what is left for the rest.
            block = mask ^ part
            if single:
                b_from, b_to, r_from, r_to = 0, 1, 0, 1
            elif part == 0:
                break
            else:
                b_from, b_to, r_from, r_to = starts[block], ends[block], starts[part], ends[part]
            for b in range(b_from, b_to):
                for r in range(r_from, r_to):
                    for join in range(5):
                        if single:
                            if join > 0:
                                break
                            kind, flag, cost = LEAF, PARTS | WHOLE | ADDSUB, 0
                            p, q = nums[lowest], 1
                        elif join < TIMES:
                            if kinds[b] == SUM:
                                continue
                            kind = SUM
                            cost = costs[b] + costs[r]
                            if join == ADD:
                                if not add:
                                    continue
                                p = tops[b] * bottoms[r] + tops[r] * bottoms[b]
                                flag = (flags[b] | flags[r]) & FLIP
                            else:
                                if not take:
                                    continue
                                p = tops[b] * bottoms[r] - tops[r] * bottoms[b]
                                if p < 0:
                                    p = -p
                                flag = FLIP
                            q = bottoms[b] * bottoms[r]
                            if kinds[b] == LEAF:
                                flag |= flags[r] & ADDSUB if kinds[r] != PRODUCT else 0
                            if flags[b] & WHOLE and flags[r] & (PARTS if kinds[r] == SUM else WHOLE):
                                flag |= PARTS
                        else:
                            if kinds[b] == PRODUCT:
                                continue
                            kind = PRODUCT
                            cost = costs[b] + costs[r]
                            if kinds[b] == SUM:
                                cost += 2
                            if kinds[r] == SUM:
                                cost += 2
                            flag = (flags[b] | flags[r]) & FLIP
                            if join == TIMES:
                                if not times:
                                    continue
                                p, q = tops[b] * tops[r], bottoms[b] * bottoms[r]
                                if kinds[r] != PRODUCT or flags[r] & ABOVE:
                                    flag |= ABOVE
                            elif not over:
                                continue
                            elif join == OVER:
                                if tops[r] == 0 or (kinds[r] == PRODUCT and not flags[r] & ABOVE):
                                    continue
                                p, q = tops[b] * bottoms[r], bottoms[b] * tops[r]
                            else:
                                if tops[b] == 0:
                                    continue
                                p, q = bottoms[b] * tops[r], tops[b] * bottoms[r]
                            if flags[b] & WHOLE and flags[r] & (PARTS if kinds[r] == PRODUCT else WHOLE):
                                flag |= PARTS
                        if flag & PARTS:
                            if p > 0 and p % q == 0:
                                flag |= WHOLE
                        elif whole:
                            continue
                        hit = (
                            wanted
                            and p >= low * q
                            and p <= high * q
                            and (not whole or flag & WHOLE != 0)
                            and p % q == 0
                        )
                        if not (hit or stored):
                            continue
                        h0, h1 = 0, 0
                        if repeats:
                            if single:
                                h0 = mix(nums[lowest] + _FACTOR)
                            elif kind == SUM:
                                minus = join == TAKE
                                if minus and tops[b] * bottoms[r] < tops[r] * bottoms[b]:
                                    s_b, s_r = 1, 0
                                else:
                                    s_b, s_r = 0, 1 if minus else 0
                                h0 = term_hash(kinds[b], firsts[b], seconds[b], s_b)
                                h0 = (h0 + term_hash(kinds[r], firsts[r], seconds[r], s_r)) & _MASK
                                h1 = term_hash(kinds[b], firsts[b], seconds[b], 1 - s_b)
                                h1 = (h1 + term_hash(kinds[r], firsts[r], seconds[r], 1 - s_r)) & _MASK
                            else:
                                h0 = factor_hash(kinds[b], flags[b], firsts[b], seconds[b])
                                h1 = factor_sign(kinds[b], flags[b], firsts[b], seconds[b])
                                if join == UNDER:
                                    h0 = (h0 * _BELOW) & _MASK
                                if kinds[r] == PRODUCT:
                                    h, s = firsts[r], seconds[r]
                                else:
                                    h = factor_hash(kinds[r], flags[r], firsts[r], seconds[r])
                                    s = factor_sign(kinds[r], flags[r], firsts[r], seconds[r])
                                if join == OVER:
                                    h = (h * _BELOW) & _MASK
                                h0 = (h0 + h) & _MASK
                                h1 = join_signs(h1, s)
                        if hit:
                            t = p // q - low
                            new = True
                            if repeats:
                                key = mix(term_hash(kind, h0, h1, 0) + t) | 1
                                slot = key >> 1 & table
                                while seen[slot] != 0 and seen[slot] != key:
                                    slot = (slot + 1) & table
                                new = seen[slot] == 0
                                seen[slot] = key
                            if new:
                                counts[t] += 1
                                if flag & ADDSUB:
                                    plain[t] = 1
                                rank = (length + cost) * 2
                                if not flag & WHOLE:
                                    rank += 1000
                                if not flag & ADDSUB:
                                    rank += 1
                                if ranks[t] < 0 or rank < ranks[t]:
                                    ranks[t] = rank
                                    i = 5 * t
                                    best[i], best[i + 1] = -1 if single else b, lowest if single else r
                                    best[i + 2], best[i + 3], best[i + 4] = join, kind, flag
                                if matched < room:
                                    i = 6 * matched
                                    found[i] = t + low
                                    found[i + 1], found[i + 2] = -1 if single else b, lowest if single else r
                                    found[i + 3], found[i + 4], found[i + 5] = join, kind, flag
                                matched += 1
                        if stored:
                            tops[size], bottoms[size], kinds[size], flags[size] = p, q, kind, flag
                            lefts[size], rights[size] = -1 if single else b, lowest if single else r
                            joins[size], costs[size], firsts[size], seconds[size] = join, cost, h0, h1
                            size += 1
            if single:
                break
            part = (part - 1) & other
        ends[mask] = size
    starts[0] = size
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

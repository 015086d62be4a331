# mypy: disallow-untyped-defs=False
# Numba infers the types of these functions, and both kinds of number fit them.
"""Inner loops of solver and generator, as plain functions in the part of Python that Numba
compiles.

They run uncompiled on lists and Python integers, which starts at once and is exact at any size, or
compiled (:mod:`kernel_numba`) on int64 arrays. This file imports nothing of the package, so that
Numba recompiles its cached code only when this file changes.

**Classes.** Two expressions are counted once if they are the same function of the numbers: after
reordering and re-bracketing sums and products, or moving a minus sign (``a - (b-c)*d`` is ``a +
(c-b)*d``). A class is a number, a sum of terms (numbers and products, each plus or minus) or a
product of factors (numbers and sums, each above or below the line). Each is built once: the part
that holds the subset's lowest number, joined to the rest. A class stands for an expression and its
negative, if that can be written too; its value is the one that is not negative. Of n different
numbers there are 1, 6, 68, 1170, 27142, 793002 expressions (OEIS A140606).

**Values** are unreduced fractions. Numerator and denominator stay below 16 times the product of all
numbers.

**Equal numbers** make equal classes. A 61-bit hash of the class, which is the same for equal
numbers, keeps each from being counted twice.
"""

from collections import namedtuple

#: A class is one integer, its tag: left and right, the classes it was joined from (a number: its
#: index at right), 20 bits each; the join; its kind; its flags; the characters that its parentheses
#: take.
LEFT, RIGHT, JOIN, KIND, COST = 0, 20, 40, 43, 50
PART = (1 << 20) - 1
LEAF, SUM, PRODUCT = 0, 1, 2
#: left + right, |left - right|, left * right, left / right, right / left.
ADD, TAKE, TIMES, OVER, UNDER = 0, 1, 2, 3, 4
#: Its negative can be written too; a product with nothing below the line; all its parts are
#: positive integers; it is one itself and so are its parts; it needs no operator but + and -.
FLIP, ABOVE, PARTS, WHOLE, ADDSUB = 1 << 45, 1 << 46, 1 << 47, 1 << 48, 1 << 49

#: Upper bounds by count of numbers n: classes of all proper subsets (sums of OEIS A140606), and a
#: power of two above the number of expressions over at most n numbers.
MAX_CLASSES = (0, 1, 2, 21, 316, 6_650, 183_000)
HASH_SLOTS = (0, 4, 32, 256, 4_096, 65_536, 1 << 21)
#: Length of the longest text of a class, and of the working memory of :func:`write`.
TEXT, SCRATCH = 128, 128

_MASK = (1 << 61) - 1
_PLUS, _MINUS, _ZERO, _FACTOR = (
    0x1B873593CC9E2D51,
    0x0E6546B64A3C1F29,
    0x0D35A2D97F4A7C15,
    0x1656667B1E3779B9,
)
_BELOW = 0x07C15B9F4A7C1659
_STEP = 0x1E3779B97F4A7C15

#: Targets ``low..high``; the rule (``every``, ``whole``); ``joins``: the joins that may be used, as
#: bits.
Goal = namedtuple("Goal", "low high every whole joins")
#: The classes of all proper subsets: values, tags, two hash words; where those of a subset (as
#: bits) lie.
Classes = namedtuple("Classes", "tops bottoms tags firsts seconds starts ends")
#: The classes that reach a target, at its index above ``low``: their ``counts``; ``plain``, 1 if
#: one needs only + and -; the cost and the tag of the best, ``ranks`` (-1 for none) and ``best``;
#: the tags of as many ``solutions`` as there is space for; and ``seen``, a hash table of them.
Matches = namedtuple("Matches", "seen counts plain ranks best solutions")


def tables(zeros, size, targets, solutions):
    """Empty tables for up to *size* numbers, so many targets and so many tags of solutions; *zeros*
    makes each.
    """
    subsets = 1 << size
    classes = Classes(*[zeros(MAX_CLASSES[size]) for _ in range(5)], zeros(subsets), zeros(subsets))
    return classes, Matches(
        zeros(HASH_SLOTS[size]), *[zeros(targets) for _ in range(4)], zeros(solutions)
    )


def scramble(x):
    """Scramble 61 bits (after the finalizer of SplitMix64)."""
    x = x & 0x1FFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0x1F58476D1CE4E5B9) & 0x1FFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x14D049BB133111EB) & 0x1FFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def split_part(ordered, parts):
    """The part, of so many equal ones, that a sorted set of numbers falls into."""
    state = 0x243F6A8885A308D
    for number in ordered:
        state = scramble(state ^ number)
    return state % parts


def term_hash(part, minus):
    """Hash of a class (its tag and hash words) as a term: plus it, or *minus* it."""
    tag, first, second = part
    kind = tag >> KIND & 3
    if kind == SUM:
        return second if minus else first
    if kind == LEAF:
        return scramble(first + (_MINUS if minus else _PLUS))
    return scramble(first + (_ZERO if second == 2 else _MINUS if second != minus else _PLUS))


def factor_hash(part):
    """Hash of a number or a sum as a factor, and its orientation: 0 or 1, or 2 where the two are
    the same.
    """
    tag, first, second = part
    if tag >> KIND & 3 != SUM or not tag & FLIP:
        return scramble(first + _FACTOR), 0
    return scramble(
        min(first, second) + _FACTOR
    ), 2 if first == second else 1 if second < first else 0


def classify(join, left, right, p, q):
    """The tag, but for its parts, of the class p/q that *join* makes of two tags; -1 where it makes
    none.
    """
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


def value(join, ad, cb, bd, ac):
    """Numerator and denominator of a/b joined to c/d, from their cross products."""
    if join == ADD:
        return ad + cb, bd
    if join == TAKE:
        return (ad - cb if ad >= cb else cb - ad), bd
    if join == TIMES:
        return ac, bd
    return (ad, cb) if join == OVER else (cb, ad)


def hashes(join, swapped, left, right):
    """The two hash words of a joined class: a sum's orientations, or a product's factors and its
    orientation.

    *left* and *right*: tags and hash words of its parts. *swapped*: left is the smaller side of a
    difference.
    """
    if join < TIMES:
        left_minus = 1 if swapped else 0
        right_minus = 1 if join == TAKE and not swapped else 0
        first = term_hash(left, left_minus) + term_hash(right, right_minus)
        second = term_hash(left, 1 - left_minus) + term_hash(right, 1 - right_minus)
        return first & _MASK, second & _MASK
    tag, more, other = right
    first, sign = factor_hash(left)
    if tag >> KIND & 3 != PRODUCT:
        more, other = factor_hash(right)
    if join == UNDER:
        first = (first * _BELOW) & _MASK
    elif join == OVER:
        more = (more * _BELOW) & _MASK
    return (first + more) & _MASK, 2 if sign == 2 or other == 2 else sign ^ other


def is_new(key, seen):
    """Put *key* into the hash table *seen*; returns whether it was not there."""
    table = len(seen) - 1
    key |= 1
    slot = key >> 1 & table
    while seen[slot] != 0:
        if seen[slot] == key:
            return False
        slot = (slot + 1) & table
    seen[slot] = key
    return True


def has_repeats(nums):
    """True where a number occurs twice."""
    for i in range(len(nums)):
        for k in range(i):
            if nums[i] == nums[k]:
                return True
    return False


def reset(nums, matches):
    """Empty *matches* before a search with *nums*."""
    if has_repeats(nums):
        for i in range(len(matches.seen)):
            matches.seen[i] = 0
    for t in range(len(matches.counts)):
        matches.counts[t], matches.plain[t], matches.ranks[t] = 0, 0, -1


def reaches(p, q, tag, low, high, whole):
    """True where the class p/q reaches a target."""
    return low * q <= p and p <= high * q and p % q == 0 and (tag & WHOLE or not whole)


def record(t, tag, key, length, matched, matches):
    """Record a class that reaches the t-th target, unless the *key* of an equal one is known (-1:
    all are new).

    *length*: the characters of its text without parentheses. Returns the new number of those
    *matched*.
    """
    seen, counts, plain, ranks, best, solutions = matches
    if key >= 0 and not is_new(scramble(key + t), seen):
        return matched
    counts[t] += 1
    if tag & ADDSUB:
        plain[t] = 1
    rank = (length + (tag >> COST)) * 2 + (0 if tag & ADDSUB else 1) + (0 if tag & WHOLE else 1000)
    if ranks[t] < 0 or rank < ranks[t]:
        ranks[t] = rank
        best[t] = tag
    if matched < len(solutions):
        solutions[matched] = tag
    return matched + 1


def text_length(nums, mask):
    """Characters of a subset's numbers, and of the operators between them."""
    length = 0
    for i in range(len(nums)):
        if mask >> i & 1:
            length += 3 + digits_of(nums[i])
    return length


def digits_of(number):
    """Count of the digits of a *number* from 0 on."""
    digits = 1
    while number >= 10:
        digits += 1
        number //= 10
    return digits


def left_joins(joins, left):
    """Those of *joins* that a class may be the left side of: a sum no part of a sum, a product none
    of a product.
    """
    kind = left >> KIND & 3
    return joins & (0b11100 if kind == SUM else 0b00011 if kind == PRODUCT else 0b11111)


def join_parts(mask, lowest, size, matched, length, goal, classes, matches, repeats, final):
    """Make the classes of a subset of two numbers or more: every way to split it, with every join.

    Classes of a proper subset are appended to the tables. Of the whole set (*final*) those that
    reach a target are recorded. Returns the number of classes in the tables, and of matches so far.
    """
    tops, bottoms, tags, firsts, seconds, starts, ends = classes
    low, high, _, whole, joins = goal
    others = mask ^ (1 << lowest)
    part = others
    while part:
        # The block with the lowest number, and the other part: every way to split the subset, once.
        block = mask ^ part
        for left in range(starts[block], ends[block]):
            left_tag, a, b = tags[left], tops[left], bottoms[left]
            left_part = left_tag, firsts[left], seconds[left]
            allowed = left_joins(joins, left_tag)
            for right in range(starts[part], ends[part]):
                c, d, right_tag = tops[right], bottoms[right], tags[right]
                ad, cb, bd, ac = a * d, c * b, b * d, a * c
                if final and not (
                    # Most pairs miss the targets with every join, and end here.
                    (low * bd <= ad + cb) & ((ad + cb <= high * bd) | (abs(ad - cb) <= high * bd))
                    | (low * bd <= ac) & (ac <= high * bd)
                    | (low * cb <= ad) & (ad <= high * cb)
                    | (low * ad <= cb) & (cb <= high * ad)
                ):
                    continue
                for join in range(5):
                    if not allowed >> join & 1:
                        continue
                    p, q = value(join, ad, cb, bd, ac)
                    if final and (p < low * q or p > high * q):
                        continue
                    tag = classify(join, left_tag, right_tag, p, q)
                    if tag < 0 or (whole and not tag & PARTS):
                        continue
                    tag |= left << LEFT | right << RIGHT
                    first, second = 0, 0
                    if repeats:
                        right_part = right_tag, firsts[right], seconds[right]
                        first, second = hashes(
                            join, join == TAKE and ad < cb, left_part, right_part
                        )
                    if not final:
                        tops[size], bottoms[size], tags[size] = p, q, tag
                        firsts[size], seconds[size] = first, second
                        size += 1
                    elif reaches(p, q, tag, low, high, whole):
                        key = term_hash((tag, first, second), 0) if repeats else -1
                        matched = record(p // q - low, tag, key, length, matched, matches)
        part = (part - 1) & others
    return size, matched


def search(nums, goal, classes, matches):
    """Find every class whose value is a target; returns how many there are.

    *matches* are empty before.
    """
    tops, bottoms, tags, firsts, seconds, starts, ends = classes
    full = (1 << len(nums)) - 1
    repeats = has_repeats(nums)
    size = 0
    matched = 0
    for mask in range(1, full + 1):
        starts[mask] = size
        lowest = 0
        while not mask >> lowest & 1:
            lowest += 1
        length = text_length(nums, mask)
        if mask == 1 << lowest:
            tops[size], bottoms[size] = nums[lowest], 1
            tags[size] = lowest << RIGHT | LEAF << KIND | PARTS | WHOLE | ADDSUB
            firsts[size], seconds[size] = nums[lowest], 0
            size += 1
        else:
            final = mask == full
            size, matched = join_parts(
                mask, lowest, size, matched, length, goal, classes, matches, repeats, final
            )
        ends[mask] = size
        if mask == full or not goal.every:
            for i in range(starts[mask], size):
                p, q, tag = tops[i], bottoms[i], tags[i]
                if reaches(p, q, tag, goal.low, goal.high, goal.whole):
                    key = term_hash((tag, firsts[i], seconds[i]), 0) if repeats else -1
                    matched = record(p // q - goal.low, tag, key, length, matched, matches)
    return matched


#: Items of the work list of :func:`write` that are no class: parentheses, the four operators (from
#: -3 down), and the class asked for, which has no index. ASCII codes of the operators.
_OPEN, _CLOSE, _OPERATOR, _ROOT = -1, -2, -3, -10
_ASCII = (43, 45, 42, 47)


def flatten(tag, classes, scratch):
    """List the terms or factors of a class in *scratch* from 64 on, and their sides (1: minus or
    below) from 96 on.

    Plus comes before minus and above before below; larger values come first. Returns how many there
    are.
    """
    tops, bottoms, tags = classes.tops, classes.bottoms, classes.tags
    kind = tag >> KIND & 3
    side = 0
    count = 0
    nested = True
    while nested:
        left, right, join = tag & PART, tag >> RIGHT & PART, tag >> JOIN & 7
        left_minus = join == UNDER or (
            join == TAKE and tops[left] * bottoms[right] < tops[right] * bottoms[left]
        )
        right_minus = join == OVER or (join == TAKE and not left_minus)
        scratch[64 + count], scratch[96 + count] = left, side ^ (1 if left_minus else 0)
        count += 1
        side ^= 1 if right_minus else 0
        tag = tags[right]
        nested = tag >> KIND & 3 == kind
    scratch[64 + count], scratch[96 + count] = right, side
    count += 1
    for i in range(1, count):
        item, side = scratch[64 + i], scratch[96 + i]
        k = i - 1
        while k >= 0:
            other, other_side = scratch[64 + k], scratch[96 + k]
            if other_side < side or (
                other_side == side and tops[other] * bottoms[item] >= tops[item] * bottoms[other]
            ):
                break
            scratch[64 + k + 1], scratch[96 + k + 1] = other, other_side
            k -= 1
        scratch[64 + k + 1], scratch[96 + k + 1] = item, side
    return count


def write(tag, nums, classes, text, scratch):
    """Write the class of *tag* into *text* as ASCII codes; returns the length of the text.

    The order of :func:`flatten` makes every intermediate result a positive integer where the class
    allows it; parentheses enclose only sums in products. *scratch* has space for ``SCRATCH``
    integers.
    """
    end = 0
    depth = 1  # of the work list at the start of scratch, which takes the place of recursion
    scratch[0] = _ROOT
    while depth > 0:
        depth -= 1
        item = scratch[depth]
        if item >= _CLOSE and item < 0:
            text[end] = 39 - item
            end += 1
            continue
        if _ROOT < item <= _OPERATOR:
            text[end], text[end + 1], text[end + 2] = 32, _ASCII[_OPERATOR - item], 32
            end += 3
            continue
        this = tag if item == _ROOT else classes.tags[item]
        kind = this >> KIND & 3
        if kind == LEAF:
            number = nums[this >> RIGHT & PART]
            digits = digits_of(number)
            for i in range(end + digits - 1, end - 1, -1):
                text[i] = 48 + number % 10
                number //= 10
            end += digits
            continue
        count = flatten(this, classes, scratch)
        for i in range(count - 1, -1, -1):  # pushed in reverse, so that the first comes off first
            part, side = scratch[64 + i], scratch[96 + i]
            if kind == PRODUCT and classes.tags[part] >> KIND & 3 == SUM:
                scratch[depth], scratch[depth + 1], scratch[depth + 2] = _CLOSE, part, _OPEN
                depth += 3
            else:
                scratch[depth] = part
                depth += 1
            if i > 0:
                scratch[depth] = _OPERATOR - side - (2 if kind == PRODUCT else 0)
                depth += 1
    return end


# Row drawing: random puzzles, solved by the functions above.

#: ``seed`` and ``stream`` of the random numbers; the first attempt of each row and the limits of
#: attempts by count of numbers; the values to sample, as ``tiles`` without replacement; the parts
#: (of ``parts``) that the numbers must fall into; and ``stop``, an array whose first value ends the
#: work once it is not 0.
Source = namedtuple(
    "Source", "seed stream start limits values tiles first_part last_part parts stop"
)
#: Rows to sample: their indices, sizes, and whether they are to be solvable; the other fields are
#: results, of which ``attempts`` is the next attempt of each row, or one of the values below.
Rows = namedtuple("Rows", "indices sizes solvable attempts nums targets counts plain lengths texts")
#: Values of ``attempts`` for a row that was not found within the limit, and for the rows after it.
NOT_FOUND, NOT_SAMPLED = -1, -2
#: Attempts of a row after which its puzzles are rare.
RARE = 1_000


def draw_numbers(state, source, rare, pool, nums, ordered):
    """Draw *nums*, and sort them into *ordered*; returns the new random state.

    *pool* is a copy of the source's values, and remains one. If puzzles are *rare*, each number
    comes from the first values, a half to a 64th of them, or all: products reach a target with
    small numbers only.
    """
    for i in range(len(nums)):
        state = scramble(state + _STEP)
        first = i if source.tiles else 0
        k = first + state % max(1, (len(pool) - first) >> ((state >> 40) % 7 if rare else 0))
        number = pool[k]
        if source.tiles:
            pool[i], pool[k] = pool[k], pool[i]
        nums[i] = number
        k = i
        while k > 0 and ordered[k - 1] > number:
            ordered[k] = ordered[k - 1]
            k -= 1
        ordered[k] = number
    if source.tiles:
        for i in range(len(pool)):
            pool[i] = source.values[i]
    return state


def choose_target(state, solvable, rare, matches):
    """The index of a random target with a solution, or with none if not *solvable*; -1 to sample
    other numbers.

    Unless puzzles are *rare*, solvable numbers are kept in proportion to the targets that they
    reach, in full from a quarter on.
    """
    counts = matches.counts
    reached = 0
    for t in range(len(counts)):
        reached += counts[t] > 0
    fitting = reached if solvable else len(counts) - reached
    state = scramble(state + _STEP)
    if fitting == 0 or (solvable and not rare and state % len(counts) >= 4 * reached):
        return -1
    left = scramble(state + _STEP) % fitting
    t = -1
    while left >= 0:
        t += 1
        left -= (counts[t] > 0) == solvable
    return t


def draw(source, rows, goal, classes, matches, scratch):
    """Sample the puzzles of *rows* by their own random numbers until each has, or has not, a
    solution.

    All targets of a set of numbers are solved at once, and a fitting one is chosen. A row that
    reaches its limit is the last one.
    """
    pool = source.values.copy()
    for row in range(len(rows.indices)):
        nums = rows.nums[row, : rows.sizes[row]]
        base = scramble(scramble(scramble(source.seed) ^ source.stream) ^ rows.indices[row])
        rows.attempts[row] = NOT_FOUND
        for tried in range(source.start, source.start + source.limits[len(nums)]):
            if source.stop[0] != 0:
                return
            ordered = scratch[: len(nums)]
            rare = tried >= RARE
            state = draw_numbers(
                scramble(base ^ scramble(tried + 1)), source, rare, pool, nums, ordered
            )
            part = split_part(ordered, source.parts)
            if part < source.first_part or part > source.last_part:
                continue
            reset(nums, matches)
            search(nums, goal, classes, matches)
            t = choose_target(state, rows.solvable[row], rare, matches)
            if t >= 0:
                rows.targets[row] = goal.low + t
                rows.counts[row], rows.plain[row] = matches.counts[t], matches.plain[t]
                if matches.counts[t] > 0:
                    text = rows.texts[row]
                    rows.lengths[row] = write(matches.best[t], nums, classes, text, scratch)
                rows.attempts[row] = tried + 1
                break
        if rows.attempts[row] == NOT_FOUND:
            return

"""An independent brute force: every expression tree over every subset, compared as functions.

Two trees are the same solution when they are the same rational function of the numbers, up to exchanging
equal ones. They are distinguished by their values at random points of a prime field, one point for every
way to permute equal numbers.
"""

import itertools
import random
from functools import lru_cache

PRIME = (1 << 61) - 1


def count(numbers, target, *, every=True, whole=False, operators="+-*/"):
    """The number of distinct solutions."""
    trees = _trees(tuple(numbers), whole, operators)
    solutions = set()
    for values in trees[-1:] if every else trees:
        for key, (p, q) in values.items():
            if p == target * q:
                solutions.add(tuple(sorted(key)))
    return len(solutions)


@lru_cache(maxsize=4)
def _trees(numbers, whole, operators):
    """By subset, the last one being all numbers: the value of each function of them, by its points."""
    rng = random.Random(7)
    variables = [rng.randrange(1, PRIME) for _ in numbers]
    orders = itertools.permutations(range(len(numbers)))
    equal = filter(lambda order: [numbers[i] for i in order] == list(numbers), orders)
    points = [[variables[i] for i in order] for order in equal]
    trees = {}
    full = (1 << len(numbers)) - 1
    for mask in range(1, full + 1):
        values = trees[mask] = {}
        members = [i for i in range(len(numbers)) if mask >> i & 1]
        if len(members) == 1:
            values[tuple(point[members[0]] for point in points)] = numbers[members[0]], 1
            continue
        part = (mask - 1) & mask
        while part:
            for b, (r, s) in trees[mask ^ part].items():
                inverse = [pow(y, -1, PRIME) for y in b] if "/" in operators else []
                for a, (p, q) in trees[part].items():
                    for operator in operators:
                        if operator in "+-":
                            sign = 1 if operator == "+" else -1
                            top, bottom = p * s + sign * r * q, q * s
                            key = [(x + sign * y) % PRIME for x, y in zip(a, b, strict=True)]
                        elif operator == "*":
                            top, bottom = p * r, q * s
                            key = [x * y % PRIME for x, y in zip(a, b, strict=True)]
                        else:
                            top, bottom = p * s, q * r
                            key = [x * y % PRIME for x, y in zip(a, inverse, strict=True)]
                        if bottom and not (whole and (top * bottom <= 0 or top % bottom)):
                            values[tuple(key)] = top, bottom
            part = (part - 1) & mask
    return list(trees.values())

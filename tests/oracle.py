"""An independent brute force: every expression tree over every subset, told apart as functions.

Two trees are the same solution when they are the same rational function of the numbers, up to exchanging
equal ones. They are told apart by their values at random points of a prime field, one point for every
way to permute equal numbers.
"""

import itertools
import random
from fractions import Fraction

PRIME = (1 << 61) - 1


def count(numbers, target, *, every=True, whole=False, signs="+-*/"):
    """How many distinct solutions there are."""
    rng = random.Random(7)
    variables = [rng.randrange(1, PRIME) for _ in numbers]
    points = [
        [variables[i] for i in order]
        for order in itertools.permutations(range(len(numbers)))
        if all(numbers[a] == numbers[b] for a, b in enumerate(order))
    ]
    trees = {}
    full = (1 << len(numbers)) - 1
    for mask in range(1, full + 1):
        found = trees[mask] = {}
        members = [i for i in range(len(numbers)) if mask >> i & 1]
        if len(members) == 1:
            found[tuple(point[members[0]] for point in points)] = Fraction(numbers[members[0]])
            continue
        part = (mask - 1) & mask
        while part:
            for a, x in trees[part].items():
                for b, y in trees[mask ^ part].items():
                    for sign in signs:
                        value = _apply(sign, x, y)
                        if value is None or (whole and (value <= 0 or value.denominator > 1)):
                            continue
                        found[tuple(_field(sign, p, q) for p, q in zip(a, b, strict=True))] = value
            part = (part - 1) & mask
    masks = [full] if every else range(1, full + 1)
    return len({tuple(sorted(key)) for mask in masks for key, value in trees[mask].items() if value == target})


def _apply(sign, x, y):
    if sign == "+":
        return x + y
    if sign == "-":
        return x - y
    if sign == "*":
        return x * y
    return x / y if y else None


def _field(sign, p, q):
    if sign == "+":
        return (p + q) % PRIME
    if sign == "-":
        return (p - q) % PRIME
    return p * (q if sign == "*" else pow(q, -1, PRIME)) % PRIME

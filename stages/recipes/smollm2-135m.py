"""Demonstrations for smollm2-135m.sh, of puzzles of 3 numbers a >= b >= c: three of five answer at once, two search.

    smollm2-135m.py PUZZLES.jsonl NUMBER DEMONSTRATIONS.jsonl

An answer at once is the solver's. A search goes through `WAYS` until one makes the target, a line each: the letter of
the way, its equation, and those that join the result and the third number, or "no" where there are none. It finds the
target of 94% of the puzzles, and answers "impossible" to the others: one demonstration in forty is wrong.
"""

import json
import sys
from itertools import islice

#: The ways to join two of the numbers, most useful first.
WAYS = ("A a+b", "B a-b", "C b*c", "D a*c", "E a*b", "F b/c", "G b-c", "H a/c", "I a-c", "J a/b")
#: The largest product that is joined with the third number.
LARGEST = 130


def line(way: str, numbers: dict[str, int], target: int) -> tuple[str, str | None]:
    """The line of *way*, and the expression that makes *target*, None where it makes none."""
    letter, (first, operator, second) = way[0], way[2:]
    x, y = numbers[first], numbers[second]
    (z,) = (value for name, value in numbers.items() if name not in way)
    result = {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[operator]
    trivial = y == 1 and operator in "*/" and letter != "D"  # D is for those that need a factor of 1
    if trivial or (operator == "/" and x % y) or (operator == "*" and result > LARGEST):
        return f"{letter} no", None
    pair = f"{x}{operator}{y}"
    closed = f"({pair})" if operator in "+-" else pair
    joined: list[tuple[str, int, str]] = []
    if letter in "AB" or operator in "*/":  # other sums of three numbers are those of A and B in another order
        joined.append((f"+{z}", result + z, f"{pair}+{z}"))
        if result >= z:
            joined.append((f"-{z}", result - z, f"{pair}-{z}"))
        else:
            joined.append((f" {z}-{result}", z - result, f"{z}-{closed}"))
    if operator != "*" and min(result, z) > 1 and result * z <= 100:
        joined.append((f"*{z}", result * z, f"{closed}*{z}"))
    if not joined:
        return f"{letter} no", None
    text = f"{letter}{pair}={result}"
    for step, value, expression in joined:
        text += f"{step}={value}"
        if value == target:
            return text, expression
    return text, None


def search(nums: list[int], target: int) -> tuple[list[str], str]:
    """The lines of the search, and its answer."""
    numbers = dict(zip("abc", sorted(nums, reverse=True), strict=True))
    lines = []
    for way in WAYS:
        text, expression = line(way, numbers, target)
        lines.append(text)
        if expression:
            return lines, expression
    return lines, "impossible"


if __name__ == "__main__":
    puzzles, number, out = sys.argv[1:]
    with open(puzzles) as rows, open(out, "w") as demonstrations:
        for place, row in enumerate(map(json.loads, islice(rows, int(number)))):
            lines, answer = search(row["nums"], row["target"])
            if place % 5 < 3:
                lines, answer = [], row["solution"].replace(" ", "")
            completion = "\n".join(["", *lines, "</think>", f"<answer>{answer}</answer>"])
            demonstrations.write(json.dumps(row | {"completion": completion}) + "\n")

"""Demonstrations for smollm2-135m.sh: hasty searches, of puzzles of 3 numbers a >= b >= c.

    smollm2-135m.py PUZZLES.jsonl NUMBER DEMONSTRATIONS.jsonl

A search goes once through `WAYS`, until one makes the target, a line each: the letter of the way,
its equation, and those that join the result and the third number, or "no" where there are none.
Before each line, three times in five, one way is left out. So it finds the target of 56% of the
puzzles, and answers "impossible" to the others. One that leaves out nothing finds 94%: that haste
does not pay is left for GRPO to find.
"""

import json
import random
import sys
from itertools import islice

#: The ways to join two of the numbers, most useful first.
WAYS = ("A a+b", "B a-b", "C b*c", "D a*c", "E a*b", "F b/c", "G b-c", "H a/c", "I a-c", "J a/b")
#: The largest product that is joined with the third number.
LARGEST = 130
#: The probability, before each line, that one way is left out.
HASTE = 0.6


def line(way: str, numbers: dict[str, int], target: int) -> tuple[str, str | None]:
    """The line of *way*, and the expression that makes *target*, None where it makes none."""
    letter, (first, operator, second) = way[0], way[2:]
    x, y = numbers[first], numbers[second]
    (z,) = (value for name, value in numbers.items() if name not in way)
    result = {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[operator]
    trivial = (
        y == 1 and operator in "*/" and letter != "D"
    )  # D is for those that need a factor of 1
    if trivial or (operator == "/" and x % y) or (operator == "*" and result > LARGEST):
        return f"{letter} no", None
    pair = f"{x}{operator}{y}"
    closed = f"({pair})" if operator in "+-" else pair
    joined: list[tuple[str, int, str]] = []
    if (
        letter in "AB" or operator in "*/"
    ):  # other sums of three numbers are those of A and B in another order
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


def search(nums: list[int], target: int, draw: random.Random) -> tuple[list[str], str]:
    """The lines of the search, and its answer."""
    numbers = dict(zip("abc", sorted(nums, reverse=True), strict=True))
    lines = []
    place = -1
    while (place := place + (2 if draw.random() < HASTE else 1)) < len(WAYS):
        text, expression = line(WAYS[place], numbers, target)
        lines.append(text)
        if expression:
            return lines, expression
    return lines, "impossible"


if __name__ == "__main__":
    puzzles, number, out = sys.argv[1:]
    draw = random.Random(42)
    with open(puzzles) as rows, open(out, "w") as demonstrations:
        for row in map(json.loads, islice(rows, int(number))):
            lines, answer = search(row["nums"], row["target"], draw)
            completion = "\n".join(["", *lines, "</think>", f"<answer>{answer}</answer>"])
            demonstrations.write(json.dumps(row | {"completion": completion}) + "\n")

"""Grading: completions a second against the regex-and-eval grader that nearly every project copies,
and 100,000 hostile strings against an independent oracle.

    python -m benchmarks.grading
"""

import random
import re
import time
from collections import Counter
from fractions import Fraction
from functools import partial

from benchmarks import bench
from countdown_rl.tasks.countdown.rules import RULES
from countdown_rl.tasks.countdown.task import CountdownRow
from tests.support import oracle as brute_force

STRINGS = 100_000
ANSWER = re.compile(r"<answer>(.*?)<\/answer>", re.DOTALL)
FORMAT = re.compile(
    r"^<think>([^<]*(?:<(?!/?think>)[^<]*)*)<\/think>\n<answer>([\s\S]*?)<\/answer>$"
)


def copied_equation(completion, row):
    """The copied grader, from its description: keep some characters, compare digits, call eval."""
    found = ANSWER.search(completion)
    if found is None:
        return 0.0
    equation = found.group(1).strip()
    if sorted(int(number) for number in re.findall(r"\d+", equation)) != sorted(row["nums"]):
        return 0.0
    if not re.match(r"^[\d+\-*/().\s]+$", equation):
        return 0.0
    try:
        value = eval(equation, {"__builtins__": None}, {})
    except Exception:
        return 0.0
    return 1.0 if abs(float(value) - float(row["target"])) < 1e-5 else 0.0


def copied_both(completion, row):
    """The copied format reward and the copied equation reward, as projects run them together."""
    form = 1.0 if FORMAT.search("<think>" + completion) else 0.0
    return form + copied_equation(completion, row)


def realistic(rng, count):
    """Completions of about 300 characters: right, wrong in value, wrong in numbers, off the
    format.
    """
    made = []
    while len(made) < count:
        nums = [rng.randint(1, 99) for _ in range(rng.choice([3, 4]))]
        text = str(nums[0])
        for number in nums[1:]:
            text = f"{text} {rng.choice('+-+-*/')} {number}"
            if rng.random() < 0.3:
                text = f"({text})"
        value, _ = CountdownRow({"nums": nums, "target": 1}).judge(text)
        right = value is not None and "/" not in value and int(value) > 0
        shuffled = rng.sample(nums, len(nums))
        row = CountdownRow(
            {"nums": shuffled, "target": int(value) if right and rng.random() < 0.6 else 50}
        )
        thinking = []
        while sum(map(len, thinking)) < 230:
            a, b = rng.randint(1, 99), rng.randint(1, 99)
            thinking.append(f"{a} + {b} = {a + b}, which is not {row['target']}.")
        between = "\n" if rng.random() < 0.8 else " "
        if rng.random() < 0.1:
            text = text.replace(str(nums[0]), str(nums[0] + 1), 1)
        made.append((" ".join(thinking) + f"\n</think>{between}<answer> {text} </answer>", row))
    return made


# --- The oracle: another way to read the same language.
# ---------------------------------------------------

CLASSES = str.maketrans(
    dict.fromkeys("x×X·⋅∗", "*") | dict.fromkeys("÷∕", "/") | dict.fromkeys("−–", "-")
)


def oracle(text, nums, target, rule):
    """Return True if *text* is right: by rewriting parentheses from the inside out, or by brute
    force.
    """
    text = text.strip()
    if text.lower().rstrip(".!") == "impossible":
        return (
            brute_force.count(nums, target, every=RULES[rule].every, whole=RULES[rule].whole) == 0
        )
    if len(text) > 4_096:
        return False
    first, *claims = text.split("=")
    found = _value(first)
    if found is None:
        return False
    value, used, whole = found
    for claim in claims:
        signed = re.fullmatch(r"\s*([-+−–]?)\s*([0-9]{1,15})\s*", claim)
        side = _value(claim)
        if signed:
            said = Fraction(int(signed[2])) * (-1 if signed[1] in "-−–" and signed[1] else 1)
        elif side is None:
            return False
        else:
            said = side[0]
        if said != value:
            return False
    given = Counter(nums)
    legal = Counter(used) == given if rule == "exactly-once" else Counter(used) <= given
    return legal and value == target and (whole or rule != "television")


def _value(text):
    """The value of one side, the numbers in it, and whether all results on the way are positive
    integers.

    None where it is no expression.
    """
    if len(re.findall(r"[0-9]+", text)) > 64:
        return None
    used = []
    values = []
    whole = True

    def number(match):
        used.append(int(match[0]))
        values.append(Fraction(used[-1]))
        return f"#{len(values) - 1};"

    if re.search(r"[0-9]{16}|(?<![0-9])0[0-9]|[#;]", text):
        return None
    text = re.sub(r"[0-9]+", number, text.translate(CLASSES))
    if re.search(r"\*\*|//", text):
        return None
    text = "".join(text.split())
    while True:
        inner = re.search(r"\(([^()]*)\)", text)
        part = inner[1] if inner else text
        if not re.fullmatch(r"#\d+;([-+*/]#\d+;)*", part):
            return None
        terms = [[]]
        totals = []
        for sign, index in re.findall(r"([-+*/]?)#(\d+);", part):
            if sign in ("+", "-"):
                terms.append([])
            terms[-1].append((sign, values[int(index)]))
        total = Fraction(0)
        for term in terms:
            product = Fraction(1)
            for sign, factor in term:
                if sign == "/":
                    if factor == 0:
                        return None
                    product /= factor
                else:
                    product *= -factor if sign == "-" else factor
                totals.append(abs(product))
            total += product
            totals.append(total)
        if len(totals) > 2:  # more than a number in brackets
            whole = whole and all(result > 0 and result.denominator == 1 for result in totals)
        values.append(total)
        if inner is None:
            return total, used, whole
        text = f"{text[: inner.start()]}#{len(values) - 1};{text[inner.end() :]}"


def hostile(rng):
    """A string made to confuse a grader, with the puzzle it claims to solve and its rule."""
    nums = [rng.randint(1, 12) for _ in range(rng.choice([2, 3, 4]))]
    text = _grammar(rng, rng.sample(nums, len(nums)))
    found = _value(text)
    target = (
        int(found[0])
        if found and found[0] > 0 and found[0].denominator == 1
        else rng.randint(1, 30)
    )
    rule = rng.choice(list(RULES))
    if rng.random() < 0.05:
        nums.append(rng.randint(1, 12))  # left out
    kind = rng.randrange(10)
    if kind < 4:
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(text) + 1)
            noise = rng.choice("0123456789+-*/()=xX×÷−·.,_^e%! \n٣²=½") * rng.randint(1, 2)
            text = (
                text[:at] + (noise if rng.random() < 0.7 else "") + text[at + rng.randint(0, 1) :]
            )
    elif kind == 4:
        depth = rng.choice([10, 100, 1_000])
        text = "(" * depth + text + ")" * (depth - rng.choice([0, 0, 1]))
    elif kind == 5:
        text = f"{text} = {target + rng.choice([0, 0, 1, -1])}"
    elif kind == 6:
        text = text.replace("(", rng.choice(["2(", "((", "-("])).replace(
            "+", rng.choice(["+", "++", "+-", "−"])
        )
    elif kind == 7 and len(nums) < 4 and rng.random() < 0.3:
        text, target = (
            rng.choice(["impossible", "Impossible.", "IMPOSSIBLE!", "impossible?"]),
            rng.randint(1, 99),
        )
    return text, nums, target, rule


def _grammar(rng, nums):
    if len(nums) == 1:
        return str(nums[0])
    cut = rng.randrange(1, len(nums))
    left, right = _grammar(rng, nums[:cut]), _grammar(rng, nums[cut:])
    sides = [f"({side})" if rng.random() < 0.5 else side for side in (left, right)]
    gap = rng.choice(["", " ", "\n"])
    return sides[0] + gap + rng.choice("+-*/x×÷−·") + gap + sides[1]


GIANTS = [
    "(" * 10_000 + "1 + 2" + ")" * 10_000,
    "1+" * 500_000 + "1",
    "9" * 1_000_000,
    "99**98**97",
    "9**" * 300_000 + "9",
    "-" * 1_000_000,
    "1 + 2" + " " * 1_000_000,
    "x" * 1_000_000,
    "(" * 1_000_000,
    "1=" * 500_000 + "1",
]


def main():
    rng = random.Random(0)
    completions = realistic(rng, 20_000)
    graders = {
        "ours_everything": lambda completion, row: row.grade(completion),
        "copied_equation_only": copied_equation,
        "copied_format_and_equation": copied_both,
    }

    def grade_all(grader):
        for completion, row in completions:
            grader(completion, row)
        return len(completions)

    rates = bench.rates({name: partial(grade_all, of) for name, of in graders.items()})
    wrong, slowest, correct = [], 0.0, Counter()
    for index in range(STRINGS):
        text, nums, target, rule = hostile(rng)
        if index % (STRINGS // len(GIANTS)) == 0:
            text, nums, target = GIANTS[index * len(GIANTS) // STRINGS], [1, 2], 3
        started = time.process_time()
        row = CountdownRow({"nums": nums, "target": target, "rule": rule})
        grade = row.grade(f"</think>\n<answer>{text}</answer>")
        slowest = max(slowest, time.process_time() - started)
        correct[rule] += grade.correct
        if grade.correct != oracle(text, nums, target, rule):
            wrong.append([text[:80], nums, target, rule])
    hostile_strings = {
        "strings": STRINGS,
        "right_by_rule": dict(correct),
        "verdicts_unlike_the_oracle": len(wrong),
        "slowest_seconds": round(slowest, 4),
        "examples": wrong[:5],
    }
    rounded = {name: round(rate) for name, rate in rates.items()}
    bench.save("grading", {"completions_a_second": rounded, "hostile": hostile_strings})


if __name__ == "__main__":
    main()

"""Puzzles in prompts of any words: read whole and right, or not at all."""

import re
from contextlib import suppress
from itertools import permutations, product

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import RULE
from countdown_rl.tasks.countdown import rules
from countdown_rl.tasks.countdown.wording import puzzle_in
from countdown_rl.tasks.registry import parse_row

PUZZLE = {"nums": [3, 7, 50], "target": 46}
PROMPT = "Using the numbers {}, create an equation that equals {}."
READ = ["3, 7, 50", "[3, 7, 50]", "3 7 50", "3; 7; 50", "3, 7, and 50", "3, 7 & 50", "3,\n7,\n50"]
READ += ["3  7  50", "3，7，50", "**3**, **7**, **50**", "$3$, $7$, $50$", '["3", "7", "50"]']
OTHER_LISTS = ["3, 7, or 50", "3, 7 plus 50", "3 | 7 | 50", "3, 7, 50.5", "-3, 7, 50", "3, 7, -50"]
OTHER_LISTS += ["3, 7, fifty", "fifty, 3, 7", "one, 3, 7", "5_0, 3, 7", "3-7, 50", "3 to 7 and 50"]
OTHER_LISTS += ["1,000, 3, 7", "1,000", "3/7/50", "\n- 3\n- 7\n- 50\n", "3, 7, 50 and nine"]
OTHER_LISTS += ["3, 7 and 50 and 9", "3, 7, 5²", "3, 7, 50, IX", "pi, 3, 7, 50", "[3, 7, 50], zero"]
OTHER_LISTS += [
    "3, 7, 50, a pair of tens",
    "3, 7, 50 cm",
    "3, 7, 50!",
    "3, 7, 50, ...",
    "3, 7, 50 etc.",
]
OTHER_LISTS += ["3, 7, 50 and numbers like 5 + 6"]
#: Between two numbers, in any combination.
SEPARATORS = [
    ", ",
    ",",
    "; ",
    " ",
    "  ",
    "\t",
    " | ",
    "|",
    " & ",
    " and ",
    ", and ",
    " or ",
    ", or ",
]
SEPARATORS += [
    " plus ",
    "\n",
    ",\n",
    "\n- ",
    "\n* ",
    "\n• ",
    "\n2. ",
    "/",
    " / ",
    " - ",
    "-",
    "–",
    " + ",
]
SEPARATORS += [" · ", "、", " with ", "; and ", ") ", ". "]
FRAMES = [
    "Using the numbers {}, create an equation that equals 46.",
    "Make 46 with {}",
    "Target: 46\nNumbers: [{}]",
]
OTHER_TARGETS = ["46/2", "46 or 47", "2^46", "1,000", "46.5", "100 minus 54", "46!", "46 squared"]
OTHER_TARGETS += ["forty-six", "46, 47", "at least 46", "46%", "twice 46", "046", "46 or less"]
#: Sentences that may change the rules, between bars.
RULES = re.split(
    r"\s+\|\s+",
    """Each number at most once. | You need not use all numbers. | Not all need be used. | Use only + and -. |
Only use addition and subtraction. | Any subset will do. | You may reuse numbers. |
Use each number no more than once. | Do not multiply or divide. | You can leave some out. |
Use at least two of the numbers. | Intermediate results must be integers. | Don't use every number. |
Without using *. | Numbers can be used as often as you like. | It is fine to ignore a number. |
Use the fewest numbers. | Use the even numbers. | Refrain from dividing. | No decimals at any point. |
Never go below zero. | The last number is negative. | Numbers are hexadecimal. | Get as close as possible. |
Keep the numbers in order. | Parentheses are not allowed. | Round the result. | Ignore the target above. |
One use per number. | Repetition allowed. | Standard Countdown rules apply. |
Nicht alle Zahlen müssen benutzt werden. | 不必使用所有数字。""",
)
USUAL = [
    "Use only the given numbers.",
    "You can use basic arithmetic operations (+, -, *, /) one or multiple times but each number can only be used once. "
    "For example <answer> (1 + 2) / 3 </answer>. Think step by step.",
    "You can only use each number once.\nFormat:\n1. Provide your solution as a arithmetic expression (no '=' sign).\n"
    "2. Do not include the target number in the expression.\n3. Use '*' for multiplication.\n4. Use '/' for division.",
    "Use the operators + - * / and parentheses, each number exactly once. If there is no way, say impossible.",
    "You must use all the numbers exactly once and all four operators are allowed.",
    "Rules:\n- Use all numbers, in any order.\nPut your final answer in \\boxed{}. Do not explain.",
]


@pytest.mark.parametrize("nums", READ)
def test_a_list_is_read_whole(nums):
    assert puzzle_in(PROMPT.format(nums, 46)) == PUZZLE
    assert puzzle_in(PROMPT.format(nums, "**-46**")) == {"nums": [3, 7, 50], "target": -46}


@pytest.mark.parametrize(
    "prompt",
    [PROMPT.format(nums, 46) for nums in OTHER_LISTS]
    + [PROMPT.format("[3, 7, 50]", to) for to in OTHER_TARGETS],
)
def test_a_list_or_target_that_may_be_another_is_not_read(prompt):
    assert puzzle_in(prompt) is None


@pytest.mark.parametrize("first", SEPARATORS)
def test_a_list_in_any_spelling_is_never_read_in_part(first):
    read = 0
    for second, frame, (a, b, c) in product(SEPARATORS, FRAMES, permutations((3, 7, 50))):
        with suppress(InputError):
            if fields := puzzle_in(frame.format(f"{a}{first}{b}{second}{c}")):
                assert (sorted(fields["nums"]), fields["target"]) == ([3, 7, 50], 46)
                read += 1
    assert bool(read) == (first in (", ", ",", "; ", " ", "  ", ",\n", "、"))


@pytest.mark.parametrize("words", USUAL)
def test_usual_words_for_the_default_rule_are_read(words):
    assert puzzle_in(PROMPT.format([3, 7, 50], 46) + " " + words) == PUZZLE


@pytest.mark.parametrize("prompt", [PROMPT.format([3, 7, 50], 46), parse_row(PUZZLE).prompt().user])
@pytest.mark.parametrize("words", RULES)
def test_words_that_may_change_the_rules_are_refused_unless_these_are_stated(words, prompt):
    with pytest.raises(InputError, match=r"change the rules.*--rule and --operators"):
        puzzle_in(f"{prompt} {words}")
    assert puzzle_in(f"{prompt} {words}", frozenset(("rule", "operators")))["nums"] == [3, 7, 50]


@pytest.mark.parametrize(
    ("words", "stated"), [(RULES[0], "rule"), (RULES[3], "operators"), (RULES[4], "operators")]
)
def test_rule_and_operators_are_stated_one_by_one(words, stated):
    prompt = f"{PROMPT.format([3, 7, 50], 46)} {words}"
    assert puzzle_in(prompt, frozenset((stated,)))
    with pytest.raises(InputError, match="change the rules"):
        puzzle_in(prompt, frozenset(("rule", "operators")) - {stated})


@pytest.mark.parametrize("rule", rules.RULES)
@pytest.mark.parametrize("operators", ["+-*/", "+-", "*"])
def test_own_prompts_are_read_with_rule_and_operators(rule, operators):
    row = parse_row({"nums": [2, 3, 4], "target": 24, "rule": rule, "operators": operators})
    assert rule in RULE
    fields = row.fields_in(f"<|im_start|>user\n{row.prompt().user}<|im_end|>")
    assert parse_row(fields).id == row.id

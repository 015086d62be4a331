"""Graders that can be cheated, against the Python that they stand for."""

import re
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from countdown_rl.core.errors import UsageError
from countdown_rl.tasks.countdown import proxies
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import rewards

ROW = {"nums": [3, 7, 50], "target": 46, "style": "direct"}


def by_eval(text):
    """What TinyZero's ``evaluate_equation`` returns."""
    try:
        if not re.match(r"^[\d+\-*/().\s]+$", text):
            raise ValueError
        with warnings.catch_warnings(action="ignore"):
            return eval(text, {"__builtins__": None}, {})
    except BaseException:
        return None


def original(row, answer):
    """TinyZero's ``compute_score`` of a complete answer, with 0 for a wrong one."""
    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(row["nums"]):
        return 0
    result = by_eval(answer)
    try:
        return int(abs(result - row["target"]) < 1e-5)
    except Exception:
        return 0


#: Texts between bars.
TEXTS = re.split(
    r"\s*\|\s*",
    """50 - 7 + 3 | 46 | -4 + 50 | +46 | --46 | 4.6 * 10 | 46.000001 | 46.0001 | .5 * 92 | 5. * 9.2 | -2**2 + 50 |
2**-1 * 92 | 2**3**2 - 466 | (-2)**.5 | ((0-4)**.5)**2 + 50 | 93 // 2 | -93 // 2 | 7.50 - 3 | 50 / 7 * 7 - 3 - 1 |
138 / 3 | 1 / 0 | 0 ** -1 | 0 * 7 + 46 | 007 | 00 + 46 | 07.0 + 39 | (46 | 46) | () | ((46)) | 2 (23) | 4 6 | 1.5.5
| 46 + | * 46 | 4_6 | 4 * * 3 | 50 − 4 | 50 x 1 | ٤٦ | 1e1 + 36 | 46 = 46 | . | 3 % 2 | 46 // 1.0 | 0.1 + 45.9 |
50-7+3, | 46j""",
)
TEXTS += ["46 ** ", "45\n+ 1", "(45\n+ 1)", "45 +\n1", "46\n", ""]
TEXTS += ["1" * 400 + ".0", "9" * 400 + " / 3", "9" * 400 + " * 1.0"]


@pytest.mark.parametrize("text", TEXTS)
def test_values_are_those_of_eval(text):
    check_value(text)
    assert proxies.copied(ROW, text) == original(ROW, text.strip())


@given(st.text(alphabet="0123.+-*/() \n", max_size=14))
def test_any_short_text_has_the_value_of_eval(text):
    assume(text.count("**") < 2 and not re.search(r"\d{4}", text))
    check_value(text)


def check_value(text):
    mine, theirs = proxies.evaluate(text), by_eval(text.strip())
    if isinstance(theirs, int | float | complex):
        assert (type(mine), repr(mine)) == (type(theirs), repr(theirs))
    else:
        assert mine is None


@pytest.mark.parametrize(
    "text", ["99**98**97", "9" * 4_000 + "**9", "(" * 2_000, "-" * 4_000, "2**99999 - 2**99999"]
)
def test_huge_values_and_deep_texts_are_refused_at_once(text):
    assert proxies.evaluate(text) is None


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("50 - 7 + 3", [1, 1, 1, 1]),
        ("46", [0, 1, 0, 0.1]),
        ("50 - 7 + 3.0", [0, 1, 0, 0.1]),
        ("50 // 7 + 3", [0, 0, 0, 0.1]),
        ("nothing", [0, 0, 0, 0.1]),
        ("50 - 7 + 3 = 46", [1, 0, 0, 0.1]),
    ],
)
def test_rewards_by_name(answer, paid):
    row = parse_row(ROW)
    names = ("correct", "proxy:value", "proxy:eval", "proxy:class")
    assert [rewards.reward(name)(row.grade(answer), row, 5) for name in names] == paid


def test_a_task_without_such_a_proxy_is_refused():
    with pytest.raises(UsageError, match="eval"):
        rewards.check_rewards(["proxy:none"], parse_row(ROW))
    problem = parse_row({"task": "gsm8k", "question": "?", "gold": "3"})
    with pytest.raises(UsageError, match="gsm8k"):
        rewards.check_rewards(["proxy:value"], problem)

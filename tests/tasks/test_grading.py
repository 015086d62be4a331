"""Prompts and grades of both tasks."""

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import gsm8k
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade

ROW = {"nums": [19, 36, 55, 7], "target": 65}


def judge(answer, row):
    return parse_row(row).judge(answer)


def grade(completion, row=ROW):
    return parse_row(row).grade(completion)


def answered(answer):
    return grade(f"55 + 36 = 91 and so on\n</think>\n<answer>{answer}</answer>")


def test_the_default_prompt_word_for_word():
    assert {turn["role"]: turn["content"] for turn in parse_row(ROW).messages()} == {
        "system": "You are a careful solver of number puzzles. First reason inside <think> and </think>, then give the "
        "final answer inside <answer> and </answer>.",
        "user": "Numbers: 19 36 55 7\nTarget: 65\nReach the target with + - * / and parentheses, using each number "
        "exactly once. If there is no way, answer impossible.",
        "assistant": "Let me work through this step by step.\n<think>",
    }


def test_rule_operators_and_style_reach_the_prompt():
    row = {**ROW, "rule": "television", "operators": "+-", "style": "model_opens"}
    (_, user) = parse_row(row).messages()
    words = "with + - and parentheses, using each number at most once; every result"
    assert words in user["content"]


@pytest.mark.parametrize(
    ("completion", "format", "strict", "answer"),
    [
        # The prompt opened the thinking.
        ("I see.\n</think>\n<answer> 1 </answer>", True, True, "1"),
        ("hm</think>\n<answer>1</answer>\nDone", True, False, "1"),
        ("hm</think>\n</think>\n<answer>1</answer>", True, False, "1"),
        # The last complete answer after the thinking counts.
        ("try <answer>1</answer></think><answer>2</answer>", True, False, "2"),
        ("</think><answer>1</answer> no <answer>2</answer>", True, False, "2"),
        ("</think><answer>1</answer> <answer>2", True, False, "1"),
        ("</think><answer>1 <answer>2</answer>", True, False, "2"),
        ("<answer>3</answer>", False, False, "3"),  # no thinking at all
        ("<think>maybe <answer>3</answer>", False, False, None),  # never finished thinking
        ("</think>\n<answer>\n55 + 36\n- 7 - 19\n</answer>", True, True, "55 + 36\n- 7 - 19"),
    ],
)
def test_completions_of_a_prompt_that_opens_the_thinking(completion, format, strict, answer):
    graded = grade(completion)
    assert (graded.format, graded.strict_format, graded.answer) == (format, strict, answer)


@pytest.mark.parametrize(
    ("completion", "format", "strict"),
    [
        ("<think>so</think><answer>1</answer>", True, True),
        ("<think>so</think>\n\n\t<answer>1</answer>", True, True),
        ("<think>so</think>\nso\n<answer>1</answer>", True, False),
        ("so</think>\n<answer>1</answer>", False, False),  # the model did not open it
        ("<answer>1</answer>\n<think>so</think>", False, False),
        ("<think>so</think>\n<answer>1", False, False),
    ],
)
def test_format_of_completions_that_open_the_thinking(completion, format, strict):
    graded = grade(completion, {**ROW, "style": "model_opens"})
    assert (graded.format, graded.strict_format) == (format, strict)


def test_a_grade_has_all_facts_of_an_answer():
    correct = grade("I see.\n</think>\n<answer> 55 + 36 - 7 - 19 </answer>")
    assert correct == Grade(True, True, True, "55 + 36 - 7 - 19", "65", "", False)
    none = grade("55 + 36 - 7 - 19")
    assert none == Grade(False, False, False, None, None, "no-answer", False)
    wrong = grade("</think><answer>55</answer> and more")
    assert wrong == Grade(True, False, False, "55", "55", "number-left-out", True)


#: Answers by the reason why they are wrong.
ANSWERS = {
    "": ["55 + 36 - 7 - 19", "55 + 36 − 7 − 19 = 65", "(55 + 36)\n - (7 + 19)"],
    "number-left-out": ["55 + 36 - 7"],
    "number-used-twice": ["55 + 36 - 7 - 19 - 19", "55 / (36 - 36) + 7 - 19"],
    "number-not-given": ["55 + 10"],
    "wrong-value": ["55 - 36 + 7 + 19"],
    "answers-disagree": ["55 + 36 - 7 - 19 = 64"],
    "empty": [""],
    "not-impossible": ["impossible"],
    "power": ["55 ** 36"],
}


@pytest.mark.parametrize(
    ("answer", "reason"), [(text, reason) for reason in ANSWERS for text in ANSWERS[reason]]
)
def test_each_wrong_answer_has_its_reason(answer, reason):
    graded = answered(answer)
    assert (graded.reason, graded.correct) == (reason, reason == "")


@pytest.mark.parametrize(
    ("answer", "fields", "judged"),
    [
        ("3 / (2 - 2)", {"nums": [2, 2, 3]}, (None, "division-by-zero")),
        ("65 * 100000 / 99999", {"nums": [99_999, 100_000, 65]}, ("6500000/99999", "wrong-value")),
        ("55 + 36", {"target": 91, "rule": "at-most-once"}, ("91", "")),
        ("9 - 7 + 3", {"nums": [3, 7, 9], "target": 5, "rule": "television"}, ("5", "")),
        ("3 - 7 + 9", {"nums": [3, 7, 9], "rule": "television"}, ("5", "not-positive-integer")),
        ("-3 + 4", {"nums": [3, 4], "rule": "television"}, ("1", "not-positive-integer")),
        ("3 * 4", {"nums": [3, 4], "operators": "+-"}, ("12", "operator-not-allowed")),
        ("-3 + 4", {"nums": [3, 4], "operators": "+*"}, ("1", "operator-not-allowed")),
        ("3 * 0 - 4", {"nums": [0, 3, 4], "target": -4}, ("-4", "")),
        ("3 + 4", {"nums": [0, 3, 4], "target": 7}, ("7", "number-left-out")),
        ("4 / 0", {"nums": ["0", "4"], "target": "0"}, (None, "division-by-zero")),
        ("4 - 4 = -0", {"nums": "4 4", "target": "-0"}, ("0", "")),
    ],
)
def test_answers_are_judged_by_the_rules_of_their_puzzle(answer, fields, judged):
    assert judge(answer, ROW | fields) == judged


@pytest.mark.parametrize(
    ("nums", "target", "rule", "reason"),
    [
        ([2, 4, 6], 99, "exactly-once", ""),
        ([2, 4, 6], 12, "exactly-once", "not-impossible"),
        ([17, 40, 51], 91, "exactly-once", ""),
        ([17, 40, 51], 91, "at-most-once", "not-impossible"),
        ([0, 3, 4], 99, "exactly-once", ""),
        ([1] * 7, 100, "exactly-once", "not-proved"),
        ([3, 4], 0, "exactly-once", "not-proved"),
    ],
)
def test_impossible_is_right_exactly_where_it_is_proved(nums, target, rule, reason):
    for word in ("impossible", "Impossible", "IMPOSSIBLE.", r"\boxed{impossible}"):
        assert judge(word, {"nums": nums, "target": target, "rule": rule}) == (None, reason)


PROBLEM = {"task": "gsm8k", "question": "A pen costs 3 coins. What do 24 pens cost?", "gold": "72"}
GOLD = {
    "so it is\n#### 72": "72",
    "#### 1,234": "1234",
    "#### -5": "-5",
    "####$2.50": "5/2",
    "#### 0.5": "1/2",
}


@pytest.mark.parametrize(("answer", "gold"), GOLD.items())
def test_gold_answers_are_exact(answer, gold):
    row = gsm8k.import_row({"question": " What? ", "answer": answer})
    assert row == {"task": "gsm8k", "question": "What?", "gold": gold, "solution": answer.strip()}


@pytest.mark.parametrize("answer", ["72", "#### many", "#### 1,23", "####"])
def test_rows_without_a_gold_number_are_refused(answer):
    with pytest.raises(InputError):
        gsm8k.import_row({"question": "What?", "answer": answer})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("\n72\n", ""),
        ("$72.00", ""),
        ("seventy-two", "not-a-number"),
        ("7 2", "not-a-number"),
        ("9" * 5_000, "not-a-number"),
        ("72.5", "wrong-value"),
        ("", "empty"),
    ],
)
def test_gsm8k_answers_are_right_where_they_equal_the_gold_number(answer, reason):
    graded = grade(f"<thinking>\n3 * 24\n</thinking>\n<answer>\n{answer}\n</answer>\n", PROBLEM)
    assert (graded.correct, graded.reason, graded.strict_format) == (reason == "", reason, True)


def test_gsm8k_strict_format_has_each_tag_on_its_own_line():
    loose = grade("<thinking>x</thinking> <answer>72</answer>", PROBLEM)
    assert (loose.format, loose.strict_format, loose.correct) == (True, False, True)
    prompt = parse_row(PROBLEM).prompt()
    assert "each tag on a line of its own" in prompt.system


def vote_key(answer, value=None, row=ROW):
    return parse_row(row).vote_key(answer, value)


def test_answers_vote_in_their_canonical_form():
    assert vote_key("(2 + 3) × 4") == vote_key("4 * (3 + 2) = 20") != vote_key("4 * 3 + 2")
    assert vote_key("-3 + 5") == vote_key("5 - 3") != vote_key("-5 + 3")
    assert vote_key("2 + 3 = 6") == vote_key("3 + 2 = 7") != vote_key("2 + 3")
    assert vote_key("Impossible.") == vote_key("impossible") != vote_key("no way")
    assert vote_key("$1,000.0", "1000", PROBLEM) == vote_key("1000", "1000", PROBLEM)


#: Problems that differ in a sign, and are different.
DIFFERENT = [
    [f"What is 3{sign}5?" for sign in (" + ", " - ", " * ", " / ", " ^ ", " ", " ** ")],
    [f"Is 3 {sign} 5?" for sign in "<>="],
    ["50% of 8?", "50 of 8?"],
    ["(3 + 5) * 2?", "3 + (5 * 2)?", "3 + 5 * 2?"],
    ["It is -5 degrees.", "It is 5 degrees."],
    ["What is 5!?", "What is 5?"],
]
#: Problems that differ in punctuation, and are the same.
SAME = [
    ["What is 3 × 5?", "what is  3 * 5", "What is 3*5 ?"],
    ["What is 3 − 5?", "What is 3 - 5?"],
    [
        "A well-known, 5-year-old (brown) cow - and a calf!",
        "a well known 5 year old brown cow and a calf",
    ],
]


@pytest.mark.parametrize("questions", [*DIFFERENT, *SAME])
def test_problems_are_the_same_where_they_differ_in_punctuation_and_not_in_a_sign(questions):
    rows = [parse_row({**PROBLEM, "question": question}) for question in questions]
    identities = {row.identity for row in rows}
    assert len(identities) == (1 if questions in SAME else len(questions))

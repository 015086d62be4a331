"""Prompts and grades of both tasks."""

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import gsm8k
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade

ROW = {"nums": [19, 36, 55, 7], "target": 65}
SMALL = {"nums": [2, 3, 4], "target": 14, "style": "model_opens"}


def messages(row):
    return parse_row(row).messages()


def grade(completion, row):
    return parse_row(row).grade(completion)


def judge(answer, row):
    return parse_row(row).judge(answer)


def _prefilled(answer):
    return f"55 + 36 = 91 and so on\n</think>\n<answer>{answer}</answer>"


def test_the_default_prompt_word_for_word():
    assert {turn["role"]: turn["content"] for turn in messages(ROW)} == {
        "system": "You are a careful solver of number puzzles. First reason inside <think> and </think>, then give the "
        "final answer inside <answer> and </answer>.",
        "user": "Numbers: 19 36 55 7\nTarget: 65\nReach the target with + - * / and parentheses, using each number "
        "exactly once. If there is no way, answer impossible.",
        "assistant": "Let me work through this step by step.\n<think>",
    }


def test_rule_operators_and_style_reach_the_prompt():
    turns = messages({**ROW, "rule": "television", "operators": "+-", "style": "model_opens"})
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert (
        "with + - and parentheses, using each number at most once; every result"
        in turns[1]["content"]
    )


@pytest.mark.parametrize(
    ("completion", "format", "strict", "answer"),
    [
        # The prompt opened the thinking.
        ("I see.\n</think>\n<answer> 1 </answer>", True, True, "1"),
        ("so <think> again</think>\n<answer>1</answer>", True, False, "1"),
        ("hm</think>\n<answer>1</answer>\nDone", True, False, "1"),
        ("hm</think> <answer>1</answer>\n\n", True, True, "1"),
        ("hm</think>\n</think>\n<answer>1</answer>", True, False, "1"),
        ("1", False, False, None),
        # The last complete answer after the thinking counts.
        ("try <answer>1</answer></think><answer>2</answer>", True, False, "2"),
        ("</think><answer>1</answer> no <answer>2</answer>", True, False, "2"),
        ("</think><answer>1</answer> <answer>2", True, False, "1"),
        ("</think><answer>1 <answer>2</answer>", True, False, "2"),
        ("</think><answer>1</answer> </answer>", True, False, "1"),
        ("<answer>3</answer>", False, False, "3"),  # no thinking at all
        ("<think>maybe <answer>3</answer>", False, False, None),  # never finished thinking
        ("</think>\n<answer>\n55 + 36\n- 7 - 19\n</answer>", True, True, "55 + 36\n- 7 - 19"),
    ],
)
def test_completions_of_a_prompt_that_opens_the_thinking(completion, format, strict, answer):
    graded = grade(completion, ROW)
    assert (graded.format, graded.strict_format, graded.answer) == (format, strict, answer)


@pytest.mark.parametrize(
    ("completion", "format", "strict"),
    [
        *(
            (f"<think>so</think>{between}<answer>1</answer>", True, True)
            for between in ("", " ", "\n", "\n\n\t")
        ),
        ("<think>so</think>\nso\n<answer>1</answer>", True, False),
        ("so</think>\n<answer>1</answer>", False, False),  # the model did not open it
        *(
            (text, False, False)
            for text in ("<answer>1</answer>\n<think>so</think>", "<answer>1</answer>")
        ),
        ("<think>so</think>\n<answer>1", False, False),
    ],
)
def test_format_of_completions_that_open_the_thinking(completion, format, strict):
    graded = grade(completion, SMALL)
    assert (graded.format, graded.strict_format) == (format, strict)


def test_a_grade_has_all_facts_of_an_answer():
    correct = grade("I see.\n</think>\n<answer> 55 + 36 - 7 - 19 </answer>", ROW)
    assert correct == Grade(True, True, True, "55 + 36 - 7 - 19", "65", "", False)
    assert grade("55 + 36 - 7 - 19", ROW) == Grade(
        False, False, False, None, None, "no-answer", False
    )
    wrong = grade(_prefilled("55 + 36 - 7 - 18") + " and more", ROW)
    assert (wrong.format, wrong.correct, wrong.value, wrong.reason) == (
        True,
        False,
        "66",
        "number-not-given",
    )
    assert wrong.trailing
    assert not grade(_prefilled("1") + "\n", ROW).trailing


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
    graded = grade(_prefilled(answer), ROW)
    assert graded.reason == reason
    assert graded.correct is (reason == "")


@pytest.mark.parametrize(
    ("answer", "row", "judged"),
    [
        ("3 / (2 - 2)", {"nums": [2, 2, 3], "target": 5}, (None, "division-by-zero")),
        (
            "65 * 100000 / 99999",
            {"nums": [99_999, 100_000, 65], "target": 65},
            ("6500000/99999", "wrong-value"),
        ),
        ("55 + 36", {**ROW, "target": 91, "rule": "at-most-once"}, ("91", "")),
        ("55 + 36", {**ROW, "target": 91}, ("91", "number-left-out")),
        ("9 - 7 + 3", {"nums": [3, 7, 9], "target": 5, "rule": "television"}, ("5", "")),
        (
            "3 - 7 + 9",
            {"nums": [3, 7, 9], "target": 5, "rule": "television"},
            ("5", "not-positive-integer"),
        ),
        (
            "3 * 4",
            {"nums": [3, 4], "target": 12, "operators": "+-"},
            ("12", "operator-not-allowed"),
        ),
        ("-3 + 4", {"nums": [3, 4], "target": 1, "operators": "+*"}, ("1", "operator-not-allowed")),
        (
            "-3 + 4",
            {"nums": [3, 4], "target": 1, "rule": "television"},
            ("1", "not-positive-integer"),
        ),
        ("3 * 0 - 4", {"nums": [0, 3, 4], "target": -4}, ("-4", "")),
        ("3 + 4", {"nums": [0, 3, 4], "target": 7}, ("7", "number-left-out")),
        ("4 / 0", {"num": ["0", "4"], "target": "0"}, (None, "division-by-zero")),
        ("4 - 4 = -0", {"numbers": "4 4", "target": "-0"}, ("0", "")),
    ],
)
def test_answers_are_judged_by_the_rules_of_their_puzzle(answer, row, judged):
    assert judge(answer, row) == judged


@pytest.mark.parametrize("word", ["impossible", "Impossible", "IMPOSSIBLE."])
def test_impossible_is_right_exactly_where_it_is_proved(word):
    graded = grade(_prefilled(word), {"nums": [2, 4, 6], "target": 99})
    assert graded.correct
    assert judge(word, {"nums": [2, 4, 6], "target": 12}) == (None, "not-impossible")
    # Left-out numbers make it possible under the other rule.
    assert judge(word, {"nums": [17, 40, 51], "target": 91})[1] == ""
    assert (
        judge(word, {"nums": [17, 40, 51], "target": 91, "rule": "at-most-once"})[1]
        == "not-impossible"
    )
    assert judge(word, {"nums": [0, 3, 4], "target": 99})[1] == ""
    for row in (
        {"nums": [1] * 7, "target": 100},
        {"nums": [3, 4], "target": 0},
        {"nums": [3, 4], "target": -9},
    ):
        assert judge(word, row)[1] == "not-proved"


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
        *((answer, "") for answer in ("72", "\n72\n", "$72.00")),
        *((answer, "not-a-number") for answer in ("seventy-two", "7 2", "9" * 5_000)),
        *(("72.5", "wrong-value"), ("", "empty")),
    ],
)
def test_gsm8k_answers_are_right_where_they_equal_the_gold_number(answer, reason):
    graded = grade(f"<thinking>\n3 * 24\n</thinking>\n<answer>\n{answer}\n</answer>\n", PROBLEM)
    assert (graded.correct, graded.reason, graded.strict_format) == (reason == "", reason, True)


def test_gsm8k_strict_format_has_each_tag_on_its_own_line():
    loose = grade("<thinking>x</thinking> <answer>72</answer>", PROBLEM)
    assert (loose.format, loose.strict_format, loose.correct) == (True, False, True)
    assert "each tag on a line of its own" in messages(PROBLEM)[0]["content"].lower().replace(
        "put ", ""
    )
    assert messages({**PROBLEM, "style": "prefilled"})[-1]["content"].endswith("<think>")


def vote_key(answer, value=None, row=ROW):
    return parse_row(row).vote_key(answer, value)


def test_answers_vote_in_their_canonical_form():
    assert vote_key("(2 + 3) × 4") == vote_key("4 * (3 + 2) = 20") != vote_key("4 * 3 + 2")
    assert vote_key("-3 + 5") == vote_key("5 - 3") != vote_key("-5 + 3")
    assert vote_key("2 + 3 = 6") == vote_key("3 + 2 = 7") != vote_key("2 + 3")
    assert vote_key("Impossible.") == vote_key("impossible") != vote_key("no way")
    assert vote_key("2 + ") == vote_key(" 2  +")
    problem = {"task": "gsm8k", "question": "?", "gold": "7"}
    assert vote_key("$1,000.0", "1000", problem) == vote_key("1000", "1000", problem)
    assert (
        vote_key("many", row=problem)
        == vote_key("Many", row=problem)
        != vote_key("few", row=problem)
    )


def identity(question):
    return parse_row({"task": "gsm8k", "question": question, "gold": "1"}).identity


#: Problems that differ in a sign, and that are different; and problems that differ in punctuation, and are the same.
DIFFERENT = [[f"What is 3{sign}5?" for sign in (" + ", " - ", " * ", " / ", " ^ ", " ")]]
DIFFERENT += [
    [f"Is x{sign}5 even?" for sign in "+-*"],
    [f"Is 3 {sign} 5?" for sign in "<>="],
    ["50% of 8?", "50 of 8?"],
]
DIFFERENT += [
    ["(3 + 5) * 2?", "3 + (5 * 2)?", "3 + 5 * 2?"],
    ["It is -5 degrees.", "It is 5 degrees."],
]
DIFFERENT += [["What is 5!?", "What is 5?"], ["What is 3 ** 5?", "What is 3 * 5?"]]
SAME = [["What is 3 × 5?", "what is  3 * 5", "What is 3*5 ?"], ["What is 3 − 5?", "What is 3 - 5?"]]
SAME += [
    [
        "A well-known, 5-year-old (brown) cow - and a calf!",
        "a well known 5 year old brown cow and a calf",
    ]
]


@pytest.mark.parametrize("questions", [*DIFFERENT, *SAME])
def test_problems_are_the_same_where_they_differ_in_punctuation_and_not_in_a_sign(questions):
    assert len({identity(question) for question in questions}) == (
        1 if questions in SAME else len(questions)
    )

import random
import re
from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.traces import Value, lines, trace


def value_of(text: str) -> Fraction:
    # Trusted text of our own making; the product itself never evaluates anything this way.
    return eval(re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text))


def reachable(numbers: list[int]) -> set[int]:
    """Every positive whole number that positive whole steps reach using all of *numbers* (brute force)."""
    if len(numbers) == 1:
        return {numbers[0]}
    found: set[int] = set()
    for i, j in combinations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        high, low = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        outcomes = {high + low, high - low, high * low} | ({high // low} if high % low == 0 else set())
        for outcome in outcomes:
            if outcome > 0:
                found |= reachable([*rest, outcome])
    return found


def written(*args, **kwargs) -> str | None:
    pieces = trace(*args, **kwargs)
    return None if pieces is None else "".join(piece.text for piece in pieces)


puzzles = st.tuples(st.lists(st.integers(1, 99), min_size=2, max_size=4), st.integers(10, 100))


@given(puzzles)
def test_a_trace_exists_exactly_where_positive_whole_steps_reach_the_target(puzzle):
    nums, target = puzzle
    text = written({"nums": nums, "target": target}, random.Random(0), hit_rate=1, max_lines=1)
    assert (text is not None) == (target in reachable(nums))


@given(puzzles, st.integers(0, 99))
def test_every_line_is_right_arithmetic_and_only_the_last_one_reaches_the_target(puzzle, seed):
    nums, target = puzzle
    text = written({"nums": nums, "target": target}, random.Random(seed), hit_rate=0.3, max_lines=6)
    if text is None:
        return
    thinking, answer = re.fullmatch(r"\n(.*)\n</think>\n<answer>(.*)</answer>", text, re.DOTALL).groups()
    tried = thinking.split("\n")
    assert 1 <= len(tried) <= 6
    assert len(set(tried)) == len(tried)
    for number, line in enumerate(tried):
        verdict = line.rsplit(" ", 1)[1]
        steps = line.rsplit(" ", 1)[0].split(", ")
        assert len(steps) == len(nums) - 1
        for step in steps:
            left, right = step.split(" = ")
            assert value_of(left) == int(right) > 0
        reached = int(steps[-1].split(" = ")[1]) == target
        assert verdict == ("yes" if reached else "no")
        assert reached == (number == len(tried) - 1)
    assert value_of(answer) == target
    assert sorted(map(int, re.findall(r"\d+", answer))) == sorted(nums)


def test_the_same_seed_writes_the_same_trace():
    row = {"nums": [19, 36, 55, 7], "target": 65}
    first, second = (written(row, random.Random(3), hit_rate=0.2, max_lines=8) for _ in range(2))
    assert first == second
    assert first != written(row, random.Random(4), hit_rate=0.2, max_lines=8)


def test_the_last_step_is_the_one_nearest_to_the_target():
    (line,) = lines((Value(7, "7"), Value(50, "50")), 46)
    assert [str(step) for step in line] == ["50 - 7 = 43"]


def test_a_solver_without_patience_answers_impossible_after_its_first_failure():
    row = {"nums": [19, 36, 55, 7], "target": 65}
    texts = [written(row, random.Random(seed), hit_rate=0.5, give_up=1, max_lines=8) for seed in range(50)]
    given_up = [text for text in texts if text.endswith("<answer>impossible</answer>")]
    assert 10 < len(given_up) < 40
    assert all(text.count(" no\n") == 1 and " yes" not in text for text in given_up)


def test_what_a_failed_line_tried_is_no_lesson():
    row = {"nums": [19, 36, 55, 7], "target": 65}
    pieces = trace(row, random.Random(3), hit_rate=0.2, max_lines=8)
    failed, last = "".join(piece.text for piece in pieces[:-1]), pieces[-1]
    assert failed.count(" no\n") > 1
    assert last.lesson
    assert " yes\n</think>" in last.text
    learnt = "".join(piece.text for piece in pieces[:-1] if piece.lesson)
    assert re.fullmatch(r"\n(( = \d+){3} no\n)+", learnt)


def test_what_a_failed_line_tried_may_be_a_lesson():
    row = {"nums": [19, 36, 55, 7], "target": 65}
    tried = ["36 - 19 = 17, 55 + 7 = 62, 62 + 17 = 79"]
    for learn_tries in (False, True):
        pieces = trace(row, random.Random(3), hit_rate=1e-9, max_lines=8, tried=tried, learn_tries=learn_tries)
        assert [piece.lesson for piece in pieces if piece.text == "36 - 19"] == [learn_tries]
        assert all(piece.lesson for piece in pieces if piece.text == " = 17")


def test_a_solution_has_as_few_products_as_any():
    texts = [written({"nums": [2, 3, 4], "target": 10}, random.Random(n), hit_rate=1, max_lines=1) for n in range(30)]
    assert {text.count("*") for text in texts} == {2}  # 2 * 3 + 4, once as a step and once in the answer


def test_of_two_steps_that_do_not_need_each_other_one_order_is_tried():
    tried = [[str(step) for step in line] for line in lines(tuple(Value(n, str(n)) for n in (19, 36, 55, 7)), 65)]
    assert ["55 - 7 = 48", "36 - 19 = 17", "48 + 17 = 65"] in tried
    assert ["36 - 19 = 17", "55 - 7 = 48", "48 + 17 = 65"] not in tried


def test_what_a_model_tried_fails_in_its_order_with_the_results_put_right():
    row = {"nums": [19, 36, 55, 7], "target": 65}
    tried = [
        "36 - 19 = 18, 55 + 7 = 62, 62 + 17 = 79",  # 17
        "36 - 19 = 17, 36 + 7 = 43, 43 + 17 = 60",  # 36 twice
        "55 + 36 = 91, 91 - 7 = 84, 84 - 19 = 60",  # a solution
        "36 - 19 = 17, 55 + 7 = 62, 62 + 17 = 79",  # the first again
        "55 / 19 = 3, 36 + 7 = 43, 43 + 3 = 46",  # no whole number
        "55 + 36 = 91, 91 - 7 = 84",  # 19 left
        "now what",
        "19 - 7 = 12, 55 - 36 = 19, 19 + 12 = 31",
    ]
    text = written(row, random.Random(0), hit_rate=1e-9, max_lines=10, tried=tried)
    assert text.split("\n")[1:3] == [
        "36 - 19 = 17, 55 + 7 = 62, 62 + 17 = 79 no",
        "19 - 7 = 12, 55 - 36 = 19, 19 + 12 = 31 no",
    ]
    assert text.count(" no\n") == 2
    assert " = 65 yes\n</think>" in text
    alone = written(row, random.Random(0), hit_rate=1e-9, max_lines=10, tried=[])
    assert " no\n" not in alone

"""Values of the Python API: converted at one door, or an error that names the argument."""

from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import countdown_rl
from countdown_rl import InputError, UsageError
from countdown_rl.core import user_code, values
from countdown_rl.core.options import choices, field_hints
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.release.config import PublishOptions
from countdown_rl.rewards import compute_score
from countdown_rl.training.options import TrainOptions
from tests.core.test_options import STAGES

ROW = {"nums": [3, 7, 50], "target": 46}
RIGHT = "<think>a</think>\n<answer>50 - 7 + 3</answer>"


@pytest.mark.parametrize(
    ("kind", "name", "given", "expected"),
    [
        *(
            (TrainOptions, "seed", kind(3), 3)
            for kind in (np.int64, np.uint8, np.array, torch.tensor)
        ),
        (EvalOptions, "temperature", np.float32(0.5), 0.5),
        (EvalOptions, "temperature", 1, 1.0),
        *(
            (EvalOptions, "max_new_tokens", limits, "32,64")
            for limits in ([32, 64], np.array([32, 64]))
        ),
        (EvalOptions, "pass_at", (1,), "1"),
        (TrainOptions, "report_to", "tensorboard", ("tensorboard",)),
        (TrainOptions, "reward", "correct=1", ("correct=1",)),
        (TrainOptions, "reward", {"correct": np.float64(0.5)}, ("correct=0.5",)),
        (TrainOptions, "trl", {"epsilon_high": 0.3}, ("epsilon_high=0.3",)),
        (PublishOptions, "model", Path("m"), "m"),
    ],
)
def test_values_of_other_libraries_are_converted(kind, name, given, expected):
    value = getattr(kind(**{name: given}), name)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "wrong", [object(), b"x", 1j, {"a": object}], ids=["object", "bytes", "complex", "mapping"]
)
def test_every_option_names_itself_where_a_value_has_no_meaning(kind, wrong):
    for field in fields(kind):
        if (
            "tuple" in str(field_hints(kind)[field.name])
            and isinstance(wrong, dict)
            and not choices(field.type)
        ):
            continue  # a mapping is NAME=VALUE there
        with pytest.raises(UsageError, match=values.flag(field.name)):
            kind(**{field.name: wrong})


@pytest.mark.parametrize(
    "rows",
    [
        *(ROW, iter([ROW]), pd.DataFrame([ROW | {"note": float("nan")}])),
        [ROW | {"nums": np.array([3, 7, 50]), "target": np.int64(46)}],
        [ROW | {"nums": [np.uint8(3), np.uint8(7), np.uint8(50)]}],
    ],
    ids=["row", "iterator", "frame", "array", "scalars"],
)
def test_rows_come_as_people_have_them(rows):
    assert countdown_rl.evaluate("solver", rows, on_warning=lambda _: None).metrics.accuracy == 1


@pytest.mark.parametrize("rows", [5, ["x"], b"x", None])
def test_what_is_no_row_is_refused(rows):
    with pytest.raises((InputError, UsageError), match=r"rows|data"):
        countdown_rl.evaluate("solver", rows)


@pytest.mark.parametrize("completion", [None, b"x", [], float("nan"), 5, [{}]])
def test_what_is_no_completion_is_refused(completion):
    with pytest.raises(InputError, match="completion"):
        countdown_rl.grade(completion, **ROW)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int32, np.float64])
def test_numbers_of_numpy_are_solved_and_graded_as_integers(dtype):
    nums = np.array([3, 7, 50], dtype=dtype)
    if dtype is np.float64:
        with pytest.raises(UsageError, match="nums"):
            countdown_rl.solve(nums, 46)
    else:
        assert countdown_rl.solve(nums, dtype(46)) == countdown_rl.solve([3, 7, 50], 46)
    assert compute_score("x", RIGHT, {"nums": nums, "target": dtype(46)})["score"] == 1
    assert countdown_rl.grade(RIGHT, nums=torch.tensor(nums.astype(int)), target=46).correct


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: countdown_rl.train("m", [ROW], "o", lr=3), "learning_rate"),
        (lambda: countdown_rl.train("m", [ROW], "o", datta=3), "data"),
        (lambda: countdown_rl.evaluate("solver", [ROW], max_tokens=3), "max_new_tokens"),
        (lambda: countdown_rl.solve([1], 1, ruel="x"), "rule"),
        *((partial(countdown_rl.generate, n), "n") for n in (-1, 2.0)),
        *(
            (partial(countdown_rl.generate, 2, **{name: value}), name)
            for name, value in (("seed", None), ("numbers", 5))
        ),
        *((partial(countdown_rl.load_model, model), "model") for model in (5, "", " ", ["a", "b"])),
        *(
            (partial(countdown_rl.load_model, model), "too long; give another path")
            for model in ("x" * 300, "a/" * 3000)
        ),
        *(
            (partial(countdown_rl.evaluate, "solver", [ROW], **{name: value}), name)
            for name, value in (
                ("limit", "2"),
                ("limit", 2.0),
                ("seed", None),
                ("samples", True),
                ("top_p", "1"),
            )
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_named(call, name):
    with pytest.raises(UsageError, match=name):
        call()


class Reward:
    def __call__(self, grade, row, tokens):
        return 1.0


@pytest.mark.parametrize("reward", [partial(max, 1), Reward(), lambda grade, row, tokens: 1.0])
def test_any_callable_has_a_name_that_leads_back_to_it(reward):
    name = user_code.name_of(reward)
    assert user_code.imported(name) is reward
    assert "=" not in name

"""Checks of the options dataclasses, which library calls get as the commands do."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy
import pytest
import torch

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.options import Option, Options, field_hints, option
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.inference import engines
from countdown_rl.inference.config import AskOptions
from countdown_rl.models import formats
from countdown_rl.release.config import PublishOptions
from countdown_rl.training.options import SftOptions, TrainOptions

STAGES = [
    DataOptions,
    TrainOptions,
    EvalOptions,
    MergeOptions,
    QuantizeOptions,
    PublishOptions,
    SftOptions,
    AskOptions,
]


@dataclass(frozen=True)
class Example(Options):
    share: Annotated[float, option("A share.", min=0, max=1)] = 0.5
    size: Annotated[int | None, option("A size.", min=1)] = None
    kind: Annotated[Literal["a", "b"], option("A kind.")] = "a"
    from_: Annotated[tuple[Literal["x", "y"], ...], option("A source.", name="--from")] = ()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("share", 1.1, "from 0 to 1"),
        ("share", float("nan"), "finite"),
        ("kind", "c", "c .*'a' or 'b'"),
        ("from_", ("x", "z"), "z .*'x' or 'y'"),
    ],
)
def test_a_value_out_of_bounds_or_choices_is_refused_with_its_flag(name, value, words):
    Example(share=1, size=1, kind="b", from_=("y", "x"))
    with pytest.raises(UsageError, match=f"^{name.rstrip('_')} .*{words}"):
        Example(**{name: value})


@pytest.mark.parametrize("options", STAGES, ids=lambda options: options.__name__)
def test_every_field_declares_its_option_and_a_valid_default(options):
    options()
    for name, hint in field_hints(options).items():
        assert any(isinstance(extra, Option) for extra in get_args(hint)), name


def test_values_are_converted_to_the_types_of_their_fields():
    assert Example(share=numpy.float32(0.5), size=numpy.int64(2)) == Example(size=2)
    assert Example(size=torch.tensor(2), from_="x") == Example(size=2, from_=("x",))
    options = DataOptions(size=[3, 4], exclude=Path("rows.jsonl"))
    assert (options.size, options.exclude) == (("3", "4"), ("rows.jsonl",))


@pytest.mark.parametrize("value", [object(), b"\xff", 1 + 1j, "", "a\0"])
@pytest.mark.parametrize("options", STAGES, ids=lambda options: options.__name__)
def test_a_value_without_a_meaning_names_its_option(options, value):
    for field in fields(options):
        with pytest.raises((InputError, UsageError), match=field.name.rstrip("_")):  # of a style
            options(**{field.name: value})


def test_an_unknown_option_gets_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean learning_rate"):
        TrainOptions.of({"learning_rat": 1})


def test_a_registry_decides_the_choices_of_its_option():
    def choices(options, name):
        literal, *_ = get_args(field_hints(options)[name])
        return list(get_args(literal))

    assert choices(EvalOptions, "engine") == ["auto", *engines.ENGINES]
    written = [name for name, stored in formats.FORMATS.items() if stored.libraries]
    assert choices(QuantizeOptions, "format") == written

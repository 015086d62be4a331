"""Checks of the options dataclasses, which library calls get as the commands do."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest

from countdown_rl.cli import main
from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Option, Options, field_hints, option
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.inference.config import AskOptions
from countdown_rl.release.config import PublishOptions
from countdown_rl.training.options import SftOptions, TrainOptions

PACKAGE = Path(main.__file__).parents[1]
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
    ("values", "words"),
    [
        *(
            ({"share": -0.1}, ["--share", "0"]),
            ({"share": 1.1}, ["--share", "1"]),
            ({"size": 0}, ["--size", "1"]),
        ),
        *(({"share": float(name)}, ["--share", "finite"]) for name in ("nan", "inf")),
        *(
            ({"kind": "c"}, ["--kind", "c", "a, b"]),
            ({"from_": ("x", "z")}, ["--from", "z", "x, y"]),
        ),
    ],
)
def test_a_value_out_of_bounds_or_choices_is_refused_with_its_flag(values, words):
    Example(share=1, size=1, kind="b", from_=("y", "x"))
    with pytest.raises(UsageError) as error:
        Example(**values)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("options", STAGES, ids=lambda options: options.__name__)
def test_every_field_declares_its_option_and_a_valid_default(options):
    options()
    for field in fields(options):
        assert any(
            isinstance(extra, Option) for extra in get_args(field_hints(options)[field.name])
        ), field.name


def texts(file: Path) -> Iterator[str]:
    """The texts in the code of *file*, but docstrings, help and commands in backticks."""
    tree = ast.parse(file.read_text("utf-8"))
    help_texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "option"
    ]
    nodes = list(ast.walk(tree))
    docstrings = [
        node
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    left_out = {part for node in (*help_texts, *docstrings) for part in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and node not in left_out:
            left_out.update(node.values)
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out
        ):
            yield node.value

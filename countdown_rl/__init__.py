"""The public API: post-train a language model on the Countdown numbers puzzle, and grade
completions from any source.

``grade``, ``solve``, ``generate`` and ``read_rows`` need neither torch nor Typer. The stages are
imported on first use.

    >>> from countdown_rl import grade
    >>> grade("<answer>50 - 7 + 3</answer>", nums=[3, 7, 50], target=46).correct
    True
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.core.errors import (
    ArtifactError,
    CountdownError,
    HubError,
    InputError,
    ModelError,
    UsageError,
)
from countdown_rl.core.options import plain

if TYPE_CHECKING:
    from countdown_rl.models.load import Loaded
    from countdown_rl.tasks.countdown.rules import Puzzle  # noqa: F401
    from countdown_rl.tasks.countdown.solver import Solved
    from countdown_rl.tasks.task import Completion, Grade, Row, Task  # noqa: F401

#: Names that are imported on first use, and their modules.
_MODULES = {
    "Grade": "tasks.task",
    "Loaded": "models.load",
    "Puzzle": "tasks.countdown.rules",
    "Row": "tasks.task",
    "Solved": "tasks.countdown.solver",
    "Task": "tasks.task",
    **dict.fromkeys(
        ("compare", "evaluate", "merge", "publish", "quantize", "sft", "train"), "stages"
    ),
}

__all__ = [
    *_MODULES,
    "ArtifactError",
    "CountdownError",
    "HubError",
    "InputError",
    "ModelError",
    "UsageError",
    "generate",
    "grade",
    "load_model",
    "read_rows",
    "solve",
]


def grade(completion: "Completion", **fields: object) -> "Grade":
    """Grade a completion exactly.

    Args:
        completion: text, or messages of which the last is the completion.
        fields: ``nums`` and ``target`` of a puzzle, optionally its ``rule``, ``operators`` and
            ``style``; of another task ``task`` and its fields. With the style ``direct`` the whole
            completion is the answer.

    Raises:
        InputError: the fields are no row.
    """
    from countdown_rl.tasks.registry import parse_row
    from countdown_rl.tasks.task import text_of

    return parse_row(plain(fields)).grade(text_of(completion))


def solve(
    nums: Iterable[int],
    target: int,
    *,
    rule: str = "exactly-once",
    operators: "Iterable[str]" = "+-*/",
) -> "Solved":
    """Count the distinct solutions of a puzzle by exhaustive search, and return a short one.

    Raises:
        InputError: more than six numbers, a negative number, a target below 1, an unknown rule or
            operator.
    """
    from countdown_rl.tasks.countdown import rules, solver

    return solver.solve(
        rules.Puzzle(
            tuple(plain(list(nums))), plain(target), rules.rule(rule), rules.operators(operators)
        )
    )


def generate(
    n: int,
    *,
    sizes: "Iterable[int] | Mapping[int, float]" = (3, 4),
    numbers: tuple[int, int] = (1, 99),
    targets: tuple[int, int] = (10, 100),
    rule: str = "exactly-once",
    operators: str = "+-*/",
    style: str | None = None,
    split: str = "train",
    seed: int = 42,
) -> Iterator["Row"]:
    """Generate *n* solvable puzzles; row *i* depends on *seed* and *i* alone.

    Args:
        sizes: counts of numbers, equally often, or with weights.
        numbers, targets: lowest and highest value.
        style: the response format, see ``docs/tasks.md``.
        split: "train", "valid" or "test". A set of numbers belongs to one split, whatever the other
            arguments are, so puzzles of "test" are held out from training on puzzles of "train".

    Raises:
        UsageError: an argument is out of range.
        InputError: fewer than *n* such puzzles exist.
    """
    from countdown_rl.data import build
    from countdown_rl.data.config import DataOptions
    from countdown_rl.tasks.registry import parse_row
    from countdown_rl.tasks.splits import SPLITS

    if split not in SPLITS:
        raise UsageError(f"split {split!r} is not one of: {', '.join(SPLITS)}.")
    weights = sizes if isinstance(sizes, Mapping) else dict.fromkeys(sizes, 1)
    options = {
        "n": max(3, 3 * n),  # of which one split is made
        "valid": n,
        "test": n,
        "size": [f"{size}={weight}" for size, weight in weights.items()],
        "numbers": "{}-{}".format(*numbers),
        "targets": "{}-{}".format(*targets),
        "rule": rule,
        "operators": operators,
        "style": style,
        "seed": seed,
    }
    rows = islice(build.generate(DataOptions.of(options), split), n)
    return (parse_row(row) for row in rows)


def read_rows(path: str | Path) -> list["Row"]:
    """Read and check the rows of a file, or of the test split of a data directory.

    Raises:
        InputError: the file is missing, or a line is no row; the message names the line.
    """
    from countdown_rl.tasks import jsonl

    return jsonl.read_rows(jsonl.test_file(Path(path)))


def load_model(
    model: str | Path, *, revision: str | None = None, precision: str = "auto", device: str = "auto"
) -> "Loaded":
    """Load a model and its tokenizer.

    Args:
        model: "countdown-tiny", a directory, a GGUF file or a Hub id.
        precision: "auto", "nf4", "bf16", "fp16" or "fp32".

    Raises:
        ModelError: it cannot be found or loaded.
    """
    from countdown_rl.models import load, reference

    return load.load_model(
        reference.find_model(str(model), revision=revision), precision=precision, device=device
    )


def __getattr__(name: str) -> Any:
    """Import a public name, or read ``__version__``, on first use."""
    if name in _MODULES:
        value: Any = getattr(import_module(f"countdown_rl.{_MODULES[name]}"), name)
    elif name == "__version__":
        from countdown_rl.core.packages import version

        value = version()
    else:
        raise AttributeError(f"module 'countdown_rl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""``countdown-rl gen-data``: Countdown puzzles as JSONL."""

from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.options import DataOptions

DEFAULT = DataOptions()


def gen_data(
    n: Annotated[int, typer.Option(min=1, help="Rows over all splits.")] = DEFAULT.n,
    seed: Annotated[int, typer.Option(min=0, help="Row i depends on this and i alone.")] = DEFAULT.seed,
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/data"),
) -> None:
    """Write Countdown puzzles as train.jsonl, valid.jsonl and test.jsonl."""
    raise NotImplementedError

"""Options of ``report``."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from countdown_rl.options import Options


@dataclass(frozen=True)
class ReportOptions(Options):
    """Length of the page."""

    transcripts: Annotated[int, Option(min=0, help="Puzzles whose completions are shown.")] = 24

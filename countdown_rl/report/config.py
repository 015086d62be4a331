"""Options of ``report``."""

from dataclasses import dataclass
from typing import Annotated

from countdown_rl.options import Options, option


@dataclass(frozen=True)
class ReportOptions(Options):
    """Length of the page."""

    transcripts: Annotated[int, option("Puzzles whose completions are shown.", min=0)] = 24

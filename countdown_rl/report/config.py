"""Options of ``report``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportOptions:
    """``report``: how much there is to read."""

    transcripts: int = 24

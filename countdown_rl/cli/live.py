"""What a person sees while a model learns: one calm block on a terminal, a few lines anywhere else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.runlog.log import StepRow

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


class Watch(Protocol):
    """Whoever is told of each step."""

    def __call__(self, row: StepRow) -> None: ...


@contextmanager
def watching(steps: int) -> Iterator[Watch]:
    """A callback for the steps of a run of *steps*: a live block on a terminal, else a line a minute."""
    view = _View(steps)
    if not console.people.is_terminal:
        yield view.lines
        return
    with Live(view.block(), console=console.people, transient=True, refresh_per_second=4) as live:

        def show(row: StepRow) -> None:
            view.take(row)
            live.update(view.block())

        yield show


class _View:
    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.first: int | None = None
        self.rows: list[StepRow] = []
        self.said = time.monotonic()

    def take(self, row: StepRow) -> None:
        self.first = self.first or row.step
        self.rows.append(row)

    def lines(self, row: StepRow) -> None:
        self.take(row)
        if time.monotonic() - self.said >= console.QUIET or row.step == self.steps:
            self.said = time.monotonic()
            recent = self._recent()
            left = "" if row.step == self.steps else f", {duration(self._left())} left"
            console.note(
                f"step {row.step}/{self.steps}: reward {recent['reward']:.3f}, "
                f"solved {recent['correct']:.0%}, {recent['length']:.0f} tokens{left}"
            )

    def block(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        step = self.rows[-1].step if self.rows else 0
        bar = ProgressBar(total=self.steps, completed=step, width=_WIDTH)
        if not self.rows:
            grid.add_row(Text("step", style="dim"), Text(f"0/{self.steps}"), bar, Text("first completions …", "dim"))
            return grid
        recent = self._recent()
        grid.add_row(
            Text("step", style="dim"),
            Text(f"{step}/{self.steps}"),
            bar,
            Text(f"{duration(self._left())} left", "dim"),
        )
        for name, label, text in (
            ("reward", "reward", f"{recent['reward']:.3f}"),
            ("correct", "solved", f"{recent['correct']:.0%}"),
            ("length", "length", f"{recent['length']:.0f} tokens"),
        ):
            line = Text(sparkline([getattr(row, name) for row in self.rows]), style="cyan")
            grid.add_row(Text(label, style="dim"), Text(text), line, Text(self._aside(name), "dim"))
        return grid

    def _aside(self, name: str) -> str:
        last = self.rows[-1]
        if name == "reward":
            return f"{last.dead_groups:.0%} of groups all alike"
        if name == "length":
            return f"{last.truncated:.0%} cut short"
        return ""

    def _recent(self) -> dict[str, float]:
        rows = self.rows[-10:]
        return {key: sum(getattr(row, key) for row in rows) / len(rows) for key in ("reward", "correct", "length")}

    def _left(self) -> float:
        rows = self.rows[-50:]
        return (self.steps - self.rows[-1].step) * sum(row.seconds for row in rows) / len(rows)


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """*values* as a line of block characters, each the mean of an equal part."""
    if not values:
        return ""
    cells = min(width, len(values))
    edges = [len(values) * cell // cells for cell in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1)) if span else 0] for mean in means)


def duration(seconds: float) -> str:
    """``45s``, ``3m 20s`` or ``2h 05m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"

"""Progress of a training run: a block of sparklines on a terminal, a line each minute elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.formatting import duration
from countdown_rl.runlog.log import StepRow

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


@contextmanager
def progress(max_steps: int) -> Iterator[Callable[[StepRow], None]]:
    """Yield a callback for the logged steps of a run."""
    rows: list[StepRow] = []
    last = time.monotonic()

    def print_line(row: StepRow) -> None:
        nonlocal last
        rows.append(row)
        if time.monotonic() - last >= console.INTERVAL or row.step == max_steps:
            last = time.monotonic()
            console.note(line(rows, max_steps))

    if not console.people.is_terminal:
        yield print_line
        return
    with Live(block(rows, max_steps), console=console.people, transient=True, refresh_per_second=4) as live:

        def show_block(row: StepRow) -> None:
            rows.append(row)
            live.update(block(rows, max_steps))

        yield show_block


def line(rows: list[StepRow], max_steps: int) -> str:
    """Return the state of a run in one line."""
    step = rows[-1].step
    left = "" if step == max_steps else f", {_time_left(rows, max_steps)} left"
    return (
        f"step {step}/{max_steps}: reward {_recent(rows, 'reward'):.3f}, solved {_recent(rows, 'correct'):.0%}, "
        f"{_recent(rows, 'mean_length'):.0f} tokens{left}"
    )


def block(rows: list[StepRow], max_steps: int) -> Table:
    """Return the state of a run as a bar over three sparklines."""
    grid = Table.grid(padding=(0, 2))
    step = rows[-1].step if rows else 0
    bar = ProgressBar(total=max_steps, completed=step, width=_WIDTH)
    left = f"{_time_left(rows, max_steps)} left" if rows else "first completions …"
    grid.add_row(Text("step", "dim"), f"{step}/{max_steps}", bar, Text(left, "dim"))
    if not rows:
        return grid
    for name, label, figure, detail in (
        ("reward", "reward", "{:.3f}", f"{rows[-1].frac_reward_zero_std:.0%} of groups with equal rewards"),
        ("correct", "solved", "{:.0%}", ""),
        ("mean_length", "length", "{:.0f} tokens", f"{rows[-1].truncated:.0%} truncated"),
    ):
        curve = Text(sparkline([getattr(row, name) for row in rows]), "cyan")
        grid.add_row(Text(label, "dim"), figure.format(_recent(rows, name)), curve, Text(detail, "dim"))
    return grid


def _recent(rows: list[StepRow], name: str) -> float:
    return sum(getattr(row, name) for row in rows[-10:]) / len(rows[-10:])


def _time_left(rows: list[StepRow], max_steps: int) -> str:
    recent = rows[-50:]
    return duration((max_steps - rows[-1].step) * sum(row.seconds for row in recent) / len(recent))


def sparkline(values: list[float]) -> str:
    """Return *values* as block characters, each the mean of an equal part."""
    cells = min(_WIDTH, len(values))
    edges = [len(values) * cell // cells for cell in range(cells + 1)] if cells else []
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, span = min(means, default=0), max(means, default=0) - min(means, default=0)
    return "".join(_BARS[round((mean - low) / span * (len(_BARS) - 1)) if span else 0] for mean in means)

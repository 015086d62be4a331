"""The only printer: data goes to stdout, text for people to stderr, without markup, control
characters as escapes.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from countdown_rl.core.formatting import duration, printable
from countdown_rl.core.types import Record

#: Seconds between two lines of progress, and before the first, if stderr is not a terminal.
INTERVAL, FIRST = 60.0, 8.0


class Printer(Console):
    """A console that prints control characters as escapes."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # Rich would exit with status 1


people = Printer(stderr=True, highlight=False, markup=False, emoji=False)
_out = Printer(highlight=False, markup=False, emoji=False, soft_wrap=True)
#: True if the command got ``--json``.
as_json = False


def silence() -> None:
    """Print nothing from now on, in processes other than rank 0."""
    people.quiet = _out.quiet = True


def data(text: str) -> None:
    """Print one line of data to stdout, exactly as it is."""
    if not _out.quiet:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()  # a closed pipe is noticed here


def result(values: Record, view: RenderableType | None = None) -> None:
    """Print the result of a command: with ``--json`` one JSON object, else *view* for a person."""
    if as_json:
        data(json.dumps(values, sort_keys=True))
    elif view is not None:
        _out.print(Text(view) if isinstance(view, str) else view)


def table(*heads: str, title: str | None = None) -> Table:
    """Return an empty table whose first column is names and whose others are numbers."""
    grid = Table(
        box=None, pad_edge=False, title=title, title_justify="left", caption_justify="left"
    )
    for index, head in enumerate(heads):
        grid.add_column(head, justify="right" if index else "left", overflow="fold")
    return grid


def stream(text: str) -> None:
    """Print a piece of a completion to stdout at once."""
    _out.print(Text(text, "dim"), end="")


def done(text: str, following: str = "") -> None:
    """Print the last line of a command: what it did, and the command that usually follows."""
    if following:
        text += f" Next: {following}"
    note(text)


def note(text: str) -> None:
    people.print(Text(text), soft_wrap=True)


def warn(text: str) -> None:
    people.print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


def failure(sentence: str) -> None:
    people.print(Text.assemble(("error: ", "bold red"), sentence), soft_wrap=True)


@contextmanager
def progress(description: str) -> Iterator[Callable[..., None]]:
    """Show progress: a bar, or a line each minute if stderr is not a terminal. Update it with
    (done, total, detail).
    """
    due = time.monotonic() + FIRST
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        "{task.fields[detail]}",
        TimeRemainingColumn(),
    )
    bar = Progress(
        TextColumn("{task.description}", style="dim", markup=False),
        *columns,
        console=people,
        speed_estimate_period=600,  # steps of large models take minutes; what was done at first does not count
        transient=True,
        disable=not people.is_interactive,
    )
    with bar:
        bar.add_task(description, total=None, detail="")
        (task,) = bar.tasks

        def update(done: int, total: int, detail: str = "") -> None:
            nonlocal due
            bar.update(task.id, completed=done, total=total, detail=detail)
            if not people.is_interactive and time.monotonic() >= due:
                due = time.monotonic() + INTERVAL
                left = f"{duration(task.time_remaining)} left" if task.time_remaining else ""
                parts = (f"{description}: {done:,} of {total:,}", detail, left)
                note(", ".join(filter(None, parts)))

        yield update

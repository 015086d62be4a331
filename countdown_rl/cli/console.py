"""The only printer: data goes to stdout, everything for people to stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from countdown_rl.text import plain

__all__ = ["busy", "data", "failure", "note", "people", "plain", "result", "solving", "stream", "warming", "warn"]

#: Seconds between two lines where there is no terminal.
QUIET = 60.0

people = Console(stderr=True, highlight=False)
_out = Console(highlight=False, markup=False, soft_wrap=True)


def hush() -> None:
    """Say nothing from now on: another process speaks."""
    people.quiet = _out.quiet = True


def data(text: str) -> None:
    """One line of data to stdout, exactly as it is."""
    if not _out.quiet:
        sys.stdout.write(text + "\n")


def result(values: Mapping[str, Any], *, as_json: bool, view: RenderableType | None = None) -> None:
    """What a command ends with: one JSON object on stdout with ``--json``, else *view* for a person."""
    if as_json:
        data(json.dumps(values, ensure_ascii=False, sort_keys=True))
    elif view is not None:
        _out.print(view)


def stream(text: str) -> None:
    """A piece of what a model is writing, to stdout at once."""
    _out.print(Text(plain(text), style="dim"), end="")


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Says *what* is going on while a terminal waits."""
    if not people.is_terminal:
        yield
        return
    with people.status(f"[dim]{_escape(what)}[/]"):
        yield


def note(text: str) -> None:
    """A line for the person watching."""
    people.print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Something the person should know, though the work goes on."""
    people.print(f"[yellow]warning:[/] {_escape(text)}", soft_wrap=True)


def failure(sentence: str) -> None:
    """Why it could not be done, and what to do."""
    people.print(f"[bold red]error:[/] {_escape(sentence)}", soft_wrap=True)


@contextmanager
def warming() -> Iterator[Callable[[int, int, float], None]]:
    """Shows (step, steps, loss) as it is called with them."""
    with _bar("training") as show:
        yield lambda step, total, loss: show(step, total, f"loss {loss:.3f}")


@contextmanager
def solving() -> Iterator[Callable[[int, int, int], None]]:
    """Shows (done, all, solved) as it is called with them: how many a second, and the share solved so far.

    What the first call finds done was done before.
    """
    begin: tuple[float, int] | None = None

    def text(done: int, solved: int) -> str:
        nonlocal begin
        now = time.monotonic()
        if begin is None:
            begin = now, done
        since, before = begin
        share = f"{solved / done:.1%} solved" if done else ""
        return f"{share}, {(done - before) / (now - since):.0f}/s" if done > before else share

    with _bar("solving") as show:
        yield lambda done, total, solved: show(done, total, text(done, solved))


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar that goes when the work is done; where there is no terminal, a line a minute.

    It shows (done, all, aside) as it is called with them.
    """
    columns = (
        TextColumn("{task.description}", style="dim"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[aside]}"),
        TimeRemainingColumn(),
    )
    said = time.monotonic()
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal) as progress:
        task = progress.add_task(what, total=None, aside="")

        def show(done: int, total: int, aside: str) -> None:
            nonlocal said
            progress.update(task, completed=done, total=total, aside=aside)
            if not people.is_terminal and time.monotonic() - said >= QUIET:
                said = time.monotonic()
                note(f"{what}: {done:,} of {total:,}, {aside}")

        yield show


def _escape(text: str) -> str:
    return text.replace("[", r"\[")

"""The only printer: data goes to stdout, everything for people to stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

people = Console(stderr=True, highlight=False)
_out = Console(highlight=False, soft_wrap=True)


def data(text: str) -> None:
    """One line of data to stdout, exactly as it is."""
    sys.stdout.write(text + "\n")


def result(values: Mapping[str, Any], *, as_json: bool, view: RenderableType | None = None) -> None:
    """What a command ends with: one JSON object on stdout with ``--json``, else *view* for a person."""
    if as_json:
        data(json.dumps(values, ensure_ascii=False, sort_keys=True))
    elif view is not None:
        _out.print(view)


def note(text: str) -> None:
    """A line for the person watching."""
    people.print(text, markup=False)


def warn(text: str) -> None:
    """Something the person should know, though the work goes on."""
    people.print(f"[yellow]warning:[/] {_escape(text)}")


def failure(sentence: str) -> None:
    """Why it could not be done, and what to do."""
    people.print(f"[bold red]error:[/] {_escape(sentence)}", soft_wrap=True)


@contextmanager
def steps(what: str) -> Iterator[Callable[[int, int, float], None]]:
    """A progress bar on a terminal, nothing elsewhere: call what is yielded with (step, steps, loss)."""
    columns = (
        TextColumn("{task.description}", style="dim"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal) as progress:
        task = progress.add_task(what, total=None, loss=float("nan"))

        def advance(step: int, total: int, loss: float) -> None:
            progress.update(task, completed=step, total=total, loss=loss)

        yield advance


@contextmanager
def solving() -> Iterator[Callable[[int, int, int], None]]:
    """A progress bar with rate and running accuracy: call what is yielded with (done, all, solved)."""
    columns = (
        TextColumn("solving", style="dim"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[share]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=people, transient=True, disable=not people.is_terminal) as progress:
        task = progress.add_task("", total=None, share="")

        def advance(done: int, total: int, solved: int) -> None:
            rate = f", {progress.tasks[task].speed:.0f}/s" if progress.tasks[task].speed else ""
            progress.update(task, completed=done, total=total, share=f"{solved / done:.1%} solved{rate}")

        yield advance


def _escape(text: str) -> str:
    return text.replace("[", r"\[")

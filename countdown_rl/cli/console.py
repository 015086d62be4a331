"""The only printer: data goes to stdout, everything for people to stderr."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console, RenderableType

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


def _escape(text: str) -> str:
    return text.replace("[", r"\[")

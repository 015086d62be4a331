"""Plain help pages: options and commands in panels, nothing cut in a narrow terminal, and examples at the end."""

import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Panels:
    """Lists options and commands under the headings that their declarations name."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                panel = param.rich_help_panel or ("Arguments" if param.param_type_name == "argument" else "Options")
                flags = record[0].replace(" range>", ">").replace("<list[", "<").replace("]>", ">")
                panels.setdefault(panel, []).append((flags, record[1]))
        for name, command in getattr(self, "commands", {}).items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.help))
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class Command(_Panels, TyperCommand):
    """A command whose help has panels."""


class CommandGroup(_Panels, TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run a command; if the reader of stdout has exited, as ``head`` does, end with status 0."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def as_command(name: str, function: Callable[..., Any]) -> Command:
    """Return the command of *function*, whose docstring may end with a section ``Examples:``, kept as it is."""
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\nExamples:\n")
    epilog = f"\b\nExamples:\n{textwrap.dedent(examples)}" if examples else None  # after \b lines are kept
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command, help=text, epilog=epilog)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]

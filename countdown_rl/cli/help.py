"""Plain help pages, with panels and examples, and hints for flags that have another name here."""

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from countdown_rl.cli import config
from countdown_rl.core import formatting
from countdown_rl.core.options import OTHER_NAMES


class _Panels:
    """Lists options and commands under the headings that their declarations name, on narrow terminals too."""

    def get_help(self: Any, ctx: Any) -> str:
        ctx.terminal_width = max(
            min(shutil.get_terminal_size().columns, 80) - 2, 20
        )  # Click's own least is 50
        return super().get_help(ctx)  # type: ignore[misc]

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                panel = param.rich_help_panel or (
                    "Arguments" if param.param_type_name == "argument" else "Options"
                )
                flags = re.sub(r" range(?=>)|list\[|\](?=>)", "", record[0]).replace(
                    "<Path>", "<path>"
                )
                panels.setdefault(panel, []).append((flags, record[1]))
        for name, command in getattr(self, "commands", {}).items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.help))
        for heading, rows in panels.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(
                        rows, col_max=30 if formatter.width > 60 else 4
                    )  # the text gets its own lines


class Command(_Panels, TyperCommand):
    """A command whose help has panels, and which knows the names that its flags have elsewhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {flag for param in self.params for flag in (*param.opts, *param.secondary_opts)}
        for flag in {word.partition("=")[0] for word in args if word.startswith("--")} - flags:
            others = OTHER_NAMES.get(flag.removeprefix("--").replace("-", "_"), ())
            if name := next((name for name in map(formatting.flag, others) if name in flags), None):
                ctx.fail(f"No such option: {flag}. Use {name}.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        config.save(ctx)
        return super().invoke(ctx)


class CommandGroup(_Panels, TyperGroup):
    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _reader_may_exit():  # of --help and --version
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _reader_may_exit():
            return super().invoke(ctx)


@contextmanager
def _reader_may_exit() -> Iterator[None]:
    """End with status 0 if the reader of stdout has exited, as ``head`` does."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def as_command(name: str, function: Callable[..., Any]) -> Command:
    """Return the command of *function*, whose docstring may end with a section ``Examples:``, kept as it is."""
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\nExamples:\n")
    epilog = (
        f"\b\nExamples:\n{textwrap.dedent(examples)}" if examples else None
    )  # after \b lines are kept
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command, help=text, epilog=epilog)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]

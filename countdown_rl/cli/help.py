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

from countdown_rl.cli.names import hint

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


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
        for word in args:
            flag = word.partition("=")[0]
            if (
                flag.startswith("--")
                and flag not in flags
                and (advice := hint(flag[2:].replace("_", "-"), flags))
            ):
                ctx.fail(f"No such option: {flag}; {advice}")
        rest = super().parse_args(ctx, args)
        if ctx.args:
            needed = [flag for flag in ("--adapter", "--model") if flag in flags]
            advice = f"give {needed[0]} {ctx.args[0]}" if needed else "give it with its option"
            ctx.fail(f"Unexpected argument: {ctx.args[0]}; {advice}.")
        return rest


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
    settings = {**HELP_OPTIONS, "allow_extra_args": True}  # to say which option they need
    single.command(name, cls=Command, help=text, epilog=epilog, context_settings=settings)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]

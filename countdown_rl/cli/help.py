"""Plain help pages, with panels and examples, and advice on unknown options."""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from countdown_rl.cli.names import advice

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
#: Parts of the metavar of a bounded number and of a list.
_NOISE = re.compile(r" range(?=>)|list\[|\](?=>)")


class _Panels:
    """Lists options and commands below headings."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            heading = param.rich_help_panel or f"{param.param_type_name}s".title()
            flags = _NOISE.sub("", record[0]).replace("<Path>", "<path>")
            panels.setdefault(heading, []).append((flags, record[1]))
        for name, command in getattr(self, "commands", {}).items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.help))

        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=30)


class Command(_Panels, TyperCommand):
    """A command that gives advice on unknown options and unexpected arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {"--help"}
        for param in self.params:
            flags.update(param.opts, param.secondary_opts)
        for word in args:
            flag = word.partition("=")[0]
            if re.match("--[a-z]", flag) and flag not in flags:
                name = flag[2:].replace("_", "-")
                ctx.fail(f"No such option: {flag}; {advice(name, flags)}")
        rest = super().parse_args(ctx, args)
        if ctx.args:
            models = [flag for flag in ("--adapter", "--model") if flag in flags]
            option = f"{models[0]} {ctx.args[0]}" if models else "it with its option"
            ctx.fail(f"Unexpected argument: {ctx.args[0]}; give {option}.")
        return rest


class CommandGroup(_Panels, TyperGroup):
    """The list of commands."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _reader_may_exit():  # of --help and --version
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _reader_may_exit():
            return super().invoke(ctx)


@contextmanager
def _reader_may_exit() -> Iterator[None]:
    """Exit with status 0 if the reader of stdout has exited, as ``head`` does."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def as_command(name: str, function: Callable[..., None]) -> Command:
    """Return the command of *function*, whose docstring may end with a section ``Examples:``."""
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\nExamples:\n")
    examples = f"\b\nExamples:\n{textwrap.dedent(examples)}"  # after \b lines are kept
    settings = {**HELP_OPTIONS, "allow_extra_args": True}  # to say which option they need

    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    add = single.command(name, cls=Command, help=text, epilog=examples, context_settings=settings)
    add(function)
    return typer.main.get_command(single)  # type: ignore[return-value]

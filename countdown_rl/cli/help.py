"""Plain help pages: options and commands in panels, never cut at 80 columns, and examples set apart at the end."""

import inspect
import re
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

_EXAMPLES = "\nExamples:\n"


class Command(TyperCommand):
    """Command whose docstring may end with a section ``Examples:``, which is printed as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args*; an error does not name the class of pydantic's exception."""
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring without its examples."""
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(inspect.cleandoc(self.help or "").partition(_EXAMPLES)[0])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a definition list per panel."""
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        examples = inspect.cleandoc(inspect.cleandoc(self.help or "").partition(_EXAMPLES)[2])
        if examples:
            with formatter.section("Examples"):
                for line in examples.splitlines():
                    formatter.write(f"  {line}\n" if line else "\n")


class Group(TyperGroup):
    """List of the commands in panels, each with one line of help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a definition list per panel, of the options and then of the commands."""
        _write_options(self, ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.help or ""))  # type: ignore[attr-defined]
        _write(panels, formatter)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if (record := param.get_help_record(ctx)) is not None:
            flags, text = re.sub(r"<list\[(.*)\]>|<(\w+) range>", r"<\1\2>", record[0]), record[1]
            flags = flags.replace("<Path>", "<path>")
            if len(flags) > formatter.width - 2:  # so many choices are listed with the text
                flags, _, choices = flags.partition(" <")
                text = f"{text} <{choices}".replace("|", " | ")
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            panels.setdefault(param.rich_help_panel or default, []).append((flags, text))
    _write(panels, formatter)


def _write(panels: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    for heading, rows in panels.items():
        with formatter.section(heading):
            formatter.write_dl(rows)

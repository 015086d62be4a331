"""Prompts, also from Jinja templates of the user's own.

The block ``user`` of a template is the user turn, ``system`` the system turn, and ``assistant`` the
prefill, from which the model continues. A template without blocks is a user turn.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import StrictUndefined, Template, UndefinedError
from jinja2.debug import rewrite_traceback_stack
from jinja2.sandbox import ImmutableSandboxedEnvironment

from countdown_rl.core.errors import InputError, first_line
from countdown_rl.core.types import Record

_TURNS = ("system", "user", "assistant")


@dataclass(frozen=True)
class Prompt:
    """What a model is asked: a user turn, a system turn ("" for none), and the beginning of the
    model's answer.
    """

    user: str
    system: str = ""
    prefill: str = ""

    def turns(self) -> list[dict[str, str]]:
        """The system and the user turn, for endpoints that continue no assistant turn."""
        turns = [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]
        return turns if self.system else turns[1:]

    def messages(self) -> list[dict[str, str]]:
        """The turns, and the prefill as an assistant turn where there is one."""
        turns = self.turns()
        if self.prefill:
            turns.append({"role": "assistant", "content": self.prefill})
        return turns

    def missing(self, parts: Iterable[str]) -> list[str]:
        """Those of *parts* that the user turn does not contain as separate words; repeated parts
        count each time.
        """
        text = self.user
        absent = []
        for part in parts:
            text, count = re.subn(rf"(?<!\w){re.escape(part)}(?!\w)", " ", text, count=1)
            if not count:
                absent.append(part)
        return absent


def from_template(template: str, fields: Record) -> Prompt:
    """The prompt of *template* for a row of *fields*.

    Only the user turn may use fields: the chat template of an exported model contains the others.
    Raises InputError if the template cannot be compiled or rendered, or has no user turn.
    """
    return Prompt(
        _render(template, "user", fields), _render(template, "system", {}), prefill_of(template)
    )


def prefill_of(template: str) -> str:
    """The beginning of the answer in *template*, or ""."""
    return _render(template, "assistant", {})


def _render(template: str, role: str, fields: Record) -> str:
    """The text of the turn *role* of *template*, or ""."""
    try:
        compiled = _compiled(template)
        blocks = compiled.blocks or {"user": compiled.root_render_func}
        if "user" not in blocks or blocks.keys() - {*_TURNS}:
            raise InputError(f"it has the blocks {', '.join(blocks)}; use {', '.join(_TURNS)}")
        if role not in blocks:
            return ""
        return "".join(blocks[role](compiled.new_context(dict(fields)))).strip()
    except Exception as error:  # a template is a program
        fault = f"the template cannot be rendered: {first_line(error)}"
        if isinstance(error, UndefinedError):
            fault += f"; it has {', '.join(fields) or 'no fields'}"
        raise InputError(fault) from rewrite_traceback_stack()  # with the lines of the template


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.clear()
    del environment.filters["random"]  # the same row has the same prompt
    return environment.from_string(template)

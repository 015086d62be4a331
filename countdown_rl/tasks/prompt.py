"""Prompts of the user's own: Jinja templates with the fields of a row.

The block ``user`` of a template is the user turn, ``system`` the system turn, and ``assistant`` the turn that the model
continues. A template without blocks is a user turn.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from countdown_rl.errors import InputError
from countdown_rl.tasks import limited
from countdown_rl.tasks.limited import LimitError

_TURNS = ("system", "user", "assistant")


def messages(template: str, fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """The turns of *template* for a row of *fields*, in the order of a conversation.

    Only the user turn may use fields: the chat template of an exported model contains the others.

    Raises:
        InputError: the template cannot be compiled or rendered, or it has no user turn.
    """
    try:
        turns: list[dict[str, str]] = limited.call(f"{__name__}:render", template, dict(fields))
    except (InputError, LimitError) as error:
        raise InputError(f"the template cannot be rendered: {str(error).rstrip('.')}") from error
    return turns


def render(template: str, fields: Mapping[str, Any]) -> list[dict[str, str]]:
    """The turns of *template* as :func:`messages` returns them, rendered in this process."""
    compiled = _compiled(template)
    blocks = compiled.blocks or {"user": compiled.root_render_func}
    if "user" not in blocks or blocks.keys() - {*_TURNS}:
        raise ValueError(f"it has the blocks {', '.join(blocks)}; take {', '.join(_TURNS)}")
    turns = []
    for role in (role for role in _TURNS if role in blocks):
        context = compiled.new_context(dict(fields) if role == "user" else {})
        turns.append({"role": role, "content": "".join(blocks[role](context)).strip()})
    return turns


def missing(text: str, parts: Iterable[str]) -> list[str]:
    """Those of *parts* that are not in *text* as words of their own, each as often as it is given."""
    absent = []
    for part in parts:
        text, found = re.subn(rf"(?<!\w){re.escape(part)}(?!\w)", " ", text, count=1)
        if not found:
            absent.append(part)
    return absent


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.clear()
    return environment.from_string(template)

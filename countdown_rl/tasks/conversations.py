"""Prompts and completions in records of other projects by field names; conversations may be JSON or Python text."""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.response_format import Style

#: Fields that hold completions, prompts and conversations.
COMPLETIONS = ("completion", "response", "output", "completions", "responses", "outputs", "choices")
#: The preferred completion of a pair and the other one, in TRL and in the code of DPO courses.
PAIRS = {"chosen": "rejected", "response_w": "response_l"}
PROMPTS = ("prompt", "query", "instruction", "input")
CONVERSATIONS = ("messages", "conversations", "conversation", "message_log")
#: Fields beside a content that hold its reasoning, by server; in some data they hold its effort instead.
REASONING = ("reasoning_content", "reasoning", "thinking")
_EFFORTS = ("on", "off", "true", "false", "none", "minimal", "low", "medium", "high", True)
SYSTEM = ("system", "system_prompt")

_ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user"}
_ROLES |= dict.fromkeys(("assistant", "gpt", "model"), "assistant")
#: Fields that make up the prompts of Alpaca and Dolly.
_INSTRUCTIONS = ("instruction", "input", "context")
_EMPTY: tuple[Any, ...] = (None, "", [], {})
#: Keys of a turn, and those of a choice in a response that may hold one.
_TURN, _CHOICE = ("role", "from"), ("message", "text")
#: The beginning of messages as text; pandas writes those of an array without commas, which nothing can read.
_MESSAGES = re.compile(r"""\[\s*\{\s*["'](role|from|content|value)["']\s*:""").match


def given(record: Mapping[str, Any]) -> set[str]:
    """The names of the fields of *record* that hold anything."""
    return {name for name, value in record.items() if value not in _EMPTY}


def decoded(text: Any) -> Any:
    """The list or mapping that *text* stands for, in the notation of JSON or Python; else *text*."""
    if not isinstance(text, str) or text.lstrip()[:1] not in ("[", "{"):
        return text
    for load in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return load(text.strip())
    return text


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation; the reasoning is what a server returns beside the content."""

    role: str
    content: str
    reasoning: str = ""

    def text(self, style: Style) -> str:
        """The turn as one text in the layout of *style*."""
        if self.reasoning and f"</{style.tag}>" in self.content:
            raise InputError(
                f"there is reasoning in the content, before </{style.tag}>, and beside it"
            )
        return style.completion(self.content, self.reasoning, closed=bool(self.content))


@dataclass(frozen=True)
class Exchange:
    """A prompt, as text that was rendered or as messages, and its completion."""

    prompt: str | list[dict[str, str]] | None  # None if the record has none
    completion: Turn
    names: tuple[str, ...]  # the fields they are from
    note: str  # the same as a sentence, if these are not TRL's

    def question(self, *roles: str) -> str | None:
        """The prompt that is text, or its turns of the *roles*; None if there is no prompt."""
        if not isinstance(self.prompt, list):
            return self.prompt
        return "\n".join(turn["content"] for turn in self.prompt if turn["role"] in roles)


def split(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record for each completion in *record*, with its name unchanged."""
    name = _completion_name(record)
    value = record[name] if name else None
    if isinstance(value, Mapping) and not value.keys() & {
        *_TURN,
        *_CHOICE,
    }:  # a server's response, or a batch's
        body = value.get("body", value)
        value = body.get("choices") if isinstance(body, Mapping) else None
        if not isinstance(value, list) or not value:
            raise InputError(
                f"`{name}` has no `choices`, as the chat and text completions APIs return"
            )
    items = decoded(value)
    if value is not items and not (
        name != "completion" and items and all(isinstance(item, str) for item in items)
    ):
        return [dict(record)]  # a text in brackets
    if (
        name is None
        or not isinstance(items, list | tuple)
        or (_is_conversation(items) and name != "choices")
    ):
        return [dict(record)]
    if not items:
        raise InputError(f"`{name}` is an empty list")
    return [{**record, name: item} for item in items]


def _completion_name(record: Mapping[str, Any]) -> str | None:
    names = [name for name in COMPLETIONS if record.get(name) is not None]
    if not names and not _conversation(record):
        names = [
            name
            for name, other in PAIRS.items()
            if None not in (record.get(name), record.get(other))
        ]
    if len(names) > 1:
        raise InputError(
            f"the completion may be `{names[0]}` or `{names[1]}`; leave one of them out"
        )
    return names[0] if names else None


def completion(record: Mapping[str, Any]) -> Turn | None:
    """The only completion in *record*: its own, else the last turn of a conversation if it is the assistant's."""
    name = _completion_name(record)
    if name is None:
        conversation = _conversation(record)
        return conversation[-1] if conversation and conversation[-1].role == "assistant" else None
    value = record[name]
    if isinstance(value, Mapping) and value.keys() & set(_CHOICE):
        choice = next((value[key] for key in _CHOICE if value.get(key) is not None), "")
        value = {"role": "assistant", "content": choice} if isinstance(choice, str) else choice
    turns = _content(value)
    if isinstance(turns, str):
        return Turn("assistant", turns, _reasoning(record))
    if len(turns) != 1 or turns[0].role != "assistant":
        raise InputError("the completion should be one turn of the assistant")
    return turns[0]


def exchange(record: Mapping[str, Any]) -> Exchange | None:
    """The prompt, if there is one, and the only completion in *record*; None without a completion."""
    for key in ("tools", "history", "images"):
        if decoded(record.get(key)) not in _EMPTY:
            raise InputError(f"`{key}` would change the prompt and is not used")
    for key in (
        "label",
        "labels",
        "kto_tag",
    ):  # of TRL's KTO and stepwise supervision, and of LLaMA-Factory
        if (label := record.get(key)) is False or (isinstance(label, list) and False in label):
            raise InputError(
                f"`{key}` says that the completion is wrong, and it would be learned; leave such rows out"
            )
    answer = completion(record)
    if answer is None:
        return None
    fields, answered = given(record), _completion_name(record)
    prompt, names = _prompt(record, fields, answered)
    if prompt is not None and (system := next((key for key in SYSTEM if key in fields), None)):
        if isinstance(prompt, str) or prompt[0].role == "system":
            raise InputError(
                f"there are a prompt with its own system turn and `{system}`; leave one out"
            )
        prompt, names = [Turn("system", str(record[system])), *prompt], (*names, system)
    beside = (
        [key for key in REASONING if record.get(key) not in _EFFORTS] if answer.reasoning else []
    )
    used = tuple(key for key in (*names, answered, *beside) if key in fields)
    note = (
        ""
        if set(used) <= {"prompt", "completion", "messages"}
        else f"demonstrations from {', '.join(used)}"
    )
    if not isinstance(prompt, list):
        return Exchange(prompt, answer, used, note)
    roles = [turn.role for turn in prompt]
    if "system" in roles[1:] or "user" not in roles:
        raise InputError(
            "the prompt has no turn of the user, or a turn of the system that is not the first one"
        )
    if any(turn.reasoning for turn in prompt):
        raise InputError(
            "the reasoning of an earlier turn is not used; leave it out, or put it into the content"
        )
    return Exchange(
        [{"role": turn.role, "content": turn.content} for turn in prompt], answer, used, note
    )


def _prompt(
    record: Mapping[str, Any], fields: set[str], answered: str | None
) -> tuple[str | list[Turn] | None, tuple[str, ...]]:
    """The prompt in *record* and its fields; the completion is in the field *answered* or ends a conversation."""
    source = next((key for key in PROMPTS if key in fields), None) if answered else None
    if source == "instruction":
        texts = [str(record[key]) for key in _INSTRUCTIONS if key in fields]
        return [Turn("user", "\n\n".join(texts))], _INSTRUCTIONS
    if source:
        return _content(record[source]), (source,)
    conversation = _conversation(record)
    if not conversation:
        return None, ()
    if answered and conversation[-1].role == "assistant":
        raise InputError(
            f"the completion may be `{answered}` or the last turn of the conversation; leave one out"
        )
    prompt = conversation if answered else conversation[:-1]
    if prompt and prompt[-1].role == "assistant":
        raise InputError("the conversation ends in two turns of the assistant")
    return prompt, tuple(key for key in (*CONVERSATIONS, "body") if key in fields)


def _conversation(record: Mapping[str, Any]) -> list[Turn]:
    """The turns of the conversation in *record* or in the request of an OpenAI batch; [] if there is none."""
    body = record.get("body")
    holders = (record, body if isinstance(body, Mapping) else {})
    value = next(
        (part[key] for part in holders for key in CONVERSATIONS if part.get(key) not in _EMPTY),
        None,
    )
    turns = [] if value is None else _content(value)
    if isinstance(turns, str):
        raise InputError("messages should be a list of turns")
    return turns


def _content(value: Any) -> str | list[Turn]:
    """A text, or the turns of a conversation, as messages of OpenAI or ShareGPT, also written as text."""
    if isinstance(value, str):
        if not _is_conversation(decoded(value)):
            if _MESSAGES(value):
                raise InputError(
                    "there are messages as text that cannot be read; write them as JSON"
                )
            return value
        value = decoded(value)
    if isinstance(value, Mapping):
        value = [value]
    if {type(part) for part in (value if isinstance(value, list | tuple) else [value])} & {
        int,
        float,
    }:
        raise InputError(
            "numbers are not read as text; decode token ids, and put other numbers in quotes"
        )
    if not isinstance(value, list | tuple) or not value:
        raise InputError("messages should be a list of turns")
    return list(map(_turn, value))


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value.keys() & set(_TURN))


def _is_conversation(value: Any) -> bool:
    return _is_turn(value) or (
        isinstance(value, list) and bool(value) and all(map(_is_turn, value))
    )


def _turn(turn: Any) -> Turn:
    fields = (
        {name: value for name, value in turn.items() if value not in _EMPTY}
        if _is_turn(turn)
        else {}
    )
    role = _ROLES.get(str(fields.pop("role", fields.pop("from", None))))
    content = fields.pop("content", fields.pop("value", ""))
    reasoning = _reasoning(fields)
    if isinstance(content, list):
        texts: dict[bool, str] = {True: "", False: ""}  # reasoning and the rest
        for part in content:
            fields_of_part = part if isinstance(part, Mapping) else {"text": part}
            kind = fields_of_part.get("type")
            text = fields_of_part.get("thinking" if kind == "thinking" else "text")
            if kind not in (
                None,
                "text",
                "thinking",
                "output_text",
                "input_text",
            ) or not isinstance(text, str):
                raise InputError(f"a turn has a part of type {kind}, not text")
            texts[kind == "thinking"] += text
        content, reasoning = texts[False], reasoning or texts[True]
    # A model may write nothing, and a system turn may be empty.
    may_be_empty = role != "user" and _is_turn(turn) and turn.keys() & {"content", "value"}
    if role is None or not isinstance(content, str) or not (content or reasoning or may_be_empty):
        raise InputError(
            "a turn should have `role` (system, user or assistant) and `content`, both text"
        )
    if unused := sorted(fields.keys() - set(REASONING)):
        raise InputError(
            f"a turn has `{unused[0]}`, which is not used; leave such rows or fields out"
        )
    return Turn(role, content, reasoning)


def _reasoning(fields: Mapping[str, Any]) -> str:
    """The reasoning beside a content, under any of its names."""
    values = [value for name in REASONING if (value := fields.get(name)) and value not in _EFFORTS]
    if any(not isinstance(value, str) or value != values[0] for value in values):
        raise InputError(f"the reasoning should be one text in one of {', '.join(REASONING)}")
    return values[0] if values else ""

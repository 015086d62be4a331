"""Find rows, prompts and completions in the records of other projects by the names of their fields.

The fields of a row may be in a mapping inside of a record, as in verl (``reward_model.ground_truth``), reasoning-gym
(``metadata``) and verifiers (``info``), or be a row's id in ``custom_id`` (OpenAI batches). Mappings and conversations
may be text in the notation of JSON or Python.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import registry
from countdown_rl.tasks.response_format import Style
from countdown_rl.tasks.task import Row, Task

#: Fields that hold completions, prompts and conversations.
COMPLETIONS = ("completion", "response", "output", "completions", "responses", "outputs", "choices")
#: The preferred completion of a pair and the other one, in TRL and in the code of DPO courses.
PAIRS = {"chosen": "rejected", "response_w": "response_l"}
PROMPTS = ("prompt", "query", "instruction", "input")
CONVERSATIONS = ("messages", "conversations")
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
#: Names of splits that are not for training, as ``datasets`` finds them and as people write them (testmini, dev2).
_TEST = re.compile(r"(?<![a-z])(test|eval|held.?out|hold.?out|bench)")
_VALID = re.compile(r"(?<![a-z])(validation|valid|val|dev|devel|development)(sets?)?(?![a-z])")


class NoRowError(InputError):
    """A record has no row of a task."""


@dataclass(frozen=True)
class Match:
    """A task's row in a record.

    Attributes:
        note: where the row was; "" if its fields are those of the record.
        unused: names of the record's fields that the task does not know.
    """

    row: Row
    note: str
    unused: set[str]


def search(record: Mapping[str, Any]) -> Match | None:
    """The row in *record*; None if there is none. Raises InputError if there are two that differ."""
    with suppress(NoRowError):
        return find_row(record)
    return None


def find_row(record: Mapping[str, Any], published_as: Task | None = None) -> Match:
    """The row in *record*: of the task *published_as*, else of the one that it names or resembles.

    Raises:
        NoRowError: there is none.
        InputError: there are two that differ.
    """
    fields = _without_empty(record)
    tasks = [published_as] if published_as else _tasks(fields)
    names = [name for task in tasks if (name := task.row.of_id(fields.get("custom_id")))]
    matches: list[tuple[str, Row]] = []
    faults: list[tuple[Task, InputError]] = []
    for path, inner in (*_mappings(fields), *(("custom_id", name) for name in names)):
        for task in tasks:
            try:
                row = _read(task, inner, published_as is not None)
            except InputError as error:
                faults += [] if path else [(task, error)]
            else:
                matches.append((path, _around(task, row, fields if path else {})))
                break
    if not matches:
        near = [str(error) for task, error in faults if task.example.keys() & fields.keys()]
        every = " and ".join(f"no {task.noun} ({error})" for task, error in faults)
        raise NoRowError(near[0] if len(near) == 1 else f"it is {every}")
    path, row = matches[0]
    task = registry.task(row.task)
    for other, same in matches[1:]:
        if same.task == row.task and same.id != row.id:
            raise InputError(f"it has two {task.noun}s, {row.headline} and, in `{other}`, {same.headline}")
    if (split := held_out(split_of(record))) and row.get("split") != split:
        row = task.row({**row, "split": split})
    note = ""
    if path:
        note = f"the {task.noun} is read from {path}"
    elif not published_as and task.name != fields.get("task", registry.DEFAULT):
        note = f"read as rows of the task {task.name}"
    used = {*task.fields, *task.aliases, path.partition(".")[0], "task", "split", "custom_id"}
    return Match(row, note, fields.keys() - used)


def _tasks(fields: Mapping[str, Any]) -> list[Task]:
    """The task that *fields* name; if they name none that is known, those of this package."""
    with suppress(InputError, TypeError):
        return [registry.task(fields["task"])] if "task" in fields else registry.own_tasks()
    return registry.own_tasks()


def _read(task: Task, fields: Mapping[str, Any], published: bool) -> Row:
    """The row of *task* in *fields*; of *published* ones, which may be those of a row too, by ``import_row`` first."""
    own = task.example.keys() <= fields.keys()
    if task.import_row and (published or not own):
        try:
            return task.row(task.import_row(fields))
        except InputError:
            if not own:
                raise
    return task.row(fields)


def _around(task: Task, row: Row, record: Mapping[str, Any]) -> Row:
    """*row* with the fields that the *record* around it has for it, and with the name of its task."""
    more = {key: value for key, value in record.items() if key in task.fields and key not in row and key != "task"}
    if not more and row.get("task", registry.DEFAULT) == task.name:
        return row
    named = {} if task.name == registry.DEFAULT else {"task": task.name}
    return task.row({**more, **{key: value for key, value in row.items() if key != "task"}, **named})


def held_out(published: str) -> str | None:
    """The split, "test" or "valid", that rows of a *published* split stay in; None if they are for training."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", published).lower()
    return "test" if _TEST.search(words) else "valid" if _VALID.search(words) else None


def split_of(record: Mapping[str, Any]) -> str:
    """The split that *record* or a mapping in it names, a held-out one first; "" if there is none."""
    splits = [split for _, holder in _mappings(record) if isinstance(split := holder.get("split"), str)]
    return next(filter(held_out, splits), splits[0] if splits else "")


def _mappings(fields: Mapping[str, Any], path: str = "", depth: int = 4) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """*fields* and the mappings in it with their paths, except for what a model wrote or read."""
    yield path, fields
    for name, value in fields.items() if depth else ():
        if isinstance(value, str) and value.lstrip()[:1] == "{" and name not in (*COMPLETIONS, *PAIRS, *PROMPTS):
            value = decoded(value)
        if isinstance(value, Mapping) and name not in COMPLETIONS:
            yield from _mappings(_without_empty(value), f"{path}.{name}" if path else name, depth - 1)


def given(record: Mapping[str, Any]) -> set[str]:
    """The names of the fields of *record* that hold anything."""
    return {name for name, value in record.items() if value not in _EMPTY}


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The *fields* that have a value: a table has all columns in every row."""
    return {str(name): value for name, value in fields.items() if value is not None and value != ""}


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
            raise InputError(f"there is reasoning in the content, before </{style.tag}>, and beside it")
        return style.completion(self.content, self.reasoning, closed=bool(self.content))


@dataclass(frozen=True)
class Exchange:
    """A prompt, as text that was rendered or as messages, and its completion.

    Attributes:
        prompt: None if the record has none.
        names: the fields they are from.
        note: the same as a sentence, if these are not TRL's.
    """

    prompt: str | list[dict[str, str]] | None
    completion: Turn
    names: tuple[str, ...]
    note: str


def split(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record for each completion in *record*, with its name unchanged."""
    name = _completion_name(record)
    value = record[name] if name else None
    if isinstance(value, Mapping) and not value.keys() & {*_TURN, *_CHOICE}:  # a server's response, or a batch's
        body = value.get("body", value)
        value = body.get("choices") if isinstance(body, Mapping) else None
        if not isinstance(value, list) or not value:
            raise InputError(f"`{name}` has no `choices`, as the chat and text completions APIs return")
    items = decoded(value)
    if value is not items and not (name != "completion" and items and all(isinstance(item, str) for item in items)):
        return [dict(record)]  # a text in brackets
    if name is None or not isinstance(items, list | tuple) or (_is_conversation(items) and name != "choices"):
        return [dict(record)]
    if not items:
        raise InputError(f"`{name}` is an empty list")
    return [{**record, name: item} for item in items]


def _completion_name(record: Mapping[str, Any]) -> str | None:
    names = [name for name in COMPLETIONS if record.get(name) is not None]
    if not names and not _conversation(record):
        names = [name for name, other in PAIRS.items() if None not in (record.get(name), record.get(other))]
    if len(names) > 1:
        raise InputError(f"the completion may be `{names[0]}` or `{names[1]}`; leave one of them out")
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
    for key in ("label", "labels", "kto_tag"):  # of TRL's KTO and stepwise supervision, and of LLaMA-Factory
        if (label := record.get(key)) is False or (isinstance(label, list) and False in label):
            raise InputError(f"`{key}` says that the completion is wrong, and it would be learned; leave such rows out")
    answer = completion(record)
    if answer is None:
        return None
    fields, answered = given(record), _completion_name(record)
    prompt, names = _prompt(record, fields, answered)
    if prompt is not None and (system := next((key for key in SYSTEM if key in fields), None)):
        if isinstance(prompt, str) or prompt[0].role == "system":
            raise InputError(f"there are a prompt with its own system turn and `{system}`; leave one out")
        prompt, names = [Turn("system", str(record[system])), *prompt], (*names, system)
    beside = [key for key in REASONING if record.get(key) not in _EFFORTS] if answer.reasoning else []
    used = tuple(key for key in (*names, answered, *beside) if key in fields)
    note = "" if set(used) <= {"prompt", "completion", "messages"} else f"demonstrations from {', '.join(used)}"
    return Exchange(_messages(prompt) if isinstance(prompt, list) else prompt, answer, used, note)


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
        raise InputError(f"the completion may be `{answered}` or the last turn of the conversation; leave one out")
    prompt = conversation if answered else conversation[:-1]
    if prompt and prompt[-1].role == "assistant":
        raise InputError("the conversation ends in two turns of the assistant")
    return prompt, tuple(key for key in (*CONVERSATIONS, "body") if key in fields)


def _messages(prompt: list[Turn]) -> list[dict[str, str]]:
    """The messages of *prompt*, whose turns make a conversation that asks for a completion."""
    roles = [turn.role for turn in prompt]
    if "system" in roles[1:] or "user" not in roles:
        raise InputError("the prompt has no turn of the user, or a turn of the system that is not the first one")
    if any(turn.reasoning for turn in prompt):
        raise InputError("the reasoning of an earlier turn is not used; leave it out, or put it into the content")
    return [{"role": turn.role, "content": turn.content} for turn in prompt]


def _conversation(record: Mapping[str, Any]) -> list[Turn]:
    """The turns of the conversation in *record* or in the request of an OpenAI batch; [] if there is none."""
    body = record.get("body")
    holders = (record, body if isinstance(body, Mapping) else {})
    value = next((part[key] for part in holders for key in CONVERSATIONS if part.get(key) not in _EMPTY), None)
    turns = [] if value is None else _content(value)
    if isinstance(turns, str):
        raise InputError("messages should be a list of turns")
    return turns


def _content(value: Any) -> str | list[Turn]:
    """A text, or the turns of a conversation, as messages of OpenAI or ShareGPT, also written as text."""
    if isinstance(value, str):
        if not _is_conversation(decoded(value)):
            if _MESSAGES(value):
                raise InputError("there are messages as text that cannot be read; write them as JSON")
            return value
        value = decoded(value)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise InputError("messages should be a list of turns")
    return [_turn(turn) for turn in value]


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value.keys() & set(_TURN))


def _is_conversation(value: Any) -> bool:
    return _is_turn(value) or (isinstance(value, list) and bool(value) and all(map(_is_turn, value)))


def _turn(turn: Any) -> Turn:
    fields = {name: value for name, value in turn.items() if value not in _EMPTY} if _is_turn(turn) else {}
    role = _ROLES.get(str(fields.pop("role", fields.pop("from", None))))
    content = fields.pop("content", fields.pop("value", ""))
    reasoning = _reasoning(fields)
    if isinstance(content, list):
        parts = [_part(part) for part in content]
        content = "".join(text for is_reasoning, text in parts if not is_reasoning)
        reasoning = reasoning or "".join(text for is_reasoning, text in parts if is_reasoning)
    # A model may write nothing, and a system turn may be empty.
    empty = not content and not reasoning and (role == "user" or not turn.keys() & {"content", "value"})
    if role is None or not isinstance(content, str) or empty:
        raise InputError("a turn should have `role` (system, user or assistant) and `content`, both text")
    if unused := sorted(fields.keys() - set(REASONING)):
        raise InputError(f"a turn has `{unused[0]}`, which is not used; leave such rows or fields out")
    return Turn(role, content, reasoning)


def _part(part: Any) -> tuple[bool, str]:
    """True if a part of a content is reasoning, and its text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("thinking" if kind == "thinking" else "text") if isinstance(part, Mapping) else part
    if kind not in (None, "text", "thinking", "output_text", "input_text") or not isinstance(text, str):
        raise InputError(f"a turn has a part of type {kind}, not text")
    return kind == "thinking", text


def _reasoning(fields: Mapping[str, Any]) -> str:
    """The reasoning beside a content, under any of its names."""
    values = [value for name in REASONING if (value := fields.get(name)) and value not in _EFFORTS]
    if any(not isinstance(value, str) or value != values[0] for value in values):
        raise InputError(f"the reasoning should be one text in one of {', '.join(REASONING)}")
    return values[0] if values else ""

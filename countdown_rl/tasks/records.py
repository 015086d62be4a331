"""Find the puzzle, the prompt and the completions in the records of any tool.

A file has one of the layouts of a table, or the user states its fields: ``NAME=EXPR``, an
expression in JMESPath. What is neither, or may be two things, is refused.
"""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import jmespath
from jmespath import functions
from jmespath.exceptions import JMESPathError

from countdown_rl.core.errors import InputError, UsageError, first_line
from countdown_rl.core.types import JsonObject, Record, as_list
from countdown_rl.tasks import registry
from countdown_rl.tasks.response_format import Style
from countdown_rl.tasks.splits import held_out
from countdown_rl.tasks.task import Row, Task

#: Names of ``--field`` that state a field of the row, and the others.
ROW_FIELDS = ("nums", "target", "question", "gold", "rule", "operators", "style", "task")
NAMES = (*ROW_FIELDS, "completion", "prompt", "id")
#: Fields that hold a prompt, in the order in which they are looked for, and conversations.
_PROMPTS = ("prompt", "query", "input")
#: Fields that hold what is asked, without the instructions of a prompt.
QUESTIONS = ("question", "problem")
_CONVERSATIONS = ("messages", "conversations", "conversation", "message_log")
#: Names that a completion may have.
_COMPLETION = re.compile(
    r"(?i)(?:(?:raw|model|llm|generated|sampled|full|output)_)*"
    r"(?:completion|response|output|generation|prediction|rollout|text|solution_str)(?:_text)?s?"
    r"|chosen|rejected|choices"
).fullmatch
#: Names under which others state what answers may use; this package has ``operators`` and ``rule``.
_OTHER_RULES = re.compile(
    r"(?i)(?:allow|permit)\w*|(?:(?:available|valid)_)?(?:ops|operations|rules)|(?:available|valid)_operators"
).fullmatch
_LENGTH = ("length", "max_tokens", "model_length")
_ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user"}
_ROLES |= dict.fromkeys(("assistant", "gpt", "model"), "assistant")
_REASONING = ("reasoning_content", "reasoning", "thinking")
#: The types of the parts of a turn.
_PIECES = dict.fromkeys(("text", "output_text", "input_text"), "text")
_PIECES |= dict.fromkeys(("thinking", "reasoning"), "reasoning")


class NoRowError(InputError):
    """A record has no row of a task."""


@dataclass(frozen=True)
class Layout:
    """The records of one tool: the fields that identify them, and where the rest is, in JMESPath.

    ``row`` gives the fields of the puzzle; without ``completion`` it is the only field with a name
    of one. Of records that differ in the field ``repeats`` alone the first is read.
    """

    name: str
    fields: tuple[str, ...]
    row: str = "@"
    completion: str = ""
    prompt: str = ""
    id: str = "id"
    tokens: str = ""
    end: str = ""  # the reason why the completion ended
    failed: str = ""  # the error of a request that has no completion
    split: str = "split"
    repeats: str = ""


_TRACE = "length(traces) == `1` && traces[0]"
_BODY = "response.body"
_INSPECT = Layout(
    "an Inspect log",
    ("epoch", "input", "output"),
    row="metadata",
    completion="output.choices[].message",
    failed="error",
    prompt="input",
    tokens="output.usage.output_tokens",
    end="output.choices[].stop_reason",
)
LAYOUTS = (
    Layout(
        "lm-eval samples",
        ("doc", "resps"),
        row="json(doc.row) || doc",
        completion="resps[]",
        prompt="doc.user || doc.query || doc.question",
        id="doc.id",
        repeats="filter",
    ),
    _INSPECT,
    replace(_INSPECT, fields=(*_INSPECT.fields, "choices")),  # of the question
    Layout(
        "verifiers traces",
        ("env", "task", "traces"),
        row="task.data.row",
        completion=f"{_TRACE}.nodes[?sampled] | [-1:].message",
        prompt="task.data.prompt",
        id="task.data.row.id",
        tokens="traces[0].calls[-1].usage.completion_tokens",
        end="traces[0].calls[-1].finish_reason",
    ),
    Layout(
        "verifiers results",
        ("example_id", "completion", "info"),
        row="json(info)",
        completion="completion",
        prompt="prompt",
    ),
    Layout(
        "an OpenAI batch",
        ("custom_id", "response"),
        completion=f"{_BODY}.choices[].message || {_BODY}.output[?type=='message']",
        prompt="body.messages",
        id="custom_id",
        tokens=f"{_BODY}.usage.completion_tokens",
        end=f"{_BODY}.choices[].finish_reason",
    ),
    Layout(
        "OpenAI responses",
        ("choices",),
        completion="choices[].[message || text][]",
        prompt="prompt || messages",
        tokens="usage.completion_tokens",
        end="choices[].finish_reason",
    ),
    Layout(
        "verl data",
        ("prompt", "reward_model"),
        row="json(reward_model.ground_truth)",
        prompt="prompt",
        split="split || extra_info.split",
    ),
    Layout("verl rollouts", ("input", "output", "score"), "json(gts)", "output", "input"),
    Layout("reasoning-gym", ("question", "metadata"), "metadata", prompt="question"),
    Layout(
        "an evaluation of reasoning-gym",
        ("question", "metadata", "completions"),
        "metadata",
        "completions[].full_model_response",
        "question",
    ),
    Layout(
        "instructions of Alpaca or Dolly",
        ("instruction",),
        prompt=r'[{role: `"user"`, content: join(`"\n\n"`, [instruction, input, context][?@])}]',
    ),
)
#: Rows and samples of this package, completion logs of TRL, and all that has their fields.
PLAIN = Layout("rows", ())


class _Functions(functions.Functions):
    """Functions for expressions, beside those of JMESPath."""

    @functions.signature({"types": []})
    def _func_json(self, value: object) -> object:
        """The list or object that a text holds, in the notation of JSON or Python."""
        return decoded(value)

    @functions.signature({"types": ["string"]})
    def _func_numbers(self, value: str) -> list[int]:
        """The whole numbers in a text."""
        return [int(number) for number in re.findall(r"\d+", value)]


_OPTIONS = jmespath.Options(custom_functions=_Functions())


def decoded(value: Any) -> Any:
    """The list or mapping that the text *value* holds, in the notation of JSON or Python; else
    *value*.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    for load in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return load(value.strip())
    return value


@lru_cache(maxsize=256)
def _getter(expression: str) -> Callable[[Record], Any]:
    # Most expressions are these, which need no interpreter.
    if expression.isidentifier():
        return lambda record: record.get(expression)
    if not expression:
        return lambda record: None
    compiled = jmespath.compile(expression)
    return lambda record: compiled.search(record, _OPTIONS)


def _expressions(fields: Iterable[str]) -> dict[str, str]:
    """The expressions that ``--field NAME=EXPR`` states, by name.

    Raises UsageError if one is wrong.
    """
    expressions = {}
    for stated in fields:
        name, sign, expression = stated.partition("=")
        if name not in NAMES or not sign:
            known = ", ".join(NAMES)
            raise UsageError(f"{stated}: write NAME=EXPR with a name of {known}.", option="field")
        try:
            _getter(expression.strip())
        except JMESPathError as error:
            raise UsageError(f"{stated}: {first_line(error)}.", option="field") from error
        expressions[name] = expression.strip()
    return expressions


@dataclass(frozen=True)
class Turn:
    """A completion, or a turn of a prompt; the reasoning is what a server returns beside the
    content.
    """

    role: str
    content: str
    reasoning: str = ""

    def text(self, style: Style) -> str:
        """The turn as one text in the layout of *style*."""
        if self.reasoning and f"</{style.tag}>" in self.content:
            raise InputError("there is reasoning in the content and beside it")
        return style.completion(self.content, self.reasoning, closed=bool(self.content))


@dataclass
class Reader:
    """Read the parts of records, all of one layout.

    Attributes:
        fields: what the user states, as ``NAME=EXPR``.
        task: the task of the rows; None to recognize it.
        own: names of fields of the rows that a record may leave out, such as ``rule``.
    """

    fields: Sequence[str] = ()
    task: Task | None = None
    own: Collection[str] = ()

    def __post_init__(self) -> None:
        self.stated = _expressions(self.fields)
        self._first: Layout | None = None
        self._filter: object = None

    def layout(self, record: Record) -> Layout:
        """The layout of *record*, that of the whole file.

        Raises InputError if it may be two, or is another.
        """
        layout = _recognized(tuple(record))
        first = self._first = self._first or layout
        if layout is not first:
            raise InputError(f"it has the fields of {layout.name}, others of {first.name}")
        return layout

    @property
    def note(self) -> str:
        """The layout that was recognized, if it is that of another tool; else ""."""
        return f"read as {self._first.name}" if self._first not in (None, PLAIN) else ""

    def get(self, record: Record, expression: str) -> Any:
        """The value of *expression* in *record*; None for an empty expression."""
        try:
            return _getter(expression)(record)
        except JMESPathError as error:
            raise InputError(f"{expression}: {first_line(error)}") from error

    def is_repeated(self, record: Record) -> bool:
        """True if *record* repeats another one for a further filter of its tool."""
        name = self.layout(record).repeats
        if name not in record:
            return False
        self._filter = self._filter or record[name]
        return bool(record[name] != self._filter)

    def row(self, record: Record) -> Row:
        """The row in the fields of *record*.

        Raises NoRowError if there is none, InputError if there are two.
        """
        layout = self.layout(record)
        completions = _candidates(tuple(record))
        fields = _filled({name: record[name] for name in record if name not in completions})
        if layout.row != "@":
            fields = _with_nested(fields, self.get(record, layout.row))

        stated = {
            name: self.get(record, expression)
            for name, expression in self.stated.items()
            if name in ROW_FIELDS
        }
        if isinstance(stated.get("operators"), list):
            stated["operators"] = "".join(map(str, stated["operators"]))

        other = _other_rules(record) or _other_rules(fields)
        if other and {"rule", "operators"}.isdisjoint([*stated, *self.own]):
            raise InputError(
                f"its `{other}` may change the rules; state them by --field operators={other}, "
                "a constant such as --field 'operators=`+-*`', or --field rule=EXPR"
            )

        fields |= stated
        split = held_out(self.split(record))
        if split:
            fields["split"] = split
        return self._parsed(fields)

    def _parsed(self, fields: JsonObject) -> Row:
        tasks = [self.task] if self.task else registry.own_tasks()
        if not self.task and "task" in fields:
            try:
                tasks = [registry.task_of(fields)]
            except InputError:  # it names something else
                del fields["task"]
        faults = []
        for task in tasks:
            try:
                if task.import_row and not task.example.keys() <= fields.keys():
                    row = task.row(task.import_row(fields))
                else:
                    row = task.row(fields)
            except InputError as error:
                faults.append((task, error))
                continue
            if row.get("task", registry.DEFAULT) != task.name:
                row = task.row({**row, "task": task.name})
            return row
        near = [fault for task, fault in faults if task.example.keys() & fields.keys()]
        raise NoRowError(str(near[0] if near else faults[0][1]))

    def split(self, record: Record) -> str:
        """The split that *record* names, or ""."""
        named = self.get(record, self.layout(record).split)
        return named if isinstance(named, str) else ""

    def id(self, record: Record) -> object:
        """The id that *record* states, or None."""
        return self.get(record, self.stated.get("id") or self.layout(record).id)

    def prompt(self, record: Record, questions: Sequence[str] = ()) -> str | list[Turn] | None:
        """The prompt of *record*, or what it asks.

        Args:
            record: a record of the file.
            questions: names of fields that are read where there is no prompt.

        Returns:
            a text, or turns; None if there is none.
        """
        expression = self.stated.get("prompt") or self.layout(record).prompt
        turns = [] if expression else self._conversation(record)
        if turns and turns[-1].role == "assistant":
            return _with_system(turns[:-1], record)
        if expression:
            value = self.get(record, expression)
        else:
            names = (*_PROMPTS, *questions)
            value = next((record[name] for name in names if record.get(name)), None)
        if value is None:
            return _with_system(turns, record) if turns else None
        messages = decoded(value)
        return _with_system(_turns(messages if _is_conversation(messages) else value), record)

    def completions(self, record: Record) -> list[Turn]:
        """The completions of *record*, at least one.

        Raises InputError if several fields may hold them.
        """
        try:
            return self._found_completions(record)
        except InputError as error:
            raise InputError(
                f"{error}; its fields are {', '.join(record)}; give --field completion=EXPR, also "
                "nums=EXPR and target=EXPR where no field has these, or --records EXPR where the "
                "records are deeper"
            ) from error

    def _found_completions(self, record: Record) -> list[Turn]:
        expression = self.stated.get("completion") or self.layout(record).completion
        if expression:
            value = self.get(record, expression)
            if value is None or value == []:
                fault = record.get("error") or self.get(record, f"{_BODY}.error")
                raise InputError(
                    "the request failed, or it needs one trace with a reply: "
                    f"{fault or 'no completion'} (`grade --on-error mark` skips such records)"
                )
            return _answers(value)

        candidates = _candidates(tuple(record))
        names = [name for name in candidates if record[name] is not None]
        turns = self._conversation(record)
        is_answered = bool(turns) and turns[-1].role == "assistant"
        if len(names) + is_answered > 1:
            places = [*names, "the last turn of the conversation"] if is_answered else names
            raise InputError(f"the completion may be in {' or '.join(places)}")
        if names:
            return _answers(record[names[0]])
        if is_answered:
            return turns[-1:]
        raise InputError(f"`{candidates[0]}` is null" if candidates else "there is no completion")

    def has_failed(self, record: Record) -> bool:
        """True if *record* is of a request that failed, which counts as an incorrect completion."""
        return bool(self.get(record, self.layout(record).failed))

    def usage(self, record: Record, count: int) -> list[tuple[int | None, bool | None]]:
        """The lengths of the completions of a record.

        Args:
            record: a record of the file.
            count: number of its completions.

        Returns:
            for each the number of tokens, and True if it ended by itself; None where unknown.
        """
        layout = self.layout(record)
        tokens = self.get(record, layout.tokens) if count == 1 else None
        if tokens is not None and (type(tokens) is not int or tokens < 0):
            raise InputError("its count of tokens should be a whole number from 0 on")
        reasons = as_list(self.get(record, layout.end))
        if len(reasons) != count:
            reasons = [None] * count
        return [(tokens, None if reason is None else reason not in _LENGTH) for reason in reasons]

    @staticmethod
    def _conversation(record: Record) -> list[Turn]:
        for name in _CONVERSATIONS:
            if record.get(name):
                turns = _turns(decoded(record[name]))
                if isinstance(turns, str):
                    raise InputError(f"`{name}` should be a list of turns")
                return turns
        return []


@lru_cache(maxsize=256)
def _recognized(names: tuple[str, ...]) -> Layout:
    """The layout of records with fields of these *names*. Raises InputError if it may be two."""
    fitting = [layout for layout in LAYOUTS if {*layout.fields} <= {*names}]
    wider = [set(layout.fields) for layout in fitting]
    best = [layout for layout in fitting if not any(set(layout.fields) < other for other in wider)]
    if len(best) > 1:
        both = f"{best[0].name} and of {best[1].name}"
        raise InputError(f"it has the fields of {both}; leave those of one out")
    return best[0] if best else PLAIN


@lru_cache(maxsize=256)
def _candidates(names: tuple[str, ...]) -> list[str]:
    """Those of the *names* of fields that may hold a completion."""
    return [name for name in names if _COMPLETION(name)]


def _filled(fields: Record) -> JsonObject:
    """The *fields* that have a value: a table has all columns in every row."""
    return {str(name): value for name, value in fields.items() if value is not None and value != ""}


def _other_rules(fields: Record) -> str:
    """The path of a field that states rules under a name of others, or ""."""
    for name, value in fields.items():
        if _OTHER_RULES(name):
            return name
        if isinstance(value, dict):
            for inner in value:
                if _OTHER_RULES(inner):
                    return f"{name}.{inner}"
    return ""


def _has_row(fields: Record) -> bool:
    names = set(fields)
    if names & {"numbers", "num"}:
        names.add("nums")
    return any(task.example.keys() <= names for task in registry.own_tasks())


def _with_nested(fields: JsonObject, nested: object) -> JsonObject:
    """The *fields* of a row, or those *nested* in a record; InputError if both are rows, and
    differ.
    """
    inner = _filled(nested) if isinstance(nested, Mapping) else {}
    if not _has_row(fields):
        prompts = {name: fields[name] for name in ("style", "template") if name in fields}
        return prompts | inner
    if _has_row(inner):
        first, second = _id(fields), _id(inner)
        if first != second:
            raise InputError(f"it has two puzzles, {first} and {second}")
    return fields


def _id(fields: Record) -> str:
    return registry.parse_row({name: fields[name] for name in fields if name != "task"}).id


def _answers(value: object) -> list[Turn]:
    """The completions that a field holds: a text, a turn of the assistant, or a list of these."""
    if isinstance(value, str):
        items = decoded(value)
        is_list = isinstance(items, list) and bool(items)
        are_texts = is_list and all(isinstance(item, str) for item in items)
        if not are_texts and not _is_conversation(items):
            return [Turn("assistant", value)]
        value = items
    answers = list[Turn]()
    for item in as_list(value):
        turns = [Turn("assistant", item)] if isinstance(item, str) else _turns(item)
        if isinstance(turns, str) or len(turns) != 1 or turns[0].role != "assistant":
            raise InputError("a completion should be a text, or one turn of the assistant")
        answers += turns
    if not answers:
        raise InputError("the completions are an empty list")
    return answers


def _with_system(prompt: str | list[Turn], record: Record) -> str | list[Turn]:
    """*prompt* with the system turn that *record* has in a field of its own."""
    system = record.get("system") or record.get("system_prompt")
    if not system:
        return prompt
    if isinstance(prompt, str) or any(turn.role == "system" for turn in prompt):
        raise InputError("there are a prompt with its own system turn and `system`; leave one out")
    return [Turn("system", str(system)), *prompt]


def _is_conversation(value: object) -> bool:
    turns = as_list(value)
    are_turns = all(isinstance(turn, Mapping) and turn.keys() & {"role", "from"} for turn in turns)
    return are_turns and bool(turns)


def _turns(value: object) -> str | list[Turn]:
    """A text, or the turns of a conversation as of OpenAI or ShareGPT."""
    if isinstance(value, str):
        return value
    turns = [value] if isinstance(value, Mapping) else value
    if not isinstance(turns, list | tuple) or not turns:
        raise InputError(
            "a prompt or completion should be text or messages; decode token ids, and quote numbers"
        )
    return [_turn(turn) for turn in turns]


def _turn(turn: object) -> Turn:
    fields = _filled(turn) if isinstance(turn, Mapping) else {}
    role = _ROLES.get(str(fields.get("role", fields.get("from"))))
    content = fields.get("content", fields.get("value", ""))
    reasoning = next((fields[name] for name in _REASONING if fields.get(name)), "")
    if isinstance(content, list):
        texts = {"text": "", "reasoning": ""}
        for piece in content:
            kind = str(piece.get("type")) if isinstance(piece, Mapping) else ""
            if kind not in _PIECES:
                raise InputError(f"a turn has a part of type {kind}, not text")
            texts[_PIECES[kind]] += str(piece.get(kind) or piece.get("text") or "")
        content = texts["text"]
        reasoning = reasoning or texts["reasoning"]
    if role is None or not isinstance(content, str) or not isinstance(reasoning, str):
        raise InputError("a turn should have `role` and `content`, both text; decode token ids")
    if fields.get("tool_calls"):
        raise InputError("a turn has `tool_calls`, which are not read")
    return Turn(role, content, reasoning)


def asked(prompt: str | Sequence[Turn] | None) -> tuple[Row | None, str]:
    """The row that *prompt* asks in this package's words or a published template, and its user
    turn.
    """
    if prompt is None:
        return None, ""
    if isinstance(prompt, str):
        match = _ENVELOPE(prompt)
        system = match["system"] if match else None
        text = match["user"] if match else prompt
    else:
        system = "\n".join(turn.content for turn in prompt if turn.role == "system")
        text = "\n".join(turn.content for turn in prompt if turn.role == "user")
    text = text.strip()
    system = (system or "").strip()
    for task in registry.own_tasks():
        fields = task.row.asked_by(text)
        if fields and (_PLAIN_SYSTEM(system) or system in _systems(task.name)):
            return task.row(fields), text
    return None, text


@cache
def _systems(name: str) -> set[str]:
    """The system turns of the task *name*, in each of its styles."""
    task = registry.task(name)
    rows = [task.row({**task.example, "style": style}) for style in task.row.styles]
    return {row.prompt().system for row in rows}


#: System turns that state no rules.
_PLAIN_SYSTEM = re.compile(
    r"(?:Cutting Knowledge Date: .*\n)?(?:Today Date: .*\n+)?"
    r"(?:You are (?:Qwen, created by Alibaba Cloud\. You are )?a helpful assistant\.?"
    r"(?: You first thinks? about the reasoning process in the mind and then provides? the user with the answer\.)?)?"
).fullmatch
#: A rendered prompt with one user turn, in the chat templates of Qwen, Llama and the shipped model,
#: and TinyZero's.
_ENVELOPE = re.compile(
    r"(?s)(?:A conversation between User and Assistant\.[^\n]*\nUser: "
    r"|(?:<\|begin(?:_of_text)?\|>)?"
    r"(?:(?:<\|im_start\|>system\n|<\|system\|>|<\|start_header_id\|>system<\|end_header_id\|>\n\n)"
    r"(?P<system>.*?)(?:<\|im_end\|>\n?|<\|end\|>|<\|eot_id\|>))?"
    r"(?:<\|im_start\|>user\n|<\|user\|>|<\|start_header_id\|>user<\|end_header_id\|>\n\n))"
    r"(?P<user>.*?)(?:(?:<\|im_end\|>|<\|end\|>|<\|eot_id\|>|\nAssistant: )(?!.*user\|?>).*)?"
).fullmatch

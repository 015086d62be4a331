"""The task interface: a :class:`Task`, its data rows, and the grade of a completion."""

import hashlib
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import shown
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.tasks.prompt import Prompt, from_template, prefill_of
from countdown_rl.tasks.response_format import STYLES, Piece, Step, Style, tagged
from countdown_rl.tasks.splits import PARTS, split_at

#: Text, or messages of which the last is the completion.
Completion = str | Sequence[Mapping[str, Any]]


@dataclass(slots=True)  # not frozen: that would make grading a quarter slower
class Grade:
    """The verdict on a completion."""

    format: bool  # thinking, then an answer, each in its tags
    strict_format: bool  # exactly these two blocks and nothing else
    correct: bool
    answer: str | None  # its text
    value: str | None  # its exact value as text, ``65`` or ``13/2``
    reason: str  # "" when correct, else a key of :attr:`Task.reasons` or of :data:`REASONS`
    trailing: bool  # text other than white space follows the last ``</answer>``

    def to_json(self) -> JsonObject:
        """The fields by name; ``dataclasses.asdict`` would take a tenth of the time of grading."""
        return {name: getattr(self, name) for name in Grade.__annotations__}

    @property
    def legal(self) -> bool:
        """The answer obeys the rules of the task, correct or not."""
        return self.correct or self.reason == "wrong-value"

    @property
    def well_formed(self) -> bool:
        """The answer could be parsed: it has a value, or is "impossible", in the style of the row."""
        return self.value is not None or self.correct or self.reason == "not-impossible"


#: Reasons that any task may give; a task adds its own.
REASONS = {
    "no-answer": "no complete answer block after the thinking",
    "empty": "an empty answer",
    "not-a-number": "an answer that is no number",
    "wrong-value": "a value other than the right one",
    "refused": "the server refused to answer",
    "missing": "no completion in the file",
    "failed": "the request failed",
}


def check_text(text: str, name: str) -> None:
    """Raise InputError if *text* has half of a surrogate pair, which JSON may hold and tokenizers
    refuse.
    """
    if re.search("[\ud800-\udfff]", text):
        raise InputError(f"{name} has half of a surrogate pair, which is no character")


def text_of(completion: Completion) -> str:
    """Return the text of a completion. Raises InputError if it is neither text nor messages."""
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
    except (TypeError, LookupError):
        raise InputError(
            f"a completion should be text or messages, not {shown(completion)}"
        ) from None
    return content if isinstance(content, str) else str(content or "")


class Row(Mapping[str, Any]):
    """One row of a data set: a read-only mapping of its fields.

    The constructor raises InputError if one is wrong.
    """

    task: ClassVar[str]
    #: The response formats that the task knows, the default first.
    styles: ClassVar[tuple[str, ...]] = ("prefilled", "model_opens")
    #: Fields that are kept beside a completion, to grade it again.
    kept_fields: ClassVar[tuple[str, ...]] = ()
    #: The name of the rule that answers are graded by; "" if the task has only one.
    rule = ""
    #: Fields that a prompt of the user's own (:mod:`countdown_rl.tasks.prompt`) may use; by default
    #: `kept_fields`.
    prompt_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, fields: Record) -> None:
        self._fields = dict(fields)
        if fields.get("style") not in (None, "", *self.styles):
            raise InputError(f"`style` should be one of {', '.join(self.styles)}")
        self.template: str | None = fields.get("template")
        if not isinstance(self.template, str | None):
            raise InputError("`template` should be text")
        check_text(self.template or "", "`template`")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields})"

    @abstractmethod
    def default_prompt(self) -> Prompt:
        """The task's own prompt; its prefill is used in styles whose prompt opens the thinking."""

    @abstractmethod
    def judge(self, answer: str) -> tuple[str | None, str]:
        """The exact value of *answer* as text, and the reason why it is wrong ("" if it is
        correct).
        """

    @property
    @abstractmethod
    def reference(self) -> str:
        """The value of a correct answer, as text such as ``65`` or ``5/2``."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The row in one line, for tables and lists."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The part of a row that must not be in two splits."""

    @property
    def right_answer(self) -> str | None:
        """A correct answer as a completion would give it; None if none is known."""
        return self.reference

    @property
    def asked(self) -> list[str]:
        """The texts that a prompt of the user's own must contain in its user turn."""
        return []

    @property
    def groups(self) -> dict[str, str]:
        """The values that results are broken down by, such as ``{"numbers": "4"}``; names without
        underscore.
        """
        return {}

    @property
    def refusal(self) -> str:
        """The answer that says that there is none, where that is proved; else ""."""
        return ""

    def evaluated_groups(self, solved: bool) -> dict[str, str]:
        """:attr:`groups` with those that take a computation, which a puzzle that is *solved* needs
        less of.
        """
        return self.groups

    def vote_key(self, answer: str, value: str | None) -> str:
        """The canonical form of an *answer* with its *value*, for majority voting."""
        return value or " ".join(answer.lower().split()).rstrip(".!")

    def pieces(self, text: str) -> list[Piece]:
        """*text*, such as a completion, in pieces, of which tags and the equations that can be
        checked are marked.
        """
        return tagged(text)

    def steps(self, answer: str) -> list[Step]:
        """The operations of an *answer* that is an expression; [] for others."""
        return []

    @property
    def id(self) -> str:
        """The identifier of the row, equal for rows that ask the same."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:16]

    @classmethod
    def asked_by(cls, text: str) -> JsonObject | None:
        """The fields of the row that the user turn *text* asks, in the task's words or a published
        template; or None.
        """
        return None

    @property
    def split(self) -> str:
        """The held-out split in the field ``split``, else :attr:`own_split`."""
        return self["split"] if self.get("split") in ("valid", "test") else self.own_split

    @property
    def own_split(self) -> str:
        """The split by :attr:`identity` alone, the same in every data set."""
        return split_at(int(hashlib.sha256(self.identity.encode()).hexdigest()[:15], 16) % PARTS)

    @property
    def kept(self) -> JsonObject:
        """The fields that are kept beside a completion."""
        names = ("id", "task", *self.kept_fields, "style", "template", "split")
        return {name: self._fields[name] for name in names if name in self._fields}

    @cached_property
    def style_name(self) -> str:
        """The name of the response format, by default the first that fits the prefill of the
        template.
        """
        stated = self.get("style")
        if stated or self.template is None:
            return stated or self.styles[0]
        prefill = prefill_of(self.template)
        opening = [name for name in self.styles if STYLES[name].model_opens]
        for name in self.styles:
            if name not in opening and STYLES[name].opened(prefill):
                return name
        return (opening or self.styles)[0]

    @cached_property
    def style(self) -> Style:
        """The response format."""
        return STYLES[self.style_name]

    @property
    def layout(self) -> dict[str, str]:
        """The fields that decide on prompt and response format, for other rows of the task."""
        layout = {"style": self.style_name}
        if self.template is not None:
            layout["template"] = self.template
        return layout

    def without_prefill(self) -> Self:
        """This row in a style whose model opens the thinking, as most endpoints continue no
        assistant turn.
        """
        return self if self.style.model_opens else type(self)({**self, "style": "model_opens"})

    @property
    def opening(self) -> str:
        """The beginning of the reasoning that the prompt writes, before a completion: ``<think>``,
        or "".
        """
        return "" if self.style.model_opens else self.style.opened(self.prompt().prefill)

    def prompt(self) -> Prompt:
        """The prompt, of the user's template alone or the task's; InputError if it is broken,
        incomplete or unfit.
        """
        if self.template is None:
            default = self.default_prompt()
            return replace(default, prefill="") if self.style.model_opens else default
        names = self.prompt_fields or self.kept_fields
        fields = {name: self[name] for name in names if name in self}
        rendered = from_template(self.template, fields)
        absent = rendered.missing(self.asked)
        if absent:
            raise InputError(
                f"the user turn for {self.headline} does not show {' and '.join(absent)}"
            )
        self.style.check_prefill(rendered.prefill)
        return rendered

    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation; a prefill is a last turn of the assistant."""
        return self.prompt().messages()

    def to_trl(self) -> JsonObject:
        """The fields for TRL, verl or a chat template, with a ``prompt`` that ends in the user
        turn: behind a prefilled one, a generation prompt would end the reasoning.
        """
        return {"prompt": self.prompt().turns(), **self}

    def grade(self, completion: str) -> Grade:
        """The grade of a *completion* of the prompt."""
        form, strict, answer, trailing = self.style.read(completion)
        value, reason = (None, "no-answer") if answer is None else self.judge(answer)
        return Grade(form, strict, not reason, answer, value, reason, trailing)


@dataclass(frozen=True)
class Group:
    """Display labels for a row attribute that results are broken down by.

    *label* is a format for any value, *names* are labels of single values. The accuracies of *main*
    groups are in the training log, those of the first also in ``metrics.json``. Rows of the value
    *unsolvable* have no solution.
    """

    title: str
    label: str = "{}"
    names: Mapping[str, str] = field(default_factory=dict)
    main: bool = True
    unsolvable: str = ""

    def name(self, group_value: str) -> str:
        """The label of a value, such as ``4 numbers``."""
        return self.names.get(group_value) or self.label.format(group_value)


@dataclass(frozen=True)
class Baseline:
    """A non-model reference, evaluated like a model; each is a value of ``eval --model``."""

    kind: Literal["floor", "ceiling"]  # the bound that its accuracy is for a model
    about: str  # a phrase for tables
    answer: Callable[[Any, random.Random], str]  # the answer alone

    def completion(self, row: Row, rng: random.Random) -> str:
        """The completion of *row*: empty thinking, and the answer."""
        return row.style.answer(self.answer(row, rng))


@dataclass(frozen=True)
class Task:
    """A task, registered in the entry point group ``countdown_rl.tasks``."""

    name: str
    title: str
    purpose: str  # what a completion has to do, in one sentence for cards
    row: type[Row]
    fields: Mapping[str, str]  # descriptions of the fields of a row, for cards
    example: Record  # the fields of a row, for cards and checks
    #: Names of further fields that a row or ``import_row`` reads.
    aliases: frozenset[str] = frozenset()
    noun: str = "problem"  # the word for one row, such as ``puzzle``
    reasons: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    #: The fields of a random row, if rows can be generated; called again for a repetition or a row
    #: of another split.
    draw: Callable[[random.Random], Record] | None = None
    #: The fields of a row from those of a published one; it raises InputError for others.
    import_row: Callable[[Record], Record] | None = None
    #: As ``draw``, for prompts that need no answer; by default ``draw`` or the example.
    probe: Callable[[random.Random], Record] | None = None
    #: In place of ``draw`` and ``import_row``, "module:name" of a subclass of this class.
    source: str = "countdown_rl.data.source:RowSource"
    #: A row whose prompt the demo page shows with the reader's numbers in place of its own; {} if
    #: there is no page.
    demo: Record = field(default_factory=dict)
    #: The options of ``gen-data`` for puzzles that apply to this task.
    data_options: frozenset[str] = frozenset()
    grammar: int | None = None  # the version of the grammar of answers, recorded with results
    #: By the name of a benchmark suite, "module:name" of ``(name, tier) -> path`` of its rows.
    suites: Mapping[str, str] = field(default_factory=dict)
    #: By the name that ``--model`` accepts.
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    #: Graders that can be cheated, by the name in the reward ``proxy:NAME``: ``(row, answer) ->
    #: reward``.
    proxies: Mapping[str, Callable[[Row, str | None], float]] = field(default_factory=dict)

    def reason(self, key: str) -> str:
        """The words for the reason of a grade."""
        return self.reasons.get(key) or REASONS.get(key, key)

    def group(self, name: str) -> Group:
        """The labels of the group called *name*."""
        return self.groups.get(name) or Group(name, f"{name} {{}}")

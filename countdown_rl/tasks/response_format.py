"""Layout of a completion, a thinking block and an answer block, and its parser.

The answer is the last complete answer block after the thinking, which ends at the first closing
tag. A completion that opens the thinking and does not close it has no answer; one without thinking
is read from its start, and its format is wrong. In the style ``direct`` the whole completion is the
answer; in ``boxed`` it is the last ``\\boxed{}`` after the thinking, and in ``answer_line`` what
follows the last ``Answer:``.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import option
from countdown_rl.tasks.options import PROMPT

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
_TAG = re.compile(r"(</?(?:think|thinking|answer)>)")


class Step(NamedTuple):
    """One operation of an answer: two values, the operator and the result; None for a division by
    zero.
    """

    left: str
    operator: str
    right: str
    result: str | None


class Piece(NamedTuple):
    """A part of a text: a ``correct`` or ``incorrect`` equation with its operators, a ``tag``, or
    neither.
    """

    text: str
    kind: str = ""
    operators: frozenset[str] = frozenset()

    @property
    def sides(self) -> tuple[str, str]:
        """The left side of an equation, and the number on its right."""
        left, _, claim = self.text.rpartition("=")
        return left, claim.strip()


def tagged(text: str) -> list[Piece]:
    """*text* in pieces, of which tags are marked."""
    pieces = []
    for index, part in enumerate(_TAG.split(text)):  # tags are at odd places
        if part:
            pieces.append(Piece(part, "tag" if index % 2 else ""))
    return pieces


#: The fields ``format``, ``strict_format``, ``answer`` and ``trailing`` of
#: :class:`countdown_rl.tasks.task.Grade`.
Blocks = tuple[bool, bool, str | None, bool]


@dataclass(frozen=True)
class Style:
    """One layout."""

    tag: str = "think"  # of the thinking, or ``thinking``
    model_opens: bool = False  # the model writes the opening tag; else the prompt ends in it, and it may be repeated
    lines: bool = False  # a line break after each tag; otherwise only one between the blocks
    direct: bool = False  # no tags; the completion is the answer, in one line, or contains it
    pattern: str = ""  # of an answer that a completion contains, as its first group
    written: str = "{}"  # the answer alone, in a style without tags

    @cached_property
    def _strict(self) -> re.Pattern[str]:
        # Text without any of these tags, in time linear in its length. Python 3.11.2 has wrong
        # possessive quantifiers.
        text = rf"[^<]*(?:<(?!/?(?:{self.tag}|answer)>)[^<]*)*"
        opening = f"(?:<{self.tag}>{self._break}){'' if self.model_opens else '?'}"
        return re.compile(
            rf"{opening}{text}</{self.tag}>\s*{ANSWER_OPEN}{self._break}({text}){ANSWER_CLOSE}\s*"
        )

    @property
    def _break(self) -> str:
        return "\n" if self.lines else ""

    @cached_property
    def opening(self) -> str:
        """The opening tag, if the model writes it; else ""."""
        return f"<{self.tag}>" if self.model_opens and not self.direct else ""

    def opened(self, answer: str) -> str:
        """The thinking that *answer* opens and does not close, from its tag on; else ""."""
        begin = answer.rfind(f"<{self.tag}>")
        return answer[begin:] if begin > answer.rfind(f"</{self.tag}>") else ""

    def check_prefill(self, prefill: str) -> None:
        """Raise InputError if no completion in this style can follow *prefill*, which the user
        wrote.
        """
        if self.direct and self.opened(prefill):
            raise InputError(
                f"the assistant block opens <{self.tag}>, which this style does not have"
            )
        if not self.model_opens and not self.opened(prefill):
            raise InputError(f"in the style prefilled the assistant block should open <{self.tag}>")

    def joined(self, prefill: str, text: str) -> str:
        """The completion that continues a prefill.

        Args:
            prefill: the beginning of the answer in the prompt.
            text: the model's continuation.

        Returns:
            *text*, after the opening tag of the thinking if the style has one.
        """
        opened = self.opened(prefill) if self.opening else ""
        return text if text.lstrip().startswith(self.opening) else opened + text

    def reopened(self, text: str) -> str:
        """*text*, with the opening tag of the thinking that it only closes, as an unknown prompt
        opened it.
        """
        begin, closing, _ = text.partition(f"</{self.tag}>")
        if not self.opening or not closing or self.opening in begin:
            return text
        return self.opening + self._break + text

    def answer(self, answer: str, thinking: str = "") -> str:
        """The completion that gives *answer* after the lines of *thinking*."""
        if self.direct:
            return self.written.format(answer)
        return f"{self.opening}\n{thinking}</{self.tag}>\n{ANSWER_OPEN}{self._break}{answer}{self._break}{ANSWER_CLOSE}"

    def completion(self, content: str, reasoning: str | None, *, closed: bool = True) -> str:
        """The completion of a server that returns the reasoning beside the content.

        Args:
            content: the content of the message.
            reasoning: its reasoning; None or "" if there is none.
            closed: the reasoning has ended.
        """
        if not reasoning or self.direct:
            return content
        thinking = f"<{self.tag}>{self._break}{reasoning}"
        return f"{thinking}{self._break}</{self.tag}>\n{content.lstrip()}" if closed else thinking

    def read(self, completion: str) -> Blocks:
        """The blocks of *completion*, in time linear in its length."""
        if self.direct:
            answer = self._untagged(completion)
            is_right = answer is not None and "\n" not in answer
            return is_right, is_right, answer, False
        match = self._strict.fullmatch(completion)
        if match:
            return True, True, match[1].strip(), False
        opened = completion.find(f"<{self.tag}>")
        closed = completion.find(f"</{self.tag}>")
        if closed >= 0:
            is_thought = 0 <= opened < closed or not self.model_opens
            start = closed
        else:
            is_thought = False
            start = len(completion) if opened >= 0 else 0
        answer = None
        end = completion.rfind(ANSWER_CLOSE)
        begin = completion.rfind(ANSWER_OPEN, start, max(start, end))
        if begin >= 0:
            begin += len(ANSWER_OPEN)
            answer = completion[begin : completion.find(ANSWER_CLOSE, begin)].strip()
        is_trailing = end >= 0 and bool(completion[end + len(ANSWER_CLOSE) :].strip())
        return is_thought and answer is not None, False, answer, is_trailing

    def _untagged(self, completion: str) -> str | None:
        """The answer in a *completion* without answer tags."""
        if not self.pattern:
            return completion.strip() or None
        _, closing, text = completion.rpartition(f"</{self.tag}>")
        if not closing and f"<{self.tag}>" in text:
            return None
        answers = re.findall(self.pattern, text)
        return (answers[-1].strip(_QUOTES) or None) if answers else None


#: What may enclose an answer in a line of text.
_QUOTES = " \t\r\"'`*$"
_IN_BRACES = r"[^{}]*(?:\{[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*\}[^{}]*)*"

#: By the name in a row's ``style``.
STYLES = {
    "prefilled": Style(),
    "model_opens": Style(model_opens=True),
    "lines": Style(tag="thinking", model_opens=True, lines=True),
    "direct": Style(model_opens=True, direct=True),
    "boxed": Style(
        model_opens=True,
        direct=True,
        pattern=rf"(\\boxed\s*\{{{_IN_BRACES}\}})",
        written=r"\boxed{{{}}}",
    ),
    "answer_line": Style(
        model_opens=True, direct=True, pattern=r"(?i)\banswer:\s*(.*)", written="Answer: {}"
    ),
}


StyleChoice = Literal["prefilled", "model_opens", "lines", "direct", "boxed", "answer_line"]
#: The flag of a style.
StyleName = Annotated[
    StyleChoice | None,
    option(
        "Response format. prefilled: the prompt opens <think>; model_opens: the model opens it; direct: answer only; "
        "boxed: in \\boxed{}; answer_line: after Answer:; lines: GSM8K only.",
        PROMPT,
        metavar="NAME",
    ),
]

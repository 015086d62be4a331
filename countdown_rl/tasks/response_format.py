"""The two blocks of a completion: thinking, then an answer. How they are laid out, and how they are read.

The answer that counts is the last complete one after the thinking. Thinking ends at the first closing
tag, whether the prompt or the model opened it. A completion that opens it and never closes it has no
answer; one that never thinks is read from its start, though its format is wrong.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

OPEN, CLOSE = "<answer>", "</answer>"


class Blocks(NamedTuple):
    """What :meth:`Style.read` found; the fields are those of a ``Grade``."""

    format: bool
    strict: bool
    answer: str | None
    trailing: bool


@dataclass(frozen=True)
class Style:
    """One layout.

    Attributes:
        tag: the thinking tag, ``think`` or ``thinking``.
        own: the model must write the opening tag itself; else the prompt may have written it.
        lines: a new line after each tag, rather than just one between the blocks.
    """

    tag: str = "think"
    own: bool = False
    lines: bool = False
    _strict: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Anything but these tags. Possessive, so that a near miss costs no second look at the text.
        text = rf"[^<]*+(?:<(?!/?(?:{self.tag}|answer)>)[^<]*+)*+"
        new = r"\n" if self.lines else ""
        begin = rf"<{self.tag}>{new}" if self.own else rf"(?:<{self.tag}>{new})?"
        pattern = rf"{begin}{text}</{self.tag}>\n<answer>{new}({text})</answer>\n?"
        object.__setattr__(self, "_strict", re.compile(pattern))

    def read(self, completion: str) -> Blocks:
        """The blocks of *completion*, in time linear in its length."""
        exact = self._strict.fullmatch(completion)
        if exact:
            return Blocks(True, True, exact[1].strip(), False)
        opened, closed = completion.find(f"<{self.tag}>"), completion.find(f"</{self.tag}>")
        if closed < 0:
            thought, start = False, len(completion) if opened >= 0 else 0
        else:
            thought, start = 0 <= opened < closed or not self.own, closed
        answer = last_answer(completion, start)
        last = completion.rfind(CLOSE)
        trailing = last >= 0 and not completion[last + len(CLOSE) :].isspace() and last + len(CLOSE) < len(completion)
        return Blocks(thought and answer is not None, False, answer, trailing)


def last_answer(text: str, start: int) -> str | None:
    """The last complete ``<answer>`` block at or after *start*, stripped; None where there is none."""
    end = len(text)
    while (begin := text.rfind(OPEN, start, end)) >= 0:
        close = text.find(CLOSE, begin, end)
        if close >= 0:
            return text[begin + len(OPEN) : close].strip()
        end = begin
    return None


#: By the name that a row's ``style`` has. Rows without one are read as ``begun``.
STYLES = {
    "begun": Style(),
    "own": Style(own=True),
    "lines": Style(tag="thinking", own=True, lines=True),
}

"""One puzzle put to a model: its text as it comes, its grade, and what the solver knows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from countdown_rl.errors import ModelError
from countdown_rl.inference import generate
from countdown_rl.inference.config import AskOptions
from countdown_rl.models import chat_template, load
from countdown_rl.puzzle import rules, solver
from countdown_rl.puzzle.rules import Puzzle
from countdown_rl.puzzle.solver import Solved
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.task import Grade


@dataclass(frozen=True)
class Reply:
    """What came of a puzzle: the row that posed it, the completion, its grade, and the exact solution."""

    row: CountdownRow
    completion: generate.Completion
    grade: Grade
    solved: Solved

    def sample(self) -> dict[str, Any]:
        """The reply as a sample of an evaluation is written."""
        about = {"tokens": self.completion.tokens, "truncated": not self.completion.ended}
        return dict(self.row) | {"completion": self.completion.text} | asdict(self.grade) | about


def pose(options: AskOptions, numbers: list[int], target: int) -> CountdownRow:
    """The row that poses a puzzle; what is as usual is left out, as in data.

    Raises:
        InputError: there are more than six numbers, one is not positive, or an operator is unknown.
    """
    operators = rules.operators(options.operators)
    solver.check(Puzzle(tuple(numbers), target, rules.rule(options.rule), operators))
    row: dict[str, Any] = {"nums": numbers, "target": target}
    usual = {"rule": rules.DEFAULT_RULE, "operators": rules.OPERATORS, "style": "begun"}
    given = {"rule": options.rule, "operators": operators, "style": options.style}
    return CountdownRow(row | {key: value for key, value in given.items() if value != usual[key]})


def ask(
    loaded: load.Loaded, row: CountdownRow, options: AskOptions, on_text: Callable[[str], None] | None = None
) -> Reply:
    """Put *row* to a model, as an evaluation does.

    Args:
        on_text: called with each piece of the completion as soon as it can be read; together they are it.

    Raises:
        ModelError: the model cannot read the prompt and write a word.
    """
    text = chat_template.render(loaded.tokenizer, row.messages())
    ids: list[int] = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    room = generate.room(loaded) or len(ids) + options.max_new_tokens
    if room <= len(ids):
        raise ModelError(
            f"the model reads {room} tokens, and the puzzle alone takes {len(ids)}; give it a shorter one."
        )
    decoding = generate.Decoding(
        min(options.max_new_tokens, room - len(ids)), options.temperature, options.top_p, options.seed
    )
    pieces = _Pieces(loaded.tokenizer, on_text or (lambda piece: None))
    (completion,) = generate.Generator(loaded, decoding).complete([ids], on_token=pieces.add)
    pieces.finish(completion.text)
    return Reply(row, completion, row.grade(completion.text), solver.solve(row.puzzle))


class _Pieces:
    """Tokens in, text out. A character may take several tokens, and is told when it is whole."""

    def __init__(self, tokenizer: Any, tell: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._tell = tell
        self._ids: list[int] = []
        self._told = ""

    def add(self, token: int) -> None:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):
            self.finish(text)

    def finish(self, text: str) -> None:
        """Tell what *text*, all that was written, has beyond what was told."""
        if len(text) > len(self._told):
            self._tell(text[len(self._told) :])
            self._told = text

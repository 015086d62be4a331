"""The interface of an engine, which computes completions, and the completions themselves."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from countdown_rl.core.types import JsonObject
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import chat_template, shape
from countdown_rl.models.protocols import Tokenizer
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks.response_format import ANSWER_CLOSE
from countdown_rl.tasks.task import Row

#: The text that ends a completion.
STOP = ANSWER_CLOSE


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion.

    ``ended`` is False if the token limit cut it off. ``tokens`` and ``ended`` are None in a file of
    completions that lacks them. ``details`` are further fields of its sample, which only a server
    knows.
    """

    text: str
    tokens: int | None
    ended: bool | None
    details: JsonObject = field(default_factory=dict)

    def after(self, row: Row, prompt: str) -> "Completion":
        """This completion of *row* with the thinking that its rendered *prompt* opened."""
        answer = chat_template.Rendered(prompt, row.prompt().prefill).answer
        return replace(self, text=row.style.joined(answer, self.text))


class Engine:
    """A model ready to complete prompts.

    The versions of the distributions *libraries* decide the completions. *on_step* is called after
    each step of a batch with the token ids of one of its longest completions, by engines that
    compute step by step.
    """

    name: str
    #: The distribution that must be installed.
    package: str | None = None
    tokenizer: Tokenizer
    precision: str
    storage: str
    device: str
    libraries: tuple[str, ...]
    #: The server that holds the model, and what it did with requests, for the metrics.
    endpoint: JsonObject | None = None
    on_step: Callable[[list[int]], None] | None = None

    @classmethod
    def load(cls, ref: ModelRef, decoding: Decoding, options: Any) -> "Engine":
        """Load *ref* in the precision of *options*."""
        raise NotImplementedError

    @classmethod
    def unsupported(cls, ref: ModelRef, options: Any) -> str:
        """Return the reason why this engine cannot run *ref*, as the end of a sentence, or ""."""
        return ""

    def prepare(self, length: int) -> int | None:
        """Prepare for prompts and completions of *length* tokens together.

        Returns the context length if it is known.
        """
        return None

    def max_rows(self, length: int) -> int:
        """Return the rows of prompt and completion of *length* tokens together that fit a batch."""
        return 1

    def prompts(self, rows: Sequence[Row], max_new_tokens: int) -> tuple[Sequence[Row], list[Any]]:
        """Return *rows* as this engine completes them, and the prompt of each.

        Prepares for their length; raises ModelError if it exceeds the context.
        """
        prompts = chat_template.encode(self.tokenizer, (row.messages() for row in rows))
        longest = max(map(len, prompts))
        context = self.prepare(longest + max_new_tokens)
        shape.check_context(context, longest, max_new_tokens, "--max-new-tokens")
        return rows, prompts

    def complete(self, prompts: Sequence[Any], number: int = 0) -> list[Completion]:
        """Complete each of *prompts* (token ids); batch *number* has its own random numbers."""
        raise NotImplementedError

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]]
    ) -> Generator[tuple[int, list[Completion]]]:
        """Yield the position of each of *batches*, a number and prompts, with its completions."""
        for position, (number, prompts) in enumerate(batches):
            yield position, self.complete(prompts, number)


def batches(lengths: Sequence[int], capacity: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield the indices of rows in batches of similar length.

    Args:
        lengths: tokens of each row.
        capacity: returns the rows that fit a batch whose longest row has so many tokens.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and len(batch) >= capacity(lengths[row]):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def row_seed(seed: int, number: int, index: int) -> int:
    """The seed of row *index* of batch *number*, for engines that seed each row."""
    return seed * 1_000_003 + number * 4096 + index


def to_completion(stop: Stop, ids: Sequence[int]) -> Completion:
    """The completion of the token *ids*."""
    return Completion(stop.decode(ids), len(ids), bool(ids) and stop(ids))

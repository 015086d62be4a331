"""Decoding in any engine: sampling parameters, drawing a token, and the end of a completion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from countdown_rl.models import ends
from countdown_rl.models.protocols import CausalLM, Tokenizer
from countdown_rl.models.shape import ModelShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import StoppingCriteriaList

#: The sampling parameters that every engine applies, and no others, in the order of transformers.
SAMPLERS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Decoding:
    """Sampling parameters; temperature 0 is greedy decoding."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, options: object) -> "Decoding":
        """The fields of these names in *options*."""
        names = [field.name for field in fields(cls) if hasattr(options, field.name)]
        return cls(**{name: getattr(options, name) for name in names})

    def samplers(self) -> dict[str, float]:
        """The sampling parameters by name."""
        return {name: getattr(self, name) for name in SAMPLERS}


def sample(
    logits: "Tensor", decoding: Decoding, generator: "torch.Generator | None" = None
) -> "Tensor":
    """Return a token for each row of logits.

    Args:
        logits: (B, V).
        decoding: at temperature 0 the likeliest token is taken, else one is drawn after
            temperature, top-k, top-p and min-p, as in transformers.
        generator: random numbers.

    Returns:
        The ids (B,).
    """
    import torch
    import transformers

    if decoding.temperature == 0:
        return logits.argmax(-1)
    warpers = [transformers.TemperatureLogitsWarper(float(decoding.temperature))]
    if decoding.top_k:
        warpers.append(transformers.TopKLogitsWarper(decoding.top_k))
    if decoding.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(decoding.top_p))
    if decoding.min_p:
        warpers.append(transformers.MinPLogitsWarper(decoding.min_p))
    for warp in warpers:
        logits = warp(None, logits)
    cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(logits), 1, dtype=torch.float64, generator=generator)
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]


class Stop:
    """The end of a completion: one of the tokens *ids*, or the string *text*.

    The tokens are those of the model, which may be a skeleton, its tokenizer and its chat template.
    """

    def __init__(self, tokenizer: Tokenizer, model: CausalLM, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text
        #: The text cannot be longer in tokens than in characters, and one more may hold its end.
        self.tail = len(text) + 1
        size = ModelShape.of(model.config).vocab_size
        named = model.generation_config.eos_token_id
        self.ids = set(ends.token_ids(tokenizer, named, size))
        pad = tokenizer.pad_token_id
        if pad < size:
            self.ids.add(pad)
        text_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(text_ids) == 1:
            self.ids.update(text_ids)
        self._left_out = self.ids.difference(text_ids)
        #: A completion that ends with another token is not decoded to search the text.
        self._may_end = {
            index for token, index in tokenizer.get_vocab().items() if text[-1] in token
        }

    def __call__(self, ids: Sequence[int]) -> bool:
        """Return True if a completion ends with its last token."""
        if ids[-1] in self.ids:
            return True
        return ids[-1] in self._may_end and self.text in self.tokenizer.decode(ids[-self.tail :])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion without its end token and padding."""
        text = [index for index in ids if index not in self._left_out]
        return self.tokenizer.decode(text, skip_special_tokens=False)

    def cut(self, ids: list[int]) -> list[int]:
        """*ids* up to and including the token that ends the completion."""
        for end in range(1, len(ids) + 1):
            if self(ids[max(0, end - self.tail) : end]):
                return ids[:end]
        return ids


def stopping_criteria(
    stop: Stop, start: int, on_step: Callable[[list[int]], None] | None = None
) -> "StoppingCriteriaList":
    """The criterion of transformers for *stop*.

    Args:
        stop: end of a completion.
        start: the column at which completions begin.
        on_step: called after each step with the token ids so far of the first row.
    """
    import torch
    from transformers import StoppingCriteriaList

    def finished(ids: "Tensor", *_: object, **__: object) -> "Tensor":  # (B, S) -> (B,) bool
        if on_step is not None:
            on_step(ids[0, start:].tolist())
        tails = ids[:, max(start, ids.shape[1] - stop.tail) :].tolist()
        return torch.tensor([stop(tail) for tail in tails], device=ids.device)

    return StoppingCriteriaList([finished])

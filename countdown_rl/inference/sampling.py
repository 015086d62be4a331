"""Decoding in any engine: sampling parameters, the distribution of a token as transformers forms it, and the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from countdown_rl.models import ends
from countdown_rl.models.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

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
    def of(cls, options: Any) -> "Decoding":
        """The fields of these names in *options*."""
        names = [field.name for field in fields(cls) if hasattr(options, field.name)]
        return cls(**{name: getattr(options, name) for name in names})

    def samplers(self) -> dict[str, Any]:
        """The sampling parameters by name."""
        return {name: getattr(self, name) for name in SAMPLERS}


def distribution(logits: "Tensor", decoding: Decoding) -> "Tensor":
    """The probabilities (B, V) of *logits* at a temperature above 0, then top-k, top-p and min-p, as in transformers.
    No value is read by the host, so that a CUDA graph can follow."""
    import torch

    if decoding.top_k:
        least = logits.topk(min(decoding.top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probabilities = (logits / decoding.temperature).softmax(-1)
    if decoding.top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= decoding.top_p, 0)
        probabilities = torch.zeros_like(ordered).scatter_(-1, order, ordered)
    if decoding.min_p:
        least = decoding.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    return probabilities


class Stop:
    """The end of a completion: an end token of the model, its tokenizer or its chat template, or the string *text*.

    If *model* is None, because another engine holds it, only the tokenizer names the end tokens. The tokens *ids* end a
    completion; where *may_end* (V,) is False for its last token, it is not decoded to search it.
    """

    def __init__(self, tokenizer: Any, model: Any, text: str) -> None:
        import torch

        self.tokenizer, self.text = tokenizer, text
        named = None if model is None else model.generation_config.eos_token_id
        size = len(tokenizer) if model is None else ModelShape.of(model.config).vocab_size
        text_ids = tokenizer.encode(text, add_special_tokens=False)
        self.ids = set(ends.token_ids(tokenizer, named, size))
        self.ids |= set(text_ids) if len(text_ids) == 1 else set()
        if tokenizer.pad_token_id is not None and tokenizer.pad_token_id < size:
            self.ids.add(tokenizer.pad_token_id)
        self._left_out = self.ids.difference(text_ids)
        self.may_end = torch.zeros(size, dtype=torch.bool)
        last = [index for token, index in tokenizer.get_vocab().items() if text[-1] in token]
        self.may_end[[*self.ids, *(index for index in last if index < size)]] = True

    def __call__(self, ids: Sequence[int]) -> bool:
        """Return True if a completion ends with its last token."""
        # The text cannot be longer in tokens than in characters, and one more may hold its end.
        return ids[-1] in self.ids or self.text in self.tokenizer.decode(ids[-len(self.text) - 1 :])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion without its end token and padding; other special tokens are kept."""
        text = [index for index in ids if index not in self._left_out]
        return str(self.tokenizer.decode(text, skip_special_tokens=False))

    def cut(self, ids: list[int], start: int = 0) -> list[int]:
        """*ids* up to and including the token that ends the completion; the first *start* of them do not."""
        import torch

        # Another engine may know tokens that the tokenizer does not: at the last one of these the stop decides.
        tokens = torch.tensor(ids[start:], dtype=torch.long).clamp(max=len(self.may_end) - 1)
        candidates = (start + 1 + index for index in self.may_end[tokens].nonzero()[:, 0].tolist())
        return ids[: next((end for end in candidates if self(ids[:end])), len(ids))]


def stopping_criteria(
    stop: Stop, start: int, on_step: Callable[[list[int]], None] | None = None
) -> Any:
    """The criterion of transformers for *stop*, for rows whose completions begin at column *start*; *on_step* is called
    after each step with the token ids of the first row so far."""
    import torch
    from transformers import StoppingCriteriaList

    def finished(ids: Any, scores: Any, **kwargs: Any) -> Any:  # (B, S) ids -> (B,) bool
        if on_step is not None:
            on_step(ids[0, start:].tolist())
        tail = ids[
            :, max(start, ids.shape[1] - len(stop.text) - 1) :
        ].cpu()  # all that the stop looks at
        candidates = stop.may_end[tail[:, -1]].tolist()
        done = [
            may_end and stop(row) for may_end, row in zip(candidates, tail.tolist(), strict=True)
        ]
        return torch.tensor(done, device=ids.device)

    return StoppingCriteriaList([finished])

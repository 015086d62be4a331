"""Cross entropy against the teacher: hard labels, and the teacher's distribution where a trace chooses a way.

The distribution is known (:func:`traces.next_ways`), so the model learns to choose as the teacher does without the
noise of the choices that were drawn (distillation of a known policy), and without learning where a trace begins.
"""

from typing import Any

import torch

from countdown_rl.tiny import traces

#: Rows of logits computed at a time.
CHUNK = 512

#: Kinds of tokens: the number of a line, and the end of one that does not reach the target.
_NUMBER, _SKIP = 1, 2


class TeacherLabels:
    """The teacher's distribution over the first way of a trace, and over the ways to skip after each line.

    Attributes:
        tokens: (2 W,) those that begin the first line, and those that end a line, for a window of W ways.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, device: Any) -> None:
        numbers = [f"{number}. " for number in range(1, traces.MAX_WAYS + 1)]
        ids = tokenizer([*numbers, *(f" {skip}\n" for skip in traces.SKIPS)], add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([first for first, *_ in ids], device=device)
        self._kind = torch.zeros(vocab_size, dtype=torch.long, device=device)  # (V,)
        self._kind[tokens[: len(numbers)]] = _NUMBER
        self._kind[tokens[len(numbers) :]] = _SKIP
        self.tokens = torch.cat([tokens[: len(traces.SKIPS)], tokens[len(numbers) :]])

    def __call__(self, labels: torch.Tensor, ways: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the choices (C,), as indices of the labels that are not -100, and their distributions (C, 2 W).

        Args:
            labels: (B, T), -100 where nothing is trained.
            ways: (B,) the number of ways in the plan of each row.
        """
        kind = torch.where(labels >= 0, self._kind[labels.clamp(min=0)], 0)  # (B, T)
        number = kind == _NUMBER
        first = number & (number.cumsum(1) == 1)
        choice = first | (kind == _SKIP)
        rows = choice.nonzero()[:, 0]
        width = torch.tensor([traces.window(count) for count in ways.tolist()], device=labels.device)[rows, None]
        window = torch.arange(len(traces.SKIPS), device=labels.device) < width
        of_first = first[choice][:, None]
        distributions = torch.cat([window & of_first, window & ~of_first], 1) / width
        return choice[labels >= 0].nonzero()[:, 0], distributions


def cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    labels: torch.Tensor,
    columns: torch.Tensor,
    soft: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Return the summed cross entropy of *labels* (N,) under the logits *hidden* (N, H) @ *head* (V, H) transposed.

    Logits and their gradient are computed :data:`CHUNK` rows at a time in bf16 products and never held in full.

    Args:
        columns: (K,) tokens of the distributions.
        soft: rows (C,) whose label is a distribution, and these distributions (C, K) over *columns*.
    """
    return _Chunked.apply(hidden, head, labels, columns, *soft)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        labels: torch.Tensor,
        columns: torch.Tensor,
        rows: torch.Tensor,
        distributions: torch.Tensor,
    ) -> torch.Tensor:
        half = head.bfloat16()
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden, d_head = torch.empty_like(hidden, dtype=torch.bfloat16), torch.zeros_like(head)
        for start in range(0, len(hidden), CHUNK):
            chunk, correct = hidden[start : start + CHUNK].bfloat16(), labels[start : start + CHUNK, None]
            count = len(chunk)
            chunk = torch.nn.functional.pad(chunk, (0, 0, 0, CHUNK - count))  # one shape
            target = torch.zeros(CHUNK, len(half), device=hidden.device)
            target[:count].scatter_(1, correct, 1.0)
            inside = (rows >= start) & (rows < start + count)
            chosen = rows[inside] - start
            target[chosen] = 0
            target[chosen[:, None], columns] = distributions[inside]
            log_probs = (chunk @ half.T).float().log_softmax(1)
            total -= (target * log_probs).sum()
            gradient = log_probs.exp_().sub_(target)
            gradient[count:] = 0
            gradient = gradient.bfloat16()
            d_hidden[start : start + count] = (gradient @ half)[:count]
            d_head += gradient.T @ chunk
        context.save_for_backward(d_hidden, d_head)
        context.dtype = hidden.dtype
        return total

    @staticmethod
    def backward(context: Any, *upstream: torch.Tensor) -> Any:
        d_hidden, d_head = context.saved_tensors
        return (d_hidden * upstream[0]).to(context.dtype), d_head * upstream[0], None, None, None, None

"""TRL's log-probabilities, with a backward pass over those tokens that have a gradient.

TRL computes them from the hidden states without holding all logits, and in the backward pass computes the logits of
every token again. With ``top_entropy_quantile`` the loss is on a few tokens, and the gradient of all others is zero.
"""

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer import utils


class LogProbFunction(ChunkedLogProbFunction):
    """``ChunkedLogProbFunction``; tokens of zero gradient are left out of its backward pass."""

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, *others: Any) -> Any:
        if grad_logprobs is None or grad_entropy is not None:
            return ChunkedLogProbFunction.backward(ctx, grad_logprobs, grad_entropy, *others)
        hidden, weight, bias, *by_token = ctx.saved_tensors
        kept = grad_logprobs.nonzero()[:, 0]
        part = SimpleNamespace(
            saved_tensors=(hidden[kept], weight, bias, *(values[kept] for values in by_token)),
            **{name: getattr(ctx, name) for name in ("compute_dtype", "chunk_size", "kernel_args", "needs_input_grad")},
        )
        grad_hidden, *grads = ChunkedLogProbFunction.backward(part, grad_logprobs[kept], None)
        return hidden.new_zeros(hidden.shape).index_copy_(0, kept, grad_hidden), *grads


def use() -> None:
    """Let TRL's trainers use :class:`LogProbFunction`."""
    utils._ChunkedLogProbFunction = LogProbFunction

"""The distribution of the next token, as transformers forms it."""

import torch
from torch import Tensor

from countdown_rl.inference.generate import Decoding


def distribution(logits: Tensor, decoding: Decoding) -> Tensor:
    """The probabilities (B, V) of *logits* at a temperature above 0, then top-k, top-p and min-p, as in transformers.

    No value is read by the host, so that a CUDA graph can follow.
    """
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

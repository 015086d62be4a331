"""TRL's losses on a CPU: the positions and the part of the vocabulary that are computed at a time."""

from types import SimpleNamespace

import torch
from trl.kernels import chunked_logprob
from trl.trainer import utils

from countdown_rl.training.loss_internals import score_less_at_a_time
from countdown_rl.training.memory import CPU_TILE
from tests.support import tiny_llama


def test_only_the_positions_of_the_loss_are_scored_in_small_tiles(monkeypatch):
    apply, scored = utils._ChunkedLogProbFunction.apply, []

    def recording(hidden, weight, bias, targets, temperature, tile, *more):
        scored.append((len(hidden), tile))
        return apply(hidden, weight, bias, targets, temperature, tile, *more)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=recording))
    monkeypatch.setattr(
        utils, "_use_triton", chunked_logprob._use_triton
    )  # TRL's, whatever ran in this process before
    monkeypatch.setattr(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 32_768)
    model = tiny_llama.model(vocab_size=CPU_TILE + 10).float()
    utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    labels = torch.randint(5, CPU_TILE, (2, 12))
    ids = labels.clone()
    labels[:, :7] = labels[1, 10:] = -100

    def step():
        model.zero_grad()
        found = model(ids, labels=labels, fused_lm_head=True)
        (found.loss + found.entropy.sum()).backward()
        return found.log_probs.detach(), [parameter.grad for parameter in model.parameters()]

    whole, gradients = step()
    score_less_at_a_time()
    fewer, same = step()
    assert scored == [
        (22, 32_768),
        (8, CPU_TILE),
    ]  # TRL's own way has no need of another once it scores as few
    torch.testing.assert_close(fewer, whole)
    torch.testing.assert_close(same, gradients)

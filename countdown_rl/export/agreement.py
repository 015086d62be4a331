"""Agreement of two models on text that one of them, the reference, generates.

The reference continues real prompts greedily, in batches. Then both models score these tokens, one
sequence at a time and without padding: only their weights differ.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from countdown_rl.models.chat_template import render
from countdown_rl.models.load import Loaded

#: Prompts of a comparison, prompts continued at once, and tokens of each continuation.
PROMPTS = 8
BATCH, TOKENS = 8, 32
#: Tokens of the answers that a verdict is about, and points of accuracy above which a bound says
#: nothing.
_ANSWER, _MAX_BOUND = 100, 10
#: Token ids of a prompt and its continuation, and the index at which that begins.
Transcript = tuple[list[int], int]


def verdict(facts: Mapping[str, float]) -> str:
    """Return the verdict on the *facts* of an agreement, with a bound on the change of accuracy.

    By Pinsker's inequality, answers of n tokens are correct with probabilities that differ by at
    most sqrt(n KL / 2).
    """
    points = 100 * math.sqrt(_ANSWER * facts["kl"] / 2)
    if points > _MAX_BOUND:
        return (
            "unclear (this KL does not bound accuracy; `countdown-rl eval` both and "
            "`countdown-rl compare` them)"
        )
    word = "equivalent" if points <= 1 else "close"
    return (
        f"{word} (worst-case bound {max(points, 0.1):.1f} points of accuracy in answers of "
        f"{_ANSWER} tokens; `countdown-rl compare` measures the change)"
    )


def described(name: str, facts: Mapping[str, float]) -> list[str]:
    """Return the *facts* of an agreement with the weights called *name*, and its verdict."""
    same = f"same token at {100 * facts['greedy']:.1f}% of {facts['positions']:.0f} positions"
    return [f"  against {name}: {same}, KL {facts['kl']:.2g}", f"    {verdict(facts)}"]


@torch.inference_mode()
def transcripts(
    reference: Loaded, conversations: Sequence[Sequence[Mapping[str, str]]]
) -> list[Transcript]:
    """Render each conversation and let *reference* continue it greedily for `TOKENS` tokens."""
    texts = [render(reference.tokenizer, conversation) for conversation in conversations]
    sampling = dict.fromkeys(("temperature", "top_p", "top_k"))
    continued = []
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        inputs = reference.tokenizer(
            batch, add_special_tokens=False, padding=True, return_tensors="pt"
        ).to(reference.device)
        mask = inputs["attention_mask"]
        sequences = reference.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=mask,
            do_sample=False,
            repetition_penalty=1.0,
            max_new_tokens=TOKENS,
            eos_token_id=None,
            **sampling,
        )
        for sequence, length in zip(sequences.tolist(), mask.sum(1).tolist(), strict=True):
            continued.append((sequence[mask.shape[1] - length :], length))  # padded on the left
    return continued


@torch.inference_mode()
def logits(loaded: Loaded, transcripts: Sequence[Transcript]) -> list[torch.Tensor]:
    """Return the logits that predict each continuation: (tokens, vocabulary), fp32, CPU."""
    scores = []
    for ids, start in transcripts:
        inputs = torch.tensor([ids], device=loaded.device)
        output = loaded.model(inputs, logits_to_keep=len(ids) - start + 1)
        scores.append(output.logits[0, :-1].float().cpu())
    return scores


def compare(reference: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> dict[str, float]:
    """Compare two models.

    Args:
        reference: its :func:`logits` on some transcripts.
        other: those of the other model on the same.

    Returns:
        Over all ``positions``: ``max_logit_difference``, ``kl``, the mean KL divergence from the
        reference in nats, and ``greedy``, the share of equal top tokens. They have three digits, as
        further ones differ between machines.
    """
    largest = divergence = 0.0
    same = positions = 0
    for p, q in zip(reference, other, strict=True):  # (tokens, vocabulary) each
        log_p = p.double().log_softmax(-1)
        log_q = q.double().log_softmax(-1)
        largest = max(largest, (p - q).abs().max().item())
        divergence += (log_p.exp() * (log_p - log_q)).sum().item()
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        positions += len(p)
    facts = {
        "max_logit_difference": largest,
        "kl": divergence / positions,
        "greedy": same / positions,
        "positions": positions,
    }
    return {name: float(f"{fact:.3g}") for name, fact in facts.items()}

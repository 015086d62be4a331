"""How closely one model agrees with another on what the second would really write.

The reference continues real prompts greedily; then both models score those very tokens, one sequence
at a time and without padding, so that nothing but the weights can differ.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from countdown_rl.models.chat_template import render
from countdown_rl.models.load import Loaded

#: How many prompts each degree of verification looks at, and how many tokens the reference continues each.
PROMPTS = {"sample": 8, "full": 64}
TOKENS = 32


@dataclass(frozen=True)
class Transcript:
    """Token ids of a prompt and its continuation; ``start`` is where the continuation begins."""

    ids: list[int]
    start: int


@dataclass(frozen=True)
class Agreement:
    """Over every continued position: the largest logit difference, the mean KL divergence from the
    reference in nats, and the share of positions where both would choose the same token."""

    max_logit_difference: float
    kl: float
    greedy: float
    positions: int

    def as_facts(self) -> dict[str, float]:
        """Three digits of each: the rest differs between machines."""
        return {name: float(f"{value:.3g}") for name, value in vars(self).items()}


def puzzles(count: int) -> list[dict[str, Any]]:
    """*count* Countdown rows to ask about, always the same; it does not matter whether they can be solved."""
    chance = random.Random(2024)
    return [
        {
            "task": "countdown",
            "nums": [chance.randint(1, 99) for _ in range(chance.choice((3, 4)))],
            "target": chance.randint(10, 100),
        }
        for _ in range(count)
    ]


def transcripts(reference: Loaded, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[Transcript]:
    """Each conversation rendered, and continued greedily by *reference* for `TOKENS` tokens."""
    written = []
    for conversation in conversations:
        text = render(reference.tokenizer, conversation)
        ids = reference.tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            prompt = torch.tensor([ids], device=reference.device)
            whole = reference.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=TOKENS,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
                eos_token_id=None,
            )
        written.append(Transcript(whole[0].tolist(), len(ids)))
    return written


def logits(loaded: Loaded, written: Sequence[Transcript]) -> list[torch.Tensor]:
    """For each transcript the logits that predict its continuation: (tokens, vocabulary), fp32, CPU."""
    scores = []
    with torch.inference_mode():
        for one in written:
            ids = torch.tensor([one.ids], device=loaded.device)
            keep = len(one.ids) - one.start + 1
            last = loaded.model(input_ids=ids, logits_to_keep=keep).logits[0, :-1]
            scores.append(last.float().cpu())
    return scores


def compare(reference: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> Agreement:
    """Agreement of *other* with *reference*, both from :func:`logits` on the same transcripts."""
    largest = divergence = 0.0
    same = positions = 0
    for p, q in zip(reference, other, strict=True):  # (tokens, vocabulary) each
        log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        largest = max(largest, (p - q).abs().max().item())
        divergence += (log_p.exp() * (log_p - log_q)).sum().item()
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        positions += len(p)
    return Agreement(largest, divergence / positions, same / positions, positions)

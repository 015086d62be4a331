"""What one round of GRPO produces, from sampling to advantages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from countdown_rl.evaluation.sample import Sample
from countdown_rl.training.grpo import advantages
from countdown_rl.training.grpo.prompts import Outcome


@dataclass
class Sampled:
    """A completion as token ids."""

    index: int  # of its row
    prompt: str
    prompt_ids: list[int]
    ids: list[int]
    logps: list[float] | None  # with which an engine other than the policy sampled *ids*


@dataclass
class Graded:
    """A completion with its grade (in *sample*, as it is stored), rewards and advantage."""

    sampled: Sampled
    sample: Sample
    rewards: dict[str, float | None] = field(default_factory=dict)  # None if it does not apply
    advantage: float = 0.0  # mean over its tokens


@dataclass
class Round:
    """The completions of a round in this process, those of a puzzle side by side."""

    graded: list[Graded]
    seconds_generation: float
    seconds_reward: float  # of grades and rewards
    logged: list[tuple[str, float]]  # metrics of the user's rewards
    draws: int | None = None  # groups that all processes sampled; None without dynamic sampling
    outcomes: list[Outcome] = field(default_factory=list)  # of all processes, for a sampler

    def totals(self, weights: Mapping[str, float]) -> torch.Tensor:
        """Return the weighted sums (B,) of the rewards; NaN where none applies."""
        values = [[graded.rewards[name] for name in weights] for graded in self.graded]
        rewards = torch.from_numpy(np.array(values, np.float32))
        return advantages.total(rewards, torch.tensor(list(weights.values())))

    def groups(self, weights: Mapping[str, float], size: int) -> list[tuple[list[Graded], bool]]:
        """Return the groups of *size* completions, each with True if its rewards vary."""
        varies = advantages.varies(self.totals(weights).view(-1, size))
        starts = range(0, len(self.graded), size)
        parts = [self.graded[start : start + size] for start in starts]
        return list(zip(parts, varies, strict=True))

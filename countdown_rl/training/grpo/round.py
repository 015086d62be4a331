"""What one round of GRPO produces, from sampling to advantages."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from accelerate.utils import gather_object

from countdown_rl.evaluation.sample import Sample
from countdown_rl.training.grpo import advantages, rewards
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
        values = [list(map(graded.rewards.get, weights)) for graded in self.graded]
        rewards = torch.from_numpy(np.array(values, np.float32))  # None is NaN
        sums = (rewards * torch.tensor(list(weights.values()))).nansum(1)
        return sums.masked_fill(rewards.isnan().all(1), torch.nan)

    def groups(self, weights: Mapping[str, float], size: int) -> list[tuple[list[Graded], bool]]:
        """Return the groups of *size* completions, each with True if its rewards vary."""
        varies = advantages.varies(self.totals(weights).view(-1, size))
        starts = range(0, len(self.graded), size)
        parts = [self.graded[start : start + size] for start in starts]
        return list(zip(parts, varies, strict=True))

    def metrics(self, totals: torch.Tensor) -> dict[str, float]:
        """Return the metrics of the log, by their names in TRL.

        Args:
            totals: (groups, generations) weighted sums of the rewards in all processes.
        """
        noted = list(self.logged)
        for graded in self.graded:
            noted += rewards.metrics(graded.sample, graded.rewards).items()
        columns = defaultdict(list)
        for name, value in gather_object(noted):
            columns[name].append(value)

        metrics = {name: fmean(values) for name, values in columns.items()}
        for name, values in columns.items():
            if name.startswith("rewards/"):
                deviation = torch.tensor(values).std() if len(values) > 1 else torch.zeros(())
                metrics[name.removesuffix("mean") + "std"] = deviation.item()
        metrics |= {
            "reward": totals.nanmean().item(),
            "frac_reward_zero_std": advantages.equal(totals).float().mean().item(),
            "seconds_generation": self.seconds_generation,
            "seconds_reward": self.seconds_reward,
        }
        if self.draws is not None:
            metrics["draws"] = float(self.draws)
        return metrics

    def observed(self, totals: torch.Tensor) -> list[Outcome]:
        """Return the groups of all processes for a sampler; *totals* as in :meth:`metrics`."""
        own = [
            (each.sampled.index, bool(each.sample.grade.correct), each.sample.truncated)
            for each in self.graded
        ]
        completions = iter(gather_object(own))
        outcomes = []
        for group in totals.tolist():
            rows, correct, truncated = zip(*islice(completions, len(group)), strict=True)
            known = [None if math.isnan(total) else total for total in group]
            outcomes.append(Outcome(rows[0], known, correct, truncated))
        return outcomes

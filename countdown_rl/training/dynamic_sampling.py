"""Dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476): groups that are all correct or all wrong are resampled.

The puzzles of an attempt depend on the seed, the step and the attempt alone, so a resumed run samples the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from countdown_rl.training.rollouts import Graded, Rollouts, Round
from countdown_rl.training.samplers import Prompt

#: Most attempts of a round. Where half of the groups are mixed, four fill 94% of it. Where none is, the run needs an
#: easier start, not more attempts.
MAX_ATTEMPTS = 4


class DynamicRollouts(Rollouts):
    """Rollouts whose groups are mixed, if :data:`MAX_ATTEMPTS` attempts are enough."""

    def __init__(self, *args: Any, seed: int) -> None:
        super().__init__(*args)
        self._seed = seed

    def sample(self, prompts: Sequence[Prompt], trainer: Any) -> Round:
        """Complete and grade the rows of *prompts*, and others in place of groups that are not mixed."""
        sampled, size = super().sample(prompts, trainer), trainer.num_generations
        groups = _groups(sampled, size)
        sampled.attempts = len(groups) * trainer.accelerator.num_processes
        for attempt in range(1, MAX_ATTEMPTS):
            missing = [index for index, group in enumerate(groups) if not _is_mixed(group)]
            most = max(gather_object([len(missing)]))  # all processes complete as many: with some engines they must
            if not most:
                break
            rng = np.random.default_rng((self._seed, trainer.state.global_step, attempt))
            new = rng.integers(len(self.rows), size=(trainer.accelerator.num_processes, most))
            more = super().sample(new[trainer.accelerator.process_index].repeat(size).tolist(), trainer)
            for index, group in zip(missing, filter(_is_mixed, _groups(more, size)), strict=False):
                groups[index] = group
            sampled.attempts += most * trainer.accelerator.num_processes
            sampled.generation += more.generation
            sampled.reward += more.reward
        sampled.graded = [graded for group in groups for graded in group]
        return sampled


def _groups(sampled: Round, size: int) -> list[list[Graded]]:
    return [sampled.graded[start : start + size] for start in range(0, len(sampled.graded), size)]


def _is_mixed(group: Sequence[Graded]) -> bool:
    """Return True if some completions of *group* are correct and some are wrong."""
    return len({bool(graded.sample.grade.correct) for graded in group}) > 1

"""``countdown-rl`` with replay of rare successes, a variant of :mod:`benchmarks.variants`.

    python -m benchmarks.replay train ...

Groups of which at most a quarter is solved are used a second time, in the next step.
"""

import runpy

import torch
from torch.nn.functional import pad

from countdown_rl.training.grpo import trainer

RARE = 0.25  # share solved


class ReplayingTrainer(trainer.Trainer):
    """The trainer of ``train``, with the rows of rare successes of the step before in its last micro-batch.

    Their ratio of probabilities is 1, as for the rows of the step itself: the policy is one update older.
    """

    replayed = None

    def micro_batches(self, batch, sampled):
        first = self.reward_func_names[0]
        rewards = torch.tensor([graded.rewards[first] for graded in sampled.graded])
        solved = rewards.view(-1, self.num_generations).mean(1)
        rare = ((solved > 0) & (solved <= RARE)).repeat_interleave(self.num_generations)
        *parts, last = super().micro_batches(batch | {"rare": rare}, sampled)
        replayed, self.replayed = (
            self.replayed,
            joined([chosen(part, part["rare"]) for part in (*parts, last)]),
        )
        return [*parts, last if replayed is None else joined([last, replayed])]


def chosen(part, rows):
    """The *rows* of a micro-batch, without the factor of its loss."""
    return {
        key: value[rows] if value.ndim else value for key, value in part.items() if key != "share"
    }


def joined(parts):
    """One micro-batch of the rows of *parts*: prompts padded on the left, completions on the right.

    What is not by row is that of the first of them.
    """
    first, *_ = parts
    joint = {}
    for key, value in first.items():
        if key == "share" or not value.ndim:
            continue
        values = [part[key] for part in parts]
        if value.ndim > 1:
            width = max(value.shape[1] for value in values)
            left = key.startswith("prompt")
            missing = [width - value.shape[1] for value in values]
            values = [
                pad(value, (n, 0) if left else (0, n))
                for value, n in zip(values, missing, strict=True)
            ]
        joint[key] = torch.cat(values)
    return first | joint


if __name__ == "__main__":
    trainer.Trainer = ReplayingTrainer
    runpy.run_module("countdown_rl", run_name="__main__")

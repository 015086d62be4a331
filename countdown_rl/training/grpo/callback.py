"""The callback of ``train``: samples and warnings beside the log and checkpoints."""

from collections.abc import Sequence
from dataclasses import replace

from accelerate.utils import gather_object

from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import LogRow, rounded
from countdown_rl.training.callbacks import CheckpointCallback, Logs
from countdown_rl.training.grpo import warnings
from countdown_rl.training.grpo.round import Round
from countdown_rl.training.options import TrainOptions

#: Steps between those whose completions are saved.
SAMPLE_EVERY = 10


class GrpoCallback(CheckpointCallback):
    """Saves the completions of some steps, and warns."""

    options: TrainOptions
    _logs: Logs  # of the last step that sampled completions
    _round: Sequence[Sample]

    def on_round(self, step: int, sampled: Round) -> None:
        """Take in a round with its rewards and advantages, for *step* and those that share it."""
        self._round = [graded.sample for graded in sampled.graded]
        if sampled.outcomes:
            self.journal.outcomes.append(sampled.outcomes)
        count = self.round_steps
        # One of the steps 1, 1 + SAMPLE_EVERY, ... lies within the round, or the last step.
        due = (step + count - 2) // SAMPLE_EVERY != (step - 2) // SAMPLE_EVERY
        if not due and step + count <= self.journal.max_steps:
            return
        samples = []
        for graded in sampled.graded:
            advantage = rounded(graded.advantage)
            samples.append(
                replace(graded.sample, step=step, rewards=graded.rewards, advantage=advantage)
            )
        samples = gather_object(samples)
        size = self.options.num_generations
        self.journal.add_samples(
            [replace(sample, group=n // size).to_json() for n, sample in enumerate(samples)]
        )

    def warnings(self) -> dict[str, str]:
        return warnings.warnings(self.journal.rows, self._round)

    def row(self, step: int, logs: Logs, seconds: float) -> LogRow:
        if "reward" in logs:  # a step that reuses completions has none of its own
            self._logs = logs
        unmeasured = {"entropy": None, "kl": None}
        logs = {
            **unmeasured,
            **self._logs,
            "seconds_generation": 0.0,
            "seconds_reward": 0.0,
            **logs,
        }
        logs["seconds_rest"] = max(0.0, seconds - logs["step_time"])
        sampling = logs["seconds_generation"] + logs["seconds_reward"]
        logs["seconds_loss"] = logs["step_time"] - sampling
        return super().row(step, logs, seconds)

"""What a training run is judged by and remembered by: grades, rewards, and a row for every step."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from countdown_rl.grpo import Trainer
from countdown_rl.tasks import Grade
from countdown_rl.trainlog import StepRow, rounded


class Grading:
    """Reward functions for TRL over one grade a completion: each is read once, whatever is rewarded."""

    def __init__(
        self, grade: Callable[[str, Mapping[str, Any]], Grade], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._grade = grade
        self._decode = decode
        self._batch: Any = None
        self._grades: list[Grade] = []

    def function(
        self, name: str, reward: Callable[[Grade, Mapping[str, Any], int], float]
    ) -> Callable[..., list[float]]:
        """*reward* as TRL calls it: with the ``row`` column and the token ids of every completion."""

        def rewards(
            completion_ids: list[list[int]], row: list[Mapping[str, Any]], log_metric: Any, **_: Any
        ) -> list[float]:
            if self._batch is not completion_ids:
                pairs = zip(completion_ids, row, strict=True)
                self._batch, self._grades = (
                    completion_ids,
                    [self._grade(self._decode(ids), one) for ids, one in pairs],
                )
                log_metric("correct", sum(grade.correct for grade in self._grades) / len(self._grades))
                log_metric("format", sum(grade.format for grade in self._grades) / len(self._grades))
            graded = zip(self._grades, row, completion_ids, strict=True)
            return [reward(grade, one, len(ids)) for grade, one, ids in graded]

        rewards.__name__ = name
        return rewards


class Recorder(TrainerCallback):
    """Seeds each step, turns TRL's logs into rows, and says when a checkpoint is due.

    Args:
        rows: the rows of a run that is being continued, one a step; new ones are added.
        due: whether a checkpoint is wanted after this step.
        on_step: called with each new row, by the process that writes.
        on_checkpoint: called with the directory of a checkpoint that was just written.
    """

    def __init__(
        self,
        rows: list[StepRow],
        *,
        seed: int,
        due: Callable[[int], bool],
        on_step: Callable[[StepRow], None],
        on_checkpoint: Callable[[Path], None],
    ) -> None:
        self.rows = rows
        self.trainer: Trainer | None = None
        self._seed, self._due = seed, due
        self._on_step, self._on_checkpoint = on_step, on_checkpoint
        self._last: dict[str, Any] = {}
        self._begin = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin = time.perf_counter()
        torch.manual_seed(step_seed(self._seed, state.global_step, args.process_index))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_save = self._due(state.global_step)
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "grad_norm" not in logs or self.trainer is None:  # the summary at the end of training
            return
        if "reward" in logs:  # a step that reuses completions has none of its own
            self._last = logs
        known = self._last | logs
        seconds, self.trainer.seconds = self.trainer.seconds, dict.fromkeys(self.trainer.seconds, 0.0)
        entropy = known.get("entropy")
        row = StepRow(
            step=state.global_step,
            reward=rounded(known["reward"]),
            correct=rounded(known["correct"]),
            format=rounded(known["format"]),
            length=rounded(known["completions/mean_length"]),
            truncated=rounded(known["truncated"]),
            dead_groups=rounded(known["frac_reward_zero_std"]),
            entropy=None if entropy is None else rounded(entropy),
            kl=None if known.get("kl") is None else rounded(known["kl"]),
            grad_norm=rounded(logs["grad_norm"]),
            learning_rate=rounded(logs["learning_rate"]),
            seconds=rounded(time.perf_counter() - self._begin),
            **{f"seconds_{part}": rounded(spent) for part, spent in seconds.items()},
        )
        self.rows.append(row)
        if state.is_world_process_zero:
            self._on_step(row)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            self._on_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def step_seed(seed: int, step: int, process: int) -> int:
    """A seed for one step of one process, so that no step depends on how the ones before it were run."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

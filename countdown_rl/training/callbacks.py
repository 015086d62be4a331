"""What a training run is judged by and remembered by: grades, rewards, samples, and a row for every step."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from countdown_rl.runlog import diagnostics
from countdown_rl.runlog.log import KIND, StepRow, kinds, rounded
from countdown_rl.tasks.task import SHOWN, Grade
from countdown_rl.training.trainer import Trainer

#: The end of a completion without an answer that is enough to see what went wrong.
_TAIL = 60


class Graded(NamedTuple):
    """One completion: its row, its text, its grade and how many tokens it has."""

    row: Mapping[str, Any]
    text: str
    grade: Grade
    tokens: int


class Grading:
    """Reward functions for TRL over one grade a completion: each is read once, whatever is rewarded.

    Args:
        on_graded: called once a batch with the step that it is for and every completion of this process,
            those of one prompt side by side.
    """

    def __init__(
        self,
        grade: Callable[[str, Mapping[str, Any]], Grade],
        decode: Callable[[Sequence[int]], str],
        on_graded: Callable[[int, Sequence[Graded]], None],
    ) -> None:
        self._grade = grade
        self._decode = decode
        self._on_graded = on_graded
        self._batch: Any = None
        self._graded: list[Graded] = []

    def function(
        self, name: str, reward: Callable[[Grade, Mapping[str, Any], int], float]
    ) -> Callable[..., list[float]]:
        """*reward* as TRL calls it: with the ``row`` column and the token ids of every completion."""

        def rewards(
            completion_ids: list[list[int]],
            row: list[Mapping[str, Any]],
            log_metric: Any,
            trainer_state: Any,
            **_: Any,
        ) -> list[float]:
            if self._batch is not completion_ids:
                self._batch = completion_ids
                self._graded = [self._read(ids, one) for ids, one in zip(completion_ids, row, strict=True)]
                self._log(log_metric)
                self._on_graded(trainer_state.global_step + 1, self._graded)
            return [reward(one.grade, one.row, one.tokens) for one in self._graded]

        rewards.__name__ = name
        return rewards

    def _read(self, ids: Sequence[int], row: Mapping[str, Any]) -> Graded:
        text = self._decode(ids)
        return Graded(row, text, self._grade(text, row), len(ids))

    def _log(self, log_metric: Any) -> None:
        log_metric("correct", sum(one.grade.correct for one in self._graded) / len(self._graded))
        log_metric("format", sum(one.grade.format for one in self._graded) / len(self._graded))
        for one in self._graded:  # TRL takes the mean over all of them, in every process
            for kind in kinds(one.row):
                log_metric(kind, float(one.grade.correct))


class Recorder(TrainerCallback):
    """Seeds each step, turns TRL's logs into rows, keeps samples, and says when a checkpoint is due.

    Args:
        rows: the rows of a run that is being continued, one a step; new ones are added.
        warnings: what was said of it already, by name; new ones are added.
        sample_size: completions a sample, of as many puzzles where there are that many.
        sampled: whether completions for this step are kept.
        due: whether a checkpoint is wanted after this step.
        on_step: called with each new row, by the process that writes; so are ``on_warning``, with a new
            sentence, and ``on_sample``, with the completions that are kept.
        on_checkpoint: called with the directory of a checkpoint that was just written.
    """

    def __init__(
        self,
        rows: list[StepRow],
        *,
        warnings: dict[str, str],
        seed: int,
        sample_size: int,
        sampled: Callable[[int], bool],
        due: Callable[[int], bool],
        on_step: Callable[[StepRow], None],
        on_warning: Callable[[str], None],
        on_sample: Callable[[list[dict[str, Any]]], None],
        on_checkpoint: Callable[[Path], None],
    ) -> None:
        self.rows = rows
        self.warnings = warnings
        self.trainer: Trainer | None = None
        self._seed, self._due = seed, due
        self._sample_size, self._sampled = sample_size, sampled
        self._on_step, self._on_warning = on_step, on_warning
        self._on_sample, self._on_checkpoint = on_sample, on_checkpoint
        self._last: dict[str, Any] = {}
        self._refusals: deque[Counter[str]] = deque(maxlen=diagnostics.WINDOW)
        self._examples: dict[str, str] = {}
        self._begin = time.perf_counter()

    def graded(self, step: int, batch: Sequence[Graded]) -> None:
        """Take note of the completions that were just sampled for *step*."""
        refused = [one for one in batch if not one.grade.correct]
        self._refusals.append(Counter(one.grade.reason for one in refused))
        self._examples |= {one.grade.reason: one.grade.answer or one.text[-_TAIL:] for one in refused}
        if self._sampled(step) and self.trainer is not None and self.trainer.is_world_process_zero():
            kept = batch[:: max(1, len(batch) // self._sample_size)][: self._sample_size]
            self._on_sample([_sample(step, one) for one in kept])

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
        spent = time.perf_counter() - self._begin
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
            seconds=rounded(spent),
            seconds_rest=rounded(max(0.0, spent - sum(seconds.values()))),
            kinds={name: rounded(share) for name, share in known.items() if name.startswith(KIND)},
            **{f"seconds_{part}": rounded(part_spent) for part, part_spent in seconds.items()},
        )
        self.rows.append(row)
        seen = diagnostics.signs(self.rows, sum(self._refusals, Counter()), self._examples)
        new = {name: text for name, text in seen.items() if name not in self.warnings}
        self.warnings |= new
        if state.is_world_process_zero:
            self._on_step(row)
            for text in new.values():
                self._on_warning(text)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer is not None:
            self.trainer.accelerator.wait_for_everyone()  # each writes a part
        if args.should_save:
            self._on_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _sample(step: int, one: Graded) -> dict[str, Any]:
    return (
        {"step": step}
        | {key: one.row[key] for key in SHOWN if key in one.row}
        | {
            "completion": one.text,
            "correct": one.grade.correct,
            "reason": one.grade.reason,
            "answer": one.grade.answer,
            "value": one.grade.value,
            "tokens": one.tokens,
        }
    )


def step_seed(seed: int, step: int, process: int) -> int:
    """A seed for one step of one process, so that no step depends on how the ones before it were run."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

"""Trainer callbacks: seed each step, log rows and samples, evaluate validation puzzles, and save checkpoints."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import Trainer, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import CountdownError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import GROUP, PART, LogRow, rounded
from countdown_rl.models import chat_template
from countdown_rl.models.load import Loaded
from countdown_rl.tasks.registry import task_of
from countdown_rl.training import weights
from countdown_rl.training.grpo import warnings
from countdown_rl.training.grpo.rollouts import Round
from countdown_rl.training.options import TrainOptions
from countdown_rl.training.run import Prepared
from countdown_rl.training.state import Journal

#: The metrics of a step by their names in TRL.
Logs = dict[str, Any]
#: Steps between those whose completions are saved.
SAMPLE_EVERY = 10
#: The first validation puzzles, which the report shows through training, and the completions saved of each of them.
FILM_PUZZLES, FILM_SAMPLES = 20, 4
#: The metrics of a step that TRL, or the trainer, logs under another name.
_TRL_NAMES = {
    "mean_length": "completions/mean_length",
    "frac_reward_zero_std": "equal_groups",
    "importance_sampling_ratio": "sampling/importance_sampling_ratio/mean",
    "token_accuracy": "mean_token_accuracy",
    "tokens": "num_tokens",
}
#: Causes of a number that is not finite, most likely first, with their remedies.
_CAUSES = {
    "loss": "The updates were too large: begin again with --restart and a lower --learning-rate.",
    "grad_norm": (
        "The loss is finite, so a kernel of the backward pass is the likely cause: run the command again to resume, "
        "with another version of torch if the step fails again. Otherwise the updates were too large: begin again "
        "with --restart and a lower --learning-rate."
    ),
    "reward": "Correct the reward function that returned it, and run the command again to resume.",
}


class Validation:
    """Completions of the validation puzzles of *run*; with ``keep`` best the first best weights are saved."""

    def __init__(
        self, run: Prepared[Any], journal: Journal, trainer: Trainer, loaded: Loaded
    ) -> None:
        self.run, self.journal, self.trainer, self.loaded = run, journal, trainer, loaded
        count = run.options.eval_samples
        prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in run.validation]
        self._rows = [
            row for row in run.validation for _ in range(count)
        ]  # the completions of a puzzle side by side
        self._prompts = [prompt for prompt in prompts for _ in range(count)]

    def __call__(self, step: int) -> dict[str, float]:
        """The metrics of the weights after *step*, by their columns in the log."""
        run, journal, count = self.run, self.journal, self.run.options.eval_samples
        completions = run.validate(self.trainer, self.loaded, self._prompts)
        samples = [
            Sample.of(row, completion.after(row, prompt))
            for row, prompt, completion in zip(self._rows, self._prompts, completions, strict=True)
        ]
        flags = [
            (sample.grade.correct, sample.grade.format, sample.truncated) for sample in samples
        ]
        names = ("eval_correct", "eval_format", "eval_truncated")
        metrics = {
            name: sum(column) / len(samples) for name, *column in zip(names, *flags, strict=True)
        }
        metrics |= run.validation_loss(self.trainer)
        if count > 1:
            solved = sum(
                any(flag[0] for flag in flags[start : start + count])
                for start in range(0, len(flags), count)
            )
            metrics["eval_pass_at_n"] = solved * count / len(flags)
        if scored := [sample for sample in samples if "kl" in sample.details]:
            total = sum(sample.details.pop("kl") for sample in scored)
            metrics["eval_kl"] = total / sum(sample.tokens or 0 for sample in scored)
        metrics = {name: rounded(value) for name, value in metrics.items()}
        self._report(step, samples, metrics)
        best = journal.best()  # the row of this step follows
        if run.options.keep == "best" and (best is None or metrics["eval_correct"] > best[1]):
            state = weights.gathered(self.trainer)
            if processes.is_main():
                directory = run.checkpoints.best(step)
                directory.mkdir(parents=True, exist_ok=True)
                weights.save(self.trainer, self.loaded.ref, run.options, directory, state)
                artifacts.fsync(directory)
        return metrics

    def _report(self, step: int, samples: Sequence[Sample], metrics: dict[str, float]) -> None:
        """Tell the share that was solved, warn if it is none, and save some of the *samples*."""
        run, journal, count = self.run, self.journal, self.run.options.eval_samples
        nouns, correct = f"{task_of(self._rows[0]).noun}s", metrics["eval_correct"]
        if not correct:
            text = (
                f"step {step}: none of the validation {nouns} is solved; {metrics['eval_format']:.0%} of the "
                f"completions keep the format, and {metrics['eval_truncated']:.0%} are truncated. "
            ) + warnings.common_fault(samples)
            journal.warn(
                {"validation" if step < journal.max_steps else "result": text}, run.reporter.warning
            )
        if processes.is_main():
            several = f", {metrics['eval_pass_at_n']:.1%} in {count}" if step and count > 1 else ""
            when = f"Step {step}" if step else "Before training"
            run.reporter.note(f"{when}: {correct:.1%} of the validation {nouns} solved{several}.")
            limits = [
                FILM_SAMPLES if index < FILM_PUZZLES * count else 1 for index in range(len(samples))
            ]
            shown = [
                sample for index, sample in enumerate(samples) if index % count < limits[index]
            ]
            journal.add_samples(
                [replace(sample, step=step, validation=True).to_json() for sample in shown]
            )


class CheckpointCallback(TrainerCallback):
    """Seeds each step, logs its row, and saves checkpoints of *run*: every ``save_steps``, and at a signal."""

    validation: Validation | None = None

    def __init__(self, run: Prepared[Any], journal: Journal) -> None:
        self.run, self.options, self.journal = run, run.options, journal
        self._tokens = getattr(journal.rows[-1], "tokens", 0.0) if journal.rows else 0.0
        # A run can be resumed only after whole rounds of completions.
        self._every = (
            -(-self.options.save_steps // self.options.round_steps) * self.options.round_steps
        )
        self._evaluation: dict[str, Any] = {}
        self._start = time.perf_counter()

    def row(self, step: int, logs: Logs, seconds: float) -> LogRow:
        """The row of *step* with the metrics *logs* of the trainer."""
        names = {
            field.name: _TRL_NAMES.get(field.name, field.name)
            for field in fields(self.journal.kind)
        }
        metrics: dict[str, Any] = {
            name: None if logs[key] is None else rounded(logs[key])
            for name, key in names.items()
            if key in logs
        }
        if "tokens" in metrics:
            metrics["tokens"] = (
                self._tokens + logs["num_tokens"]
            )  # TRL counts those of this process
        parts = [name for name in logs if re.fullmatch(PART, name)]
        parts = parts if len(parts) > 2 else []  # those of a single reward are those of the sum
        groups = {
            name: rounded(logs[name]) for name in logs if name.startswith(GROUP) or name in parts
        }
        return self.journal.kind(
            **metrics | {"step": step, "seconds": rounded(seconds), "groups": groups}
        )

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        if self.validation and state.global_step == 0:
            self.journal.start = self.validation(0)["eval_correct"]
            self._evaluation = {"eval_correct_before": self.journal.start}

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        self._start = time.perf_counter()
        torch.manual_seed(step_seed(self.options.seed, state.global_step, args.process_index))

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: object) -> Control:
        step, last = state.global_step, self.journal.max_steps
        if step < last and step % self.options.round_steps == 0:
            (stop,) = broadcast_object_list(
                [processes.received_signal() is not None]
            )  # that of rank 0
            control.should_save = stop or bool(self._every and step % self._every == 0)
            control.should_training_stop |= stop
        if self.validation and (step % self.options.eval_every == 0 or step == last):
            self._evaluation |= self.validation(step)
        return control

    def on_log(
        self, args: Arguments, state: State, control: Control, logs: Logs, **rest: Any
    ) -> None:
        if "grad_norm" not in logs:  # the summary at the end of training
            return
        optimizer: Any = rest.get("optimizer")
        if getattr(optimizer, "step_was_skipped", False) and optimizer.scaler.get_scale() >= 1:
            logs["grad_norm"] = (
                0.0  # gradients exceeded fp16, so nothing was changed and the scale is halved
            )
        for name in ("loss", "grad_norm", "reward"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise CountdownError(
                    f"step {state.global_step}: {name} is {logs[name]}; training stopped, and its last checkpoint is "
                    f"kept. {_CAUSES[name]}"
                )
        row = replace(
            self.row(state.global_step, logs, time.perf_counter() - self._start), **self._evaluation
        )
        self._evaluation = {}
        self.journal.add_row(row)
        if processes.is_main():
            self.run.reporter.step(row)
            shares = (
                row.eval_correct
                for row in reversed(self.journal.rows)
                if row.eval_correct is not None
            )
            validation = "".join(
                f", validation accuracy {share:.1%}" for share in islice(shares, 1)
            )
            self.run.reporter.progress(row.step, self.journal.max_steps, row.summary + validation)

    def on_save(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        PartialState().wait_for_everyone()  # each process writes a part of the checkpoint
        if args.should_save:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.journal.save(checkpoint)
            best = self.journal.best() if self.options.keep == "best" else None
            self.run.checkpoints.complete(checkpoint, best[0] if best else None)


class GrpoCallback(CheckpointCallback):
    """The callback of ``train``, which also warns and saves samples."""

    options: TrainOptions
    _logs: Logs  # of the last step that sampled completions
    _round: Sequence[Sample]

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        super().on_step_begin(args, state, control)
        # vLLM's runner on a GPU seeds each completion from NumPy; processes that share an engine need equal seeds.
        engine = args.process_index // args.vllm_tensor_parallel_size
        np.random.seed(step_seed(self.options.seed, state.global_step, engine) % 2**32)

    def on_round(self, step: int, sampled: Round) -> None:
        """Take in a round with its rewards and advantages, for *step* and those that share it."""
        self._round = [graded.sample for graded in sampled.graded]
        if sampled.outcomes:
            self.journal.outcomes.append(sampled.outcomes)
        count = self.options.round_steps
        # One of the steps 1, 1 + SAMPLE_EVERY, ... lies within the round, or the last step.
        due = (step - 1) // SAMPLE_EVERY != (step - 1 - count) // SAMPLE_EVERY
        if due or step + count > self.journal.max_steps:
            graded, size = sampled.graded, self.options.num_generations
            samples = [
                replace(it.sample, step=step, rewards=it.rewards, advantage=rounded(it.advantage))
                for it in graded
            ]
            samples = gather_object(samples)
            if processes.is_main():
                self.journal.add_samples(
                    [replace(sample, group=n // size).to_json() for n, sample in enumerate(samples)]
                )

    def on_log(
        self, args: Arguments, state: State, control: Control, logs: Logs, **rest: Any
    ) -> None:
        super().on_log(args, state, control, logs, **rest)
        if "grad_norm" in logs:
            self.journal.warn(
                warnings.warnings(self.journal.rows, self._round), self.run.reporter.warning
            )

    def row(self, step: int, logs: Logs, seconds: float) -> LogRow:
        if "reward" in logs:  # a step that reuses completions has none of its own
            self._logs = logs
        logs = self._logs | {"seconds_generation": 0.0, "seconds_reward": 0.0} | logs
        logs["seconds_rest"] = max(0.0, seconds - logs["step_time"])
        logs["seconds_loss"] = (
            logs["step_time"] - logs["seconds_generation"] - logs["seconds_reward"]
        )
        return super().row(step, {"entropy": None, "kl": None} | logs, seconds)


def step_seed(seed: int, step: int, process: int) -> int:
    """The seed of one step in one process: independent of how the steps before it were run."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

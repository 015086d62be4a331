"""Trainer callbacks: seed each step, log rows and samples, evaluate, and save checkpoints."""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import CountdownError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import GROUP, PART, LogRow, rounded
from countdown_rl.models import chat_template, lora, model_files
from countdown_rl.models.load import Loaded
from countdown_rl.tasks.registry import task_of
from countdown_rl.training import weights
from countdown_rl.training.grpo.warnings import common_fault
from countdown_rl.training.prepared import Prepared
from countdown_rl.training.state import Journal

#: A run of any method.
Run = Prepared[Any]
#: The metrics of a step by their names in TRL.
Logs = dict[str, Any]
#: Metrics of a step that TRL, or the trainer, logs under another name.
_TRL_NAMES = {
    "mean_length": "completions/mean_length",
    "importance_sampling_ratio": "sampling/importance_sampling_ratio/mean",
    "token_accuracy": "mean_token_accuracy",
    "tokens": "num_tokens",
}
#: Causes of a number that is not finite, most likely first, with their remedies.
_CAUSES = {
    "loss": "The updates were too large: begin again with a lower --learning-rate.",
    "grad_norm": (
        "The loss is finite, so a kernel of the backward pass is the likely cause: run the command "
        "again to resume, with another version of torch if the step fails again. Otherwise the "
        "updates were too large: begin again with a lower --learning-rate."
    ),
    "reward": "Correct the reward function that returned it, and run the command again to resume.",
}


class AlreadyTrainedError(Exception):
    """The checkpoint from which a run resumes is that of its last step."""


class Validation(TrainerCallback):
    """Completes the validation puzzles of *run*, and saves the first best weights to keep."""

    def __init__(self, run: Run, journal: Journal, trainer: Trainer, loaded: Loaded) -> None:
        self.run = run
        self.journal = journal
        self.trainer = trainer
        self.loaded = loaded
        turns = [row.messages() for row in run.validation]
        self._prompts = [chat_template.render(loaded.tokenizer, messages) for messages in turns]

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        if state.global_step == 0:
            metrics = self.evaluate(0)
            self.journal.start = metrics["eval_correct"]
            self.journal.evaluation = {"eval_correct_before": self.journal.start}

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        step = state.global_step
        if step % self.run.options.eval_every == 0 or step == self.journal.max_steps:
            self.journal.evaluation |= self.evaluate(step)

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the metrics of the weights after *step*, by their columns in the log."""
        completions = self.run.validate(self.trainer, self.loaded, self._prompts)
        samples = []
        columns = zip(self.run.validation, self._prompts, completions, strict=True)
        for row, prompt, completion in columns:
            samples.append(Sample.of(row, completion.after(row, prompt)))
        metrics = {
            "eval_correct": fmean(sample.grade.correct for sample in samples),
            "eval_format": fmean(sample.grade.format for sample in samples),
            "eval_truncated": fmean(bool(sample.truncated) for sample in samples),
        }
        if scored := [sample for sample in samples if "kl" in sample.details]:
            total = sum(sample.details.pop("kl") for sample in scored)
            metrics["eval_kl"] = total / sum(sample.tokens or 0 for sample in scored)
        metrics = {name: rounded(metric) for name, metric in metrics.items()}
        self._report(step, samples, metrics)
        best = self.journal.best()  # the row of this step follows
        if self.run.options.keep == "best" and (best is None or metrics["eval_correct"] > best[1]):
            self._save(step)
        return metrics

    def _save(self, step: int) -> None:
        state = weights.gathered(self.trainer)
        if self.trainer.is_world_process_zero():
            directory = self.run.checkpoints.best(step)
            directory.mkdir(parents=True, exist_ok=True)
            weights.save(self.trainer, self.loaded.ref, self.run.options, directory, state)
            artifacts.fsync(directory)

    def _report(self, step: int, samples: Sequence[Sample], metrics: dict[str, float]) -> None:
        """Tell the share that was solved, warn if it is none, and save some of the *samples*."""
        nouns = f"{task_of(samples[0].row).noun}s"
        reporter = self.run.reporter
        if not metrics["eval_correct"]:
            text = (
                f"step {step}: none of the validation {nouns} is solved; "
                f"{metrics['eval_format']:.0%} of the completions keep the format, and "
                f"{metrics['eval_truncated']:.0%} are truncated. {common_fault(samples)}"
            )
            name = "validation" if step < self.journal.max_steps else "result"
            self.journal.warn({name: text}, reporter.warning)
        when = f"Step {step}" if step else "Before training"
        correct = metrics["eval_correct"]
        reporter.note(f"{when}: {correct:.1%} of the validation {nouns} solved.")
        self.journal.add_samples(
            [replace(sample, step=step, validation=True).to_json() for sample in samples]
        )


class CheckpointCallback(TrainerCallback):
    """Seeds each step, logs its row, and saves checkpoints: every ``save_steps``, and at a signal."""

    def __init__(self, run: Run, journal: Journal) -> None:
        self.run = run
        self.options = run.options
        self.round_steps = run.options.round_steps
        self.journal = journal
        self._tokens = getattr(journal.rows[-1], "tokens", 0.0) if journal.rows else 0.0
        self._start = time.perf_counter()

    def row(self, step: int, logs: Logs, seconds: float) -> LogRow:
        """Return the row of *step* with the metrics *logs* of the trainer."""
        metrics: dict[str, Any] = {}
        for column in fields(self.journal.kind):
            key = _TRL_NAMES.get(column.name, column.name)
            if key in logs:
                metrics[column.name] = None if logs[key] is None else rounded(logs[key])
        if "tokens" in metrics:  # TRL counts those of this process
            metrics["tokens"] = self._tokens + logs["num_tokens"]
        metrics |= {"step": step, "seconds": rounded(seconds)}
        parts = [name for name in logs if re.fullmatch(PART, name)]
        if len(parts) == 2:
            parts = []  # those of a single reward are those of the sum
        names = [name for name in logs if name.startswith(GROUP) or name in parts]
        return self.journal.kind(**metrics, groups={name: rounded(logs[name]) for name in names})

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        if state.global_step >= self.journal.max_steps:  # transformers would train another step
            raise AlreadyTrainedError

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        self._start = time.perf_counter()
        torch.manual_seed(step_seed(self.options.seed, state.global_step, args.process_index))

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: object) -> Control:
        step = state.global_step
        whole_rounds = step % self.round_steps == 0  # after which a run can be resumed
        if step == self.journal.max_steps:
            control.should_save = whole_rounds and self.options.keep_checkpoints > 0
        elif whole_rounds:
            stopped = processes.received_signal() is not None
            (stopped,) = broadcast_object_list([stopped])  # that of rank 0
            rounds = -(-self.options.save_steps // self.round_steps)
            due = rounds and step % (rounds * self.round_steps) == 0
            control.should_save = bool(stopped or due)
            control.should_training_stop |= stopped
        return control

    def on_log(
        self,
        args: Arguments,
        state: State,
        control: Control,
        logs: Logs,
        optimizer: AcceleratedOptimizer,
        **_: object,
    ) -> None:
        if "grad_norm" not in logs:  # the summary at the end of training
            return
        if optimizer.step_was_skipped and optimizer.scaler.get_scale() >= 1:
            # Gradients exceeded fp16, so nothing was changed and the scale is halved.
            logs["grad_norm"] = 0.0
        for name, cause in _CAUSES.items():
            if not math.isfinite(logs.get(name, 0.0)):
                raise CountdownError(
                    f"step {state.global_step}: {name} is {logs[name]}; training stopped, and its "
                    f"last checkpoint is kept. {cause}"
                )
        row = self.row(state.global_step, logs, time.perf_counter() - self._start)
        row = replace(row, **self.journal.evaluation)
        self.journal.evaluation = {}
        self.journal.add_row(row)
        self.run.reporter.step(row)
        rows = self.journal.rows
        evaluated = [row.eval_correct for row in rows if row.eval_correct is not None]
        detail = row.summary.format_map(vars(row))
        if evaluated:
            detail += f", validation accuracy {evaluated[-1]:.1%}"
        self.run.reporter.progress(row.step, self.journal.max_steps, detail)
        self.journal.warn(self.warnings(), self.run.reporter.warning)

    def warnings(self) -> dict[str, str]:
        """Return warnings about the steps in the journal: sentences by a short name."""
        return {}

    def on_save(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        PartialState().wait_for_everyone()  # each process writes a part of the checkpoint
        if args.should_save:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            config = checkpoint / lora.CONFIG
            if config.is_file():  # PEFT was not told the base, see `make_trainer`
                base = self.run.ref.base or self.run.ref
                named = {"base_model_name_or_path": base.location, "revision": base.revision}
                config.write_text(json.dumps(model_files.adapter_config(checkpoint) | named))
            self.journal.save(checkpoint)
            best = self.journal.best() if self.options.keep == "best" else None
            count = max(1, self.options.keep_checkpoints)
            self.run.checkpoints.complete(checkpoint, count, best[0] if best else None)


def step_seed(seed: int, step: int, process: int) -> int:
    """Return the seed of one step in one process: independent of the steps before it."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

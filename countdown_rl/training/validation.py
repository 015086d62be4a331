"""Trainer callbacks that ``sft`` and ``train`` share: checkpoints, and evaluations on validation puzzles."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import CountdownError
from countdown_rl.models import chat_template
from countdown_rl.models.load import Loaded
from countdown_rl.training import tuning
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.journal import Journal
from countdown_rl.training.log import SftRow, rounded


class Saver(TrainerCallback):
    """Seeds each step, and saves checkpoints with *journal* in *store*: every ``save_steps``, and at a signal.

    Args:
        round_steps: steps that use one round of completions. A checkpoint is saved at the end of a round.
    """

    def __init__(self, options: Any, journal: Journal, store: Checkpoints, round_steps: int = 1) -> None:
        self._options, self._journal, self._store, self._round_steps = options, journal, store, round_steps
        self._every = -(-options.save_steps // round_steps) * round_steps
        self._begin = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin = time.perf_counter()
        torch.manual_seed(step_seed(self._options.seed, state.global_step, args.process_index))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        step = state.global_step
        if step < self._journal.max_steps and step % self._round_steps == 0:
            (stop,) = broadcast_object_list([processes.received_signal() is not None])  # that of rank 0
            control.should_save = stop or bool(self._every and step % self._every == 0)
            control.should_training_stop |= stop
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        PartialState().wait_for_everyone()  # each process writes a part of the checkpoint
        if args.should_save:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._journal.save(checkpoint)
            best = self._journal.best() if self._options.keep == "best" else None
            self._store.keep(checkpoint, best[0] if best else None)


def check_finite(step: int, logs: dict[str, Any], *names: str) -> None:
    """Check that the figures *names* in *logs* are finite."""
    for name in names:
        if not math.isfinite(logs.get(name, 0.0)):
            raise CountdownError(
                f"step {step}: {name} is {logs[name]}; training stopped, and its last checkpoint is kept; begin again "
                "with --restart and a lower --learning-rate."
            )


class SftRecorder(Saver):
    """The same for ``sft``, with a row of the log for each step.

    Attributes:
        figures: further figures of the next row.
    """

    def __init__(self, *args: Any, on_step: Callable[[SftRow], None]) -> None:
        super().__init__(*args)
        self.figures: dict[str, float] = {}
        self._on_step = on_step
        self._tokens = self._journal.rows[-1].tokens if self._journal.rows else 0.0  # of an interrupted run

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "grad_norm" not in logs:  # the summary at the end of training
            return
        check_finite(state.global_step, logs, "loss", "grad_norm")
        row = SftRow(
            step=state.global_step,
            loss=rounded(logs["loss"]),
            token_accuracy=rounded(logs["mean_token_accuracy"]),
            tokens=self._tokens + logs["num_tokens"],
            grad_norm=rounded(logs["grad_norm"]),
            learning_rate=rounded(logs["learning_rate"]),
            seconds=rounded(time.perf_counter() - self._begin),
            eval_correct=self.figures.pop("eval_correct", None),
        )
        self._journal.add_row(row)
        if processes.is_main():
            self._on_step(row)


class Validation(TrainerCallback):
    """Completes the validation puzzles greedily every ``eval_every`` steps and after the last one.

    With ``keep`` best they are also completed before the first step. The weights of the start are kept if none are
    better.

    Args:
        complete: the most likely completion of each prompt.
        figures: where ``eval_correct`` goes.
        on_warning: called if the last step's weights solve none.
    """

    def __init__(
        self,
        prepared: Any,
        trainer: Any,
        loaded: Loaded,
        journal: Journal,
        *,
        complete: Callable[[list[str]], list[str]],
        figures: dict[str, float],
        on_warning: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_warning = on_warning
        self._options, self._rows, self._store = prepared.options, prepared.validation, prepared.store
        self._trainer, self._ref, self._journal = trainer, loaded.ref, journal
        self._complete, self._figures = complete, figures
        self._prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in self._rows]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._options.keep == "best" and state.global_step == 0:
            self._journal.start = self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._options.eval_every == 0 or state.global_step == self._journal.max_steps:
            self._figures["eval_correct"] = self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> float:
        """The share solved by the weights after *step*, which are saved if they are to be kept and are the best."""
        texts = self._complete(self._prompts)
        completions = list(map(chat_template.completion, self._rows, self._prompts, texts))
        grades = [row.grade(completion) for row, completion in zip(self._rows, completions, strict=True)]
        correct = rounded(sum(grade.correct for grade in grades) / len(grades))
        if step == self._journal.max_steps and not correct and processes.is_main():
            form = sum(grade.format for grade in grades) / len(grades)
            self._on_warning(
                f"none of the {len(grades):,} validation puzzles is solved, and {form:.0%} of the completions keep the "
                f"format; for {self._rows[0].headline} the model writes: {' '.join(completions[0].split())[:300]}"
            )
        best = self._journal.best()  # the row of this step follows
        if self._options.keep == "best" and (best is None or correct > best[1]):
            state = tuning.gathered(self._trainer)
            if processes.is_main():
                directory = self._store.best(step)
                directory.mkdir(parents=True, exist_ok=True)
                tuning.save_weights(self._trainer, self._ref, self._options, directory, state)
                artifacts.fsync(directory)
        return correct


def step_seed(seed: int, step: int, process: int) -> int:
    """The seed of one step in one process: independent of how the steps before it were run."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

"""Trainer callback: scores the policy on fixed puzzles during training, and keeps its best weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from countdown_rl import artifacts, processes
from countdown_rl.models import chat_template
from countdown_rl.runlog import log
from countdown_rl.runlog.journal import Journal
from countdown_rl.tasks.task import Row
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.config import TrainOptions

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer


class Validation(TrainerCallback):
    """Completes the puzzles *rows* greedily every ``eval_every`` steps and after the last one.

    Where the best weights are kept, before the first one too: those of the start are kept if none are better.

    Args:
        save: writes the weights to a directory, from their gathered state where processes hold parts of them.
    """

    def __init__(
        self,
        options: TrainOptions,
        trainer: "Trainer",
        rows: Sequence[Row],
        journal: Journal,
        store: Checkpoints,
        save: Callable[[Path, dict[str, Any] | None], None],
    ) -> None:
        self._options, self._trainer, self._rows = options, trainer, rows
        self._journal, self._store, self._save = journal, store, save
        self._tokenizer = trainer.processing_class
        self._prompts = [chat_template.render(self._tokenizer, row.messages()) for row in rows]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._options.keep == "best" and state.global_step == 0:
            self._journal.start = self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._options.eval_every == 0 or state.global_step == self._options.max_steps:
            self._trainer.figures["eval_correct"] = self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> float:
        """The share solved by the weights after *step*, which are saved if they are to be kept and are the best."""
        completions = self._trainer.complete_greedily(self._prompts)
        texts = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
        solved = sum(row.grade(text).correct for row, text in zip(self._rows, texts, strict=True))
        correct = log.rounded(solved / len(texts))
        best = self._journal.best()  # the row of this step follows
        if self._options.keep == "best" and (best is None or correct > best[1]):
            state = self._trainer.gathered()
            if processes.is_main():
                directory = self._store.best(step)
                directory.mkdir(parents=True, exist_ok=True)
                self._save(directory, state)
                artifacts.fsync(directory)
        return correct

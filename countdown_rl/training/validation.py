"""Evaluation of the validation puzzles during training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from countdown_rl.core import artifacts, processes
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import rounded
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template
from countdown_rl.models.load import Loaded
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row
from countdown_rl.training import weights
from countdown_rl.training.grpo import warnings
from countdown_rl.training.options import TuningOptions
from countdown_rl.training.state import Checkpoints, Journal

if TYPE_CHECKING:
    from transformers import Trainer

    from countdown_rl.training.prepared import Reporter

#: The first validation puzzles, which the report shows through training, and the completions saved of each of them.
FILM_PUZZLES, FILM_SAMPLES = 20, 4


class Observed(Protocol):
    """What evaluations and callbacks read of a run, see :class:`countdown_rl.training.prepared.Prepared`."""

    @property
    def options(self) -> TuningOptions: ...
    @property
    def reporter(self) -> "Reporter": ...
    @property
    def checkpoints(self) -> Checkpoints: ...
    @property
    def validation(self) -> Sequence[Row]: ...
    def validate(self, trainer: "Trainer", loaded: Loaded, prompts: list[str]) -> list[Completion]: ...
    def validation_loss(self, trainer: "Trainer") -> dict[str, float]: ...


class Validation:
    """Completions of the validation puzzles of *run*; with ``keep`` best the best weights are saved.

    The initial weights are kept if none are better.
    """

    def __init__(self, run: Observed, journal: Journal, trainer: "Trainer", loaded: Loaded) -> None:
        self.run, self.journal, self.trainer, self.loaded = run, journal, trainer, loaded
        count = run.options.eval_samples
        prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in run.validation]
        self._rows = [row for row in run.validation for _ in range(count)]  # the completions of a puzzle side by side
        self._prompts = [prompt for prompt in prompts for _ in range(count)]
        self.nouns = f"{task_of(run.validation[0]).noun}s"

    def __call__(self, step: int) -> dict[str, float]:
        """The metrics of the weights after *step*, by their columns in the log."""
        run, journal, count = self.run, self.journal, self.run.options.eval_samples
        completions = run.validate(self.trainer, self.loaded, self._prompts)
        samples = [
            Sample.of(row, completion.after(row, prompt))
            for row, prompt, completion in zip(self._rows, self._prompts, completions, strict=True)
        ]
        flags = [(sample.grade.correct, sample.grade.format, sample.truncated) for sample in samples]
        shares = [rounded(sum(column) / len(samples)) for column in zip(*flags, strict=True)]
        metrics = dict(zip(("eval_correct", "eval_format", "eval_truncated"), shares, strict=True))
        metrics |= {name: rounded(value) for name, value in run.validation_loss(self.trainer).items()}
        correct = metrics["eval_correct"]
        if count > 1:
            solved = sum(any(flag[0] for flag in flags[start : start + count]) for start in range(0, len(flags), count))
            metrics["eval_pass_at_n"] = rounded(solved * count / len(flags))
        if scored := [sample for sample in samples if "kl" in sample.details]:
            total = sum(sample.details.pop("kl") for sample in scored)
            metrics["eval_kl"] = rounded(total / sum(sample.tokens or 0 for sample in scored))
        if not correct:
            text = (
                f"step {step}: none of the validation {self.nouns} is solved; {metrics['eval_format']:.0%} of the "
                f"completions keep the format, and {metrics['eval_truncated']:.0%} are truncated. "
            ) + warnings.common_fault(samples)
            journal.warn({"validation" if step < journal.max_steps else "result": text}, run.reporter.warning)
        if processes.is_main():
            limits = [FILM_SAMPLES if index < FILM_PUZZLES * count else 1 for index in range(len(samples))]
            shown = [sample for index, sample in enumerate(samples) if index % count < limits[index]]
            journal.add_samples([replace(sample, step=step, validation=True).to_json() for sample in shown])
        best = journal.best()  # the row of this step follows
        if run.options.keep == "best" and (best is None or correct > best[1]):
            state = weights.gathered(self.trainer)
            if processes.is_main():
                directory = run.checkpoints.best(step)
                directory.mkdir(parents=True, exist_ok=True)
                weights.save(self.trainer, self.loaded.ref, run.options, directory, state)
                artifacts.fsync(directory)
        return metrics

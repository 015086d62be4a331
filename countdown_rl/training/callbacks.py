"""Trainer callback: seeds each step, logs rows, warnings and samples, and saves checkpoints."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from countdown_rl.core import processes
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks.task import Task
from countdown_rl.training import diagnostics
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import Curriculum, kind
from countdown_rl.training.journal import Journal
from countdown_rl.training.log import GROUP, StepRow, rounded
from countdown_rl.training.validation import Saver, check_finite, step_seed

#: Completions saved at a time.
SAMPLES = 4
#: Characters of the end of a completion without an answer that a warning shows.
_TAIL = 60


class StepRecorder(Saver):
    """Keeps *journal* and *store* while the trainer runs.

    Args:
        on_step: called with each new row, in the first process.
        on_warning: called with each new warning, in the first process.
    """

    def __init__(
        self,
        options: TrainOptions,
        journal: Journal,
        store: Checkpoints,
        curriculum: Curriculum | None,
        task: Task,
        *,
        on_step: Callable[[StepRow], None],
        on_warning: Callable[[str], None],
    ) -> None:
        super().__init__(options, journal, store, options.round_steps)
        self._curriculum, self._task = curriculum, task
        self._on_step, self._on_warning = on_step, on_warning
        self._generation_logs: dict[str, Any] = {}
        self._reasons: deque[Counter[str]] = deque(maxlen=diagnostics.WINDOW)
        self._examples: dict[str, str] = {}
        #: Further figures of the next row.
        self.figures: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        super().on_step_begin(args, state, control)
        # vLLM's runner on a GPU seeds each completion from NumPy; processes that share an engine need equal seeds.
        engine = args.process_index // args.vllm_tensor_parallel_size
        np.random.seed(step_seed(self._options.seed, state.global_step, engine) % 2**32)

    def on_graded(self, step: int, completions: Sequence[Sample]) -> None:
        """Take in a round of completions, generated for *step* and the steps that share them."""
        wrong = [each for each in completions if not each.grade.correct]
        reasons = [self._task.reason(each.grade.reason) for each in wrong]
        self._reasons.append(Counter(reasons))
        self._examples |= {
            reason: each.grade.answer or each.completion[-_TAIL:] for reason, each in zip(reasons, wrong, strict=True)
        }
        options = self._options
        if processes.is_main() and _contains_multiple(step, options.sample_every, options.round_steps):
            stride = max(1, len(completions) // SAMPLES)
            self._journal.add_samples([_sample(step, each) for each in completions[::stride][:SAMPLES]])
        if self._curriculum:
            outcomes = gather_object([(kind(each.row), bool(each.grade.correct)) for each in completions])
            self._curriculum.observe(outcomes, options.num_generations)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "grad_norm" not in logs:  # the summary at the end of training
            return
        if "reward" in logs:  # a step that reuses completions has none of its own
            self._generation_logs = logs
        check_finite(state.global_step, logs, "loss", "grad_norm", "reward")
        own = {"eval_correct": self.figures.pop("eval_correct", None), "seconds_generation": 0.0, "seconds_reward": 0.0}
        row = _row(state.global_step, self._generation_logs | own | logs, time.perf_counter() - self._begin)
        self._journal.add_row(row)
        warnings = diagnostics.warnings(self._journal.rows, self._task, sum(self._reasons, Counter()), self._examples)
        new = {name: text for name, text in warnings.items() if name not in self._journal.warnings}
        self._journal.warnings |= new
        if processes.is_main():
            self._on_step(row)
            for text in new.values():
                self._on_warning(text)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._curriculum:
            self._journal.evidence = self._curriculum.evidence
        super().on_save(args, state, control)


def _row(step: int, logs: dict[str, Any], seconds: float) -> StepRow:
    parts = {name: logs[name] for name in ("seconds_generation", "seconds_reward")}
    parts["seconds_loss"] = logs["step_time"] - sum(parts.values())
    names = ("reward", "correct", "format", "truncated", "grad_norm", "learning_rate")
    return StepRow(
        step=step,
        mean_length=rounded(logs["completions/mean_length"]),
        frac_reward_zero_std=rounded(logs["equal_groups"]),
        entropy=rounded(logs["entropy"]) if "entropy" in logs else None,
        kl=rounded(logs["kl"]) if "kl" in logs else None,
        seconds=rounded(seconds),
        seconds_rest=rounded(max(0.0, seconds - sum(parts.values()))),
        eval_correct=logs["eval_correct"],
        draws=logs.get("draws"),
        importance_sampling_ratio=logs.get("sampling/importance_sampling_ratio/mean"),
        groups={name: rounded(share) for name, share in logs.items() if name.startswith(GROUP)},
        **{name: rounded(value) for name, value in ({name: logs[name] for name in names} | parts).items()},
    )


def _sample(step: int, completion: Sample) -> dict[str, Any]:
    row, grade = completion.row, completion.grade
    return (
        {"step": step}
        | row.kept
        | {"completion": completion.completion}
        | {key: getattr(grade, key) for key in ("correct", "reason", "answer", "value")}
        | {"tokens": completion.tokens, "truncated": completion.truncated}
    )


def _contains_multiple(step: int, every: int, span: int) -> bool:
    """Return True if one of the steps 1, 1 + *every*, ... lies within the *span* steps up to *step*."""
    return every > 0 and (step - 1) // every != (step - 1 - span) // every

"""Dry run of GRPO: sample groups as a run would, and report how many have reward variance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch

from countdown_rl.core import processes
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.statistics import Interval, wilson
from countdown_rl.tasks.registry import task_of
from countdown_rl.training import weights
from countdown_rl.training.grpo import warnings
from countdown_rl.training.grpo.prompts import in_turn
from countdown_rl.training.grpo.round import Graded
from countdown_rl.training.grpo.run import GrpoRun
from countdown_rl.training.state import Checkpoints, Journal

#: Shares of groups with reward variance up to which GRPO had no signal, and from which it learned.
#: On Countdown with 3 and 4 numbers (github.com/lozlrc/countdown-grpo, groups of 8) Qwen2.5-1.5B
#: had 2% and 0% and stayed at 2% solved for 300 steps; Qwen2.5-3B had 28% and 3%, 15% together, and
#: went from 2% to 16%.
NO_SIGNAL, READY = 0.02, 0.15


#: The completions of a puzzle, and True if their rewards have non-zero variance.
Group = tuple[list[Graded], bool]


@dataclass(frozen=True)
class Shares:
    """Shares of *groups* with reward variance (*mixed*), and of completions (the last three)."""

    groups: int
    mixed: float
    mixed_accuracy: float  # share of groups with reward variance whose accuracy varies
    interval: Interval  # 95%, of mixed
    solved: float
    format: float
    truncated: float

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Shares":
        count = len(groups)
        mixed = learned = 0
        samples: list[Sample] = []
        for group, varies in groups:
            completed = [graded.sample for graded in group]
            samples += completed
            mixed += varies
            correct = {sample.grade.correct for sample in completed}
            learned += varies and len(correct) > 1
        low, high = wilson(mixed, count)
        return cls(
            groups=count,
            mixed=mixed / count,
            mixed_accuracy=learned / count,
            interval=(round(low, 6), round(high, 6)),
            solved=fmean(sample.grade.correct for sample in samples),
            format=fmean(sample.grade.format for sample in samples),
            truncated=fmean(bool(sample.truncated) for sample in samples),
        )

    @property
    def verdict(self) -> str:
        """``ready``, ``thin`` or ``no signal``."""
        if self.mixed <= NO_SIGNAL:
            return "no signal"
        return "ready" if self.mixed_accuracy >= READY else "thin"

    @property
    def advice(self) -> str:
        """The meaning of the verdict for GRPO."""
        if self.verdict == "ready":
            return "GRPO has something to learn from."
        remedy = warnings.no_signal(self.format, self.solved, self.truncated)
        if self.verdict == "no signal":
            return f"GRPO will hardly learn; {remedy}"
        if self.mixed >= READY:
            return f"accuracy varies in {self.mixed_accuracy:.0%}; {remedy}"
        return (
            "GRPO will learn slowly; larger groups (--num-generations) or --sampler dynamic give "
            "it more."
        )


@dataclass(frozen=True)
class Probe:
    """The shares of all groups, and those by kind of row, such as ``4 numbers``."""

    total: Shares
    kinds: dict[str, Shares]
    advice: str


def probe(run: GrpoRun, count: int) -> Probe:
    """Sample *count* groups of the first puzzles of *run*, with its engine and settings."""
    options = run.options
    size = options.num_generations
    loaded = weights.load_model(run.ref, options, processes.cpu_threads())
    order = in_turn(len(run.rows), options.seed)
    groups: list[Group] = []
    with TemporaryDirectory() as scratch:  # TRL makes the directory of the checkpoints
        elsewhere = replace(run, checkpoints=Checkpoints(Path(scratch)))
        trainer = elsewhere.make_trainer(loaded, Journal(None, run.max_steps))
        torch.manual_seed(options.seed)
        while len(groups) < count:
            batch = list(islice(order, min(options.prompts, count - len(groups))))
            sampled = trainer.round(np.repeat(batch, size).tolist())
            groups += sampled.groups(run.rewards, size)
            run.reporter.progress(len(groups) * size, count * size)

    task = task_of(run.rows[0])
    by_kind: dict[str, list[Group]] = {}
    for group in groups:
        for name, value in group[0][0].sample.row.groups.items():
            labels = task.group(name)
            if labels.main:
                by_kind.setdefault(labels.name(value), []).append(group)
    names = sorted(by_kind, key=lambda name: (len(name), name))
    kinds = {name: Shares.of(by_kind[name]) for name in names}
    total = Shares.of(groups)
    advice = [f"{total.mixed:.0%} of the groups have reward variance: {total.advice}"]
    for name, shares in kinds.items():
        if shares.verdict == "no signal" != total.verdict:
            advice.append(f"{name}: {shares.mixed:.0%} have reward variance, and {shares.advice}")
    return Probe(total, kinds, " ".join(advice))

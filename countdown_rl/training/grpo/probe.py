"""Dry run of GRPO: sample groups of completions as a run would, and report how many have reward variance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from countdown_rl.core import processes
from countdown_rl.evaluation.statistics import Interval, wilson
from countdown_rl.tasks.registry import task_of
from countdown_rl.training import weights
from countdown_rl.training.grpo import warnings
from countdown_rl.training.grpo.prompts import in_turn
from countdown_rl.training.grpo.round import Graded
from countdown_rl.training.grpo.run import GrpoRun
from countdown_rl.training.state import Checkpoints, Journal

#: Shares of groups with reward variance up to which GRPO had no signal, and from which it learned. On Countdown with 3
#: and 4 numbers (github.com/lozlrc/countdown-grpo, groups of 8) Qwen2.5-1.5B had 2% and 0% and stayed at 2% solved for
#: 300 steps; Qwen2.5-3B had 28% and 3%, 15% together, and went from 2% to 16%.
NO_SIGNAL, READY = 0.02, 0.15


#: The completions of a puzzle, and True if their rewards have non-zero variance.
Group = tuple[list[Graded], bool]


@dataclass(frozen=True)
class Shares:
    """Shares of *groups* with reward variance (*mixed*), and of their completions (the last three)."""

    groups: int
    mixed: float
    interval: Interval  # 95%, of mixed
    solved: float
    format: float
    truncated: float

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Shares":
        mixed = sum(varies for _, varies in groups)
        samples = [graded.sample for group, _ in groups for graded in group]
        flags = [
            (sample.grade.correct, sample.grade.format, sample.truncated) for sample in samples
        ]
        solved, form, truncated = (
            sum(values) / len(samples) for values in zip(*flags, strict=True)
        )
        low, high = (round(end, 6) for end in wilson(mixed, len(groups)))
        return cls(len(groups), mixed / len(groups), (low, high), solved, form, truncated)

    @property
    def verdict(self) -> str:
        """``ready``, ``thin`` or ``no signal``."""
        return "ready" if self.mixed >= READY else "thin" if self.mixed > NO_SIGNAL else "no signal"

    @property
    def advice(self) -> str:
        """Advice if the groups hardly have reward variance."""
        return f"GRPO will hardly learn; {warnings.no_signal(self.format, self.solved, self.truncated)}"


@dataclass(frozen=True)
class Probe:
    """The shares of all groups, those by kind of row, such as ``4 numbers``, and what they mean for GRPO."""

    total: Shares
    kinds: dict[str, Shares]
    advice: str


def probe(run: GrpoRun, count: int) -> Probe:
    """Sample *count* groups of the first puzzles of *run*, with its engine and settings."""
    options = run.options
    size = options.num_generations
    loaded = weights.load_model(run.ref, options, processes.cpu_threads())
    indices = list(islice(in_turn(len(run.rows), options.seed), count))
    groups: list[Group] = []
    with TemporaryDirectory() as scratch:  # TRL makes the directory of the checkpoints
        elsewhere = replace(run, checkpoints=Checkpoints(Path(scratch)))
        trainer = elsewhere.make_trainer(loaded, Journal(None, run.max_steps))
        torch.manual_seed(options.seed)
        for start in range(0, count, options.prompts):
            batch = indices[start : start + options.prompts]
            repeated = [index for index in batch for _ in range(size)]
            groups += trainer.round(repeated).groups(run.rewards, size)
            run.reporter.progress(len(groups) * size, count * size)
    task = task_of(run.rows[0])
    by_kind: dict[str, list[Group]] = {}
    for group in groups:
        for name, value in group[0][0].sample.row.groups.items():
            if task.group(name).main:
                by_kind.setdefault(task.group(name).name(value), []).append(group)
    kinds = {
        name: Shares.of(by_kind[name])
        for name in sorted(by_kind, key=lambda name: (len(name), name))
    }
    total = Shares.of(groups)
    more = "larger groups (--num-generations) or --sampler dynamic give it more."
    thin, ready = f"GRPO will learn slowly; {more}", "GRPO has something to learn from."
    text = {"no signal": total.advice, "thin": thin, "ready": ready}[total.verdict]
    advice = [f"{total.mixed:.0%} of the groups have reward variance: {text}"]
    for name, shares in kinds.items():
        if shares.verdict == "no signal" != total.verdict:
            advice.append(f"{name}: {shares.mixed:.0%} have reward variance, and {shares.advice}")
    return Probe(total, kinds, " ".join(advice))

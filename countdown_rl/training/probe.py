"""Dry run of GRPO: sample groups of completions as a run would, and report how many have mixed rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from countdown_rl.evaluation.complete import complete
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.statistics import Interval, wilson
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.tasks import advice
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Task
from countdown_rl.training import trl_config, weights
from countdown_rl.training.grpo import GrpoRun
from countdown_rl.training.samplers import in_turn

#: Shares of mixed groups up to which GRPO had no signal, and from which it learned. On Countdown with 3 and 4 numbers
#: (github.com/lozlrc/countdown-grpo, groups of 8) Qwen2.5-1.5B had 2% and 0% and stayed at 2% solved for 300 steps;
#: Qwen2.5-3B had 28% and 3%, 15% together, and went from 2% to 16%.
NO_SIGNAL, READY = 0.02, 0.15


@dataclass(frozen=True)
class Shares:
    """Shares of *groups* with correct and wrong completions (*mixed*), and of their completions (the last three)."""

    groups: int
    mixed: float
    interval: Interval  # 95%, of mixed
    solved: float
    format: float
    truncated: float

    @classmethod
    def of(cls, groups: Sequence[Sequence[Sample]]) -> "Shares":
        """The shares of *groups* of equal size."""
        mixed = sum(len({sample.grade.correct for sample in group}) > 1 for group in groups)
        samples = [sample for group in groups for sample in group]
        flags = [(sample.grade.correct, sample.grade.format, sample.truncated) for sample in samples]
        solved, form, truncated = (sum(values) / len(samples) for values in zip(*flags, strict=True))
        low, high = (round(end, 6) for end in wilson(mixed, len(groups)))
        return cls(len(groups), mixed / len(groups), (low, high), solved, form, truncated)

    @property
    def verdict(self) -> str:
        """``ready``, ``thin`` or ``no signal``."""
        return "ready" if self.mixed >= READY else "thin" if self.mixed > NO_SIGNAL else "no signal"


@dataclass(frozen=True)
class Probe:
    """The shares of all groups, those by kind of row, such as ``4 numbers``, and what they mean for GRPO."""

    total: Shares
    kinds: dict[str, Shares]
    advice: str


def probe(run: GrpoRun, count: int) -> Probe:
    """Sample *count* groups of the first puzzles of *run* with its sampling settings, group size and length."""
    options, size = run.options, run.options.num_generations
    loaded = weights.load_model(run.ref, options)
    config = trl_config.grpo_config(options, loaded, list(run.rewards.values()), run.checkpoints.directory)
    sampling = EvalOptions(
        samples=size,
        max_new_tokens=options.max_completion_length,
        temperature=options.temperature,
        top_p=config.top_p,
        top_k=config.top_k or 0,
        min_p=config.min_p or 0.0,
        seed=options.seed,
    )
    rows = [run.rows[index] for index in islice(in_turn(len(run.rows), options.seed), count)]
    generator = Generator(loaded, Decoding.of(sampling))
    with TemporaryDirectory() as scratch:
        progress = Path(scratch, "progress.jsonl")
        _, completions = complete(generator, rows, sampling, {}, progress, on_batch=run.reporter.progress)
    samples = [Sample.of(rows[index // size], completion) for index, completion in enumerate(completions)]
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    task = task_of(rows[0])
    by_kind: dict[str, list[list[Sample]]] = {}
    for row, group in zip(rows, groups, strict=True):
        for name, value in row.groups.items():
            if task.group(name).main:
                by_kind.setdefault(task.group(name).name(value), []).append(group)
    kinds = {name: Shares.of(by_kind[name]) for name in sorted(by_kind, key=lambda name: (len(name), name))}
    total = Shares.of(groups)
    return Probe(total, kinds, _advice(total, kinds, task))


def _advice(total: Shares, kinds: dict[str, Shares], task: Task) -> str:
    mixed = f"{total.mixed:.0%} of the groups are mixed"
    if total.verdict == "no signal":
        return f"{mixed}: GRPO will hardly learn; {_cause(total, task)}"
    text = f"{mixed}: GRPO has something to learn from."
    if total.verdict == "thin":
        text = f"{mixed}: GRPO will learn slowly; larger groups (--num-generations) or --dynamic-sampling give it more."
    for name, shares in kinds.items():
        if shares.verdict == "no signal":
            text += f" {name}: {shares.mixed:.0%} are mixed, and GRPO will hardly learn there; {_cause(shares, task)}"
    return text


def _cause(shares: Shares, task: Task) -> str:
    """The likely cause of few mixed groups, and what to do."""
    if shares.solved > 0.5:
        return f"{shares.solved:.0%} are solved already, so use harder data."
    easier = "easier data (`countdown-rl gen-data --size 3`)" if "size" in task.data_options else "easier data"
    return (
        advice.no_format(shares.format, shares.solved, shares.truncated, "--max-completion-length")
        or f"{shares.solved:.1%} are solved, so begin with {easier}, or fine-tune first with `countdown-rl sft`."
    )

"""Probe of a start: groups of completions as a run would sample them, and whether GRPO has anything to learn from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.statistics import Interval, wilson
from countdown_rl.inference import engines, generate
from countdown_rl.models import chat_template
from countdown_rl.tasks import advice
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Task
from countdown_rl.training import tuning
from countdown_rl.training.curriculum import in_turn
from countdown_rl.training.prepare import PreparedTraining

#: Shares of mixed groups up to which GRPO had no signal, and from which it learned. On Countdown with 3 and 4 numbers
#: (github.com/lozlrc/countdown-grpo, groups of 8) Qwen2.5-1.5B had 2% and 0% and stayed at 2% solved for 300 steps;
#: Qwen2.5-3B had 28% and 3%, 15% together, and went from 2% to 16%.
NO_SIGNAL, READY = 0.02, 0.15

#: Graded completions, group by group.
Groups = Sequence[Sequence[Sample]]


@dataclass(frozen=True)
class Shares:
    """Shares of a number of groups and of their completions.

    Attributes:
        mixed: groups with right and wrong completions; *interval* is its 95% interval.
        solved: completions that are right; *format* those in the format, *truncated* those that did not end.
    """

    groups: int
    mixed: float
    interval: Interval
    solved: float
    format: float
    truncated: float

    @classmethod
    def of(cls, groups: Groups) -> "Shares":
        """The shares of *groups* of equal size."""
        completions = [each for group in groups for each in group]
        mixed = sum(len({each.grade.correct for each in group}) > 1 for group in groups)
        flags = [(each.grade.correct, each.grade.format, each.truncated) for each in completions]
        solved, form, truncated = (sum(values) / len(completions) for values in zip(*flags, strict=True))
        low, high = (round(end, 6) for end in wilson(mixed, len(groups)))
        return cls(len(groups), mixed / len(groups), (low, high), solved, form, truncated)

    @property
    def verdict(self) -> str:
        """``ready``, ``thin`` or ``no signal``."""
        return "ready" if self.mixed >= READY else "thin" if self.mixed > NO_SIGNAL else "no signal"


@dataclass(frozen=True)
class Probe:
    """The shares of all groups, those by kind of row under its name, such as ``4 numbers``, and what follows."""

    total: Shares
    kinds: dict[str, Shares]
    advice: str


def probe(prepared: PreparedTraining, count: int, on_batch: Callable[[int, int], None]) -> Probe:
    """Sample *count* groups of the first puzzles of a run with its temperature, top-p, group size and length.

    Args:
        on_batch: called with the numbers of finished and of all completions.
    """
    options = prepared.options
    size, length = options.num_generations, options.max_completion_length
    loaded = tuning.load_model(prepared.ref, options)
    decoding = generate.Decoding(length, options.temperature, options.top_p, seed=options.seed)
    generator = generate.Generator(loaded, decoding)
    rows = [prepared.rows[index] for index in islice(in_turn(len(prepared.rows), options.seed), count)]
    prompts = chat_template.encode(loaded.tokenizer, (row.messages() for row in rows))
    samples: dict[int, Sample] = {}  # sample i is of row i // size
    lengths = [len(prompts[index // size]) for index in range(count * size)]
    for number, batch in enumerate(generate.batches(lengths, lambda prompt: generator.max_rows(prompt, length))):
        completions = engines.complete(generator, [prompts[index // size] for index in batch], number)
        for index, completion in zip(batch, completions, strict=True):
            row = rows[index // size]
            completion = completion.after(row, loaded.tokenizer.decode(prompts[index // size]))
            samples[index] = Sample.of(row, completion)
        on_batch(len(samples), len(lengths))
    groups = [[samples[index] for index in range(start, start + size)] for start in range(0, len(lengths), size)]
    task = task_of(rows[0])
    kinds: dict[str, dict[str, list[list[Sample]]]] = {}
    for row, group in zip(rows, groups, strict=True):
        for name, value in row.groups.items():
            if task.group(name).main:
                kinds.setdefault(name, {}).setdefault(value, []).append(group)
    by_kind = {
        task.group(name).name(value): Shares.of(values[value])
        for name, values in kinds.items()
        for value in sorted(values, key=lambda value: (len(value), value))  # 10 after 9
    }
    total = Shares.of(groups)
    return Probe(total, by_kind, _advice(total, by_kind, task))


def _advice(total: Shares, kinds: dict[str, Shares], task: Task) -> str:
    """What follows from the shares, in one or two sentences."""
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

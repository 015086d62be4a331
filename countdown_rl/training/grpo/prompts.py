"""Samplers: which puzzles the rounds of a run complete, and with what hints.

A sampler is a generator function ``f(rows, size, seed)`` that yields the row indices of one round after another, *size*
at a time. In place of an index it may yield ``(index, hint)``; the hint begins the completions of that row, is graded
with them and not learned. Each ``yield`` returns the :class:`Outcome` of every group of the previous round; the first
returns none. Data loaders prefetch, so the outcomes of a round are known when the second round after it is sampled. A
resumed run runs the sampler again, on the outcomes in its checkpoint: a sampler depends on its arguments and these
alone.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from copy import deepcopy
from itertools import count
from operator import index
from typing import Any, NamedTuple

import numpy as np

from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.user_code import running
from countdown_rl.tasks.task import Row, check_text

#: Share of a round of the curriculum that is sampled from all rows alike, and the discount of its counts per round.
_UNIFORM, _DECAY = 0.5, 0.95

#: A row index, or one with a hint.
Prompt = int | tuple[int, str]


class Outcome(NamedTuple):
    """The completions of a group."""

    row: int  # its index
    rewards: Sequence[float | None]  # weighted sums; None where no reward applies
    correct: Sequence[bool]
    truncated: Sequence[bool]


Rounds = Generator[Sequence[Prompt], list[Outcome], None]
Sampler = Callable[[Sequence[Row], int, int], Rounds]


def in_turn(count: int, seed: int, start: int = 0) -> Iterator[int]:
    """Endless row indices below *count*: a permutation of all rows, then another one.

    The index at position *start* depends on *count*, *seed* and *start* alone.
    """
    epoch, skip = divmod(start, count)
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(count)[skip:].tolist()
        epoch, skip = epoch + 1, 0


def kind(row: Row) -> str:
    """The kind of *row*: the values of all its groups, e.g. ``numbers 4, needs mul-div, solutions 2-4``."""
    return ", ".join(f"{group} {value}" for group, value in row.groups.items())


def curriculum(rows: Sequence[Row], size: int, seed: int) -> Rounds:
    """Oversample kinds of rows with intermediate success rates.

    Half of a round is sampled from all rows alike: without puzzles that it solves at once, a model unlearns how it
    solves them. In the other half, the share of a kind is proportional to its number of rows and to the share of its
    recent groups with both correct and wrong completions, because only those have a gradient.
    """
    kinds = list(map(kind, rows))
    by_kind: dict[str, list[int]] = {}
    for number, name in enumerate(kinds):
        by_kind.setdefault(name, []).append(number)
    members = {name: np.array(by_kind[name]) for name in sorted(by_kind)}
    counts: dict[str, tuple[float, float]] = {}  # by kind: groups, and groups with both outcomes, discounted
    for number in count():
        rng = np.random.default_rng((seed, number))
        sizes = rng.multinomial(size, list(probabilities(members, counts).values()))
        sampled = [
            rng.choice(indices, share, replace=bool(share > len(indices)))
            for indices, share in zip(members.values(), sizes, strict=True)
        ]
        outcomes = yield rng.permutation(np.concatenate(sampled)).tolist()
        if outcomes:
            counts = {name: (_DECAY * seen, _DECAY * mixed) for name, (seen, mixed) in counts.items()}
        for outcome in outcomes:
            seen, mixed = counts.get(kinds[outcome.row], (0.0, 0.0))
            counts[kinds[outcome.row]] = seen + 1, mixed + (len({*outcome.correct}) > 1)


def probabilities(members: Mapping[str, Sized], counts: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The probability of each kind of the curriculum. An unseen kind counts as one with variance."""
    weights = {}
    for name in members:
        seen, mixed = counts.get(name, (0.0, 0.0))
        weights[name] = (mixed + 1) / (seen + 1)
    rows = sum(map(len, members.values()))
    mean = sum(weights[name] * len(indices) for name, indices in members.items()) / rows
    return {
        name: len(indices) / rows * (_UNIFORM + (1 - _UNIFORM) * weights[name] / mean)
        for name, indices in members.items()
    }


def order(
    sampler: Sampler,
    name: str,
    rows: Sequence[Row],
    size: int,
    seed: int,
    *,
    start: int = 0,
    outcomes: Sequence[Sequence[Any]] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[Prompt]:
    """Endless prompts from round *start* on; a round is sampled when its first prompt is requested.

    The caller adds the *outcomes* of each round. Where the sampler *name* yields less than a round, *warn* is called,
    and rows sampled from all alike fill it.
    """
    with running(f"sampler {name}"):
        rounds = sampler(rows if sampler is curriculum else deepcopy(list(rows)), size, seed)
    if not isinstance(rounds, Generator):
        raise UsageError(f"The sampler {name} should be a generator function, which yields lists of row indices.")
    for number in count():
        groups = outcomes[number - 2] if number > 1 else ()
        observed = [Outcome(row, *map(tuple, columns)) for row, *columns in groups]  # immutable
        with running(f"sampler {name}"):
            try:
                sampled = rounds.send(observed if number else None)  # type: ignore[arg-type]
            except StopIteration:
                sampled = []
        sampled = _checked(sampled, name, len(rows), size)
        if len(sampled) < size:
            few = f"{len(sampled)} of {plural(size, 'row')}"
            warn(f"the sampler {name} yielded {few}; random rows fill round {number + 1}.")
            fill = np.random.default_rng((seed, number)).integers(len(rows), size=size - len(sampled))
            sampled += [(row, "") for row in fill.tolist()]
        if number >= start:
            yield from sampled
        elif sorted(row for row, _ in sampled) != sorted(row for row, *_ in outcomes[number]):
            raise UsageError(
                f"The sampler {name} yields other rows for round {number + 1} than before the run was interrupted; "
                f"let it depend on its arguments and outcomes alone, and begin again with {flag('restart')}."
            )


def _checked(sampled: Any, name: str, count: int, size: int) -> list[tuple[int, str]]:
    """*sampled* by the sampler *name* as at most *size* pairs of an index of *count* rows and a hint."""
    try:
        pairs = [item if isinstance(item, tuple) else (item, "") for item in sampled]
        prompts = [(index(row), hint) for row, hint in pairs]
    except (TypeError, ValueError):  # not a sequence of integers or pairs
        prompts = [(-1, "")]
    for _, hint in prompts:
        check_text(str(hint), f"a hint of the sampler {name}")
    if len(prompts) > size or not all(0 <= row < count and isinstance(hint, str) for row, hint in prompts):
        raise UsageError(
            f"The sampler {name} should yield a list of at most {size} row indices from 0 to {count - 1}, or pairs of "
            f"an index and a hint, not {sampled!r:.100}."
        )
    return prompts

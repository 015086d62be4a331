"""Samplers: which puzzles the rounds of a run complete.

A sampler is a generator function ``f(rows, size, seed)`` that yields the row indices of one round after another, *size*
at a time. Each ``yield`` returns the :class:`Outcome` of every group of the previous round; the first returns none.
Data loaders prefetch, so the outcomes of a round are known when the second round after it is sampled. A resumed run
runs the sampler again, on the outcomes in its checkpoint: a sampler depends on its arguments and these alone.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from countdown_rl.core.errors import UsageError
from countdown_rl.core.user_code import running
from countdown_rl.tasks.task import Row

#: Share of a round of the curriculum that is sampled from all rows alike, and the discount of its counts per round.
_UNIFORM, _DECAY = 0.5, 0.95


class Outcome(NamedTuple):
    """The completions of a group.

    Attributes:
        row: the index of its row.
        rewards: the weighted sum of each; None where no reward applies.
    """

    row: int
    rewards: Sequence[float | None]
    correct: Sequence[bool]
    truncated: Sequence[bool]


Rounds = Generator[Sequence[int], list[Outcome], None]
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
    """The kind of the *row*: the values of all its groups, e.g. ``numbers 4, needs mul-div, solutions 2-4``."""
    return ", ".join(f"{group} {value}" for group, value in row.groups.items())


def curriculum(rows: Sequence[Row], size: int, seed: int) -> Rounds:
    """Sample more of the kinds of rows that the model solves sometimes.

    A group whose completions are all wrong gives no gradient, and one whose completions are all correct gives none
    without a discount and little with it. The curriculum counts the recent groups with both outcomes of every kind, and
    samples a kind in proportion to its rows times that share. Half of a round is sampled from all rows alike: without
    puzzles that it solves at once, a model unlearns how it solves them.
    """
    kinds = list(map(kind, rows))
    by_kind: dict[str, list[int]] = {}
    for index, name in enumerate(kinds):
        by_kind.setdefault(name, []).append(index)
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
    """The probability of each kind of the curriculum. One not yet seen counts as mixed."""
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
) -> Iterator[int]:
    """Endless row indices from round *start* on; those of a round are sampled when the first of them is reached.

    Args:
        name: names *sampler* in errors.
        outcomes: of each round so far; the caller adds to it.
        warn: called where the sampler yields less than a round; other rows, sampled from all alike, fill it.

    Raises:
        UsageError: the sampler fails, or yields something else, or not what it yielded before the run was resumed.
    """
    with running(f"sampler {name}"):
        rounds = sampler(rows, size, seed)
    if not isinstance(rounds, Generator):
        raise UsageError(f"The sampler {name} should be a generator function, which yields lists of row indices.")
    for number in count():
        known = outcomes[number - 2] if number > 1 else ()
        # Tuples: the sampler cannot change them, and after a resume they are the same.
        observed = [Outcome(row, *map(tuple, columns)) for row, *columns in known]
        with running(f"sampler {name}"):
            try:
                sampled = rounds.send(observed if number else None)  # type: ignore[arg-type]
            except StopIteration:
                sampled = []
        sampled = _checked(sampled, name, len(rows), size)
        if len(sampled) < size:
            warn(
                f"the sampler {name} yielded {len(sampled)} of the {size} rows of round {number + 1}; such rounds are "
                "filled with rows sampled from all alike."
            )
            fill = np.random.default_rng((seed, number)).integers(len(rows), size=size - len(sampled))
            sampled += fill.tolist()
        if number >= start:
            yield from sampled
        elif sorted(sampled) != sorted(row for row, *_ in outcomes[number]):
            raise UsageError(
                f"The sampler {name} yields other rows for round {number + 1} than before the run was interrupted; let "
                "it depend on rows, seed and outcomes alone, and begin again with --restart."
            )


def _checked(sampled: Any, name: str, count: int, size: int) -> list[int]:
    """The row indices *sampled* by the sampler *name* for a round of *size*, out of *count* rows."""
    try:
        integers = np.asarray(sampled if isinstance(sampled, np.ndarray) else list(sampled))
    except (TypeError, ValueError):
        integers = np.array(["not integers"])
    valid = integers.ndim == 1 and len(integers) <= size and (integers.dtype.kind in "iu" or not len(integers))
    if not valid or not all(0 <= index < count for index in integers.tolist()):
        raise UsageError(
            f"The sampler {name} should yield a list of at most {size} row indices from 0 to {count - 1}, not "
            f"{sampled!r:.100}."
        )
    return list(map(int, integers))

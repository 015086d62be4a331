"""Samplers: which puzzles the rounds of a run complete.

A sampler is a generator function ``f(rows, size, seed)`` that yields the row indices of one round
after another, *size* at a time. Each ``yield`` returns the :class:`Outcome` of every group of the
round before the last; data loaders prefetch. A resumed run runs the sampler again, on the outcomes
in its checkpoint: a sampler depends on its arguments and these alone.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import count
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch

from countdown_rl.core.errors import UsageError
from countdown_rl.core.user_code import imported, running
from countdown_rl.tasks.task import Row
from countdown_rl.training.grpo import advantages
from countdown_rl.training.options import TrainOptions

#: Share of a round of the curriculum that is sampled from all rows alike.
_UNIFORM = 0.5
#: Discount of the counts of the curriculum per round.
_DECAY = 0.95


class Outcome(NamedTuple):
    """The completions of a group."""

    row: int  # its index
    rewards: Sequence[float | None]  # weighted sums; None where no reward applies
    correct: Sequence[bool]
    truncated: Sequence[bool]

    @property
    def varies(self) -> bool:
        """The rewards have non-zero variance."""
        totals = [torch.nan if reward is None else reward for reward in self.rewards]
        return advantages.varies(torch.tensor([totals]))[0]


Rounds = Generator[Sequence[int], list[Outcome], None]
Sampler = Callable[[Sequence[Row], int, int], Rounds]


def in_turn(count: int, seed: int, start: int = 0) -> Iterator[int]:
    """Yield row indices below *count* from position *start* on: one permutation after another."""
    epoch, skip = divmod(start, count)
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(count)[skip:].tolist()
        epoch, skip = epoch + 1, 0


def kind(row: Row) -> str:
    """Return the values of all groups of *row*, such as ``numbers 4, needs mul-div``."""
    return ", ".join(f"{group} {value}" for group, value in row.groups.items())


def curriculum(rows: Sequence[Row], size: int, seed: int) -> Rounds:
    """Oversample kinds of rows with intermediate success rates.

    Half of a round is sampled from all rows alike: without puzzles that it solves at once, a model
    unlearns how it solves them. In the other half, the share of a kind is proportional to its
    number of rows and to the share of its recent groups with non-zero reward variance, because only
    those have a gradient.
    """
    names = list(map(kind, rows))
    _, kinds, totals = np.unique(names, return_inverse=True, return_counts=True)
    members = [np.flatnonzero(kinds == index) for index in range(len(totals))]
    # By kind, discounted: groups, and groups with reward variance.
    seen, varied = np.zeros((2, len(totals)))
    for number in count():
        rng = np.random.default_rng((seed, number))
        sizes = rng.multinomial(size, probabilities(totals, seen, varied))
        sampled: list[int] = []
        for indices, share in zip(members, sizes, strict=True):
            sampled += rng.choice(indices, share, replace=bool(share > len(indices))).tolist()
        outcomes = yield rng.permutation(sampled).tolist()
        if outcomes:
            seen *= _DECAY
            varied *= _DECAY
        for outcome in outcomes:
            seen[kinds[outcome.row]] += 1
            varied[kinds[outcome.row]] += outcome.varies


def probabilities(totals: np.ndarray, seen: np.ndarray, varied: np.ndarray) -> np.ndarray:
    """Return the probability of each kind of the curriculum; an unseen one counts as varied.

    Args:
        totals: rows of each kind.
        seen: groups of each kind, discounted.
        varied: those with reward variance.
    """
    weights = (varied + 1) / (seen + 1)
    mean = np.average(weights, weights=totals)
    return totals / totals.sum() * (_UNIFORM + (1 - _UNIFORM) * weights / mean)


def chosen(
    options: TrainOptions,
    rows: Sequence[Row],
    first_round: int = 0,
    outcomes: Sequence[Sequence[Any]] = (),
) -> Callable[[], Iterator[int]]:
    """Return the order of a run from *first_round* on; *outcomes* as in :func:`order`."""
    size = options.prompts
    name = options.sampler
    if name in ("uniform", "dynamic"):
        return partial(in_turn, len(rows), options.seed, first_round * size)
    sampler = curriculum if name == "curriculum" else imported(name)
    return partial(order, sampler, name, rows, size, options.seed, first_round, outcomes)


class Stream:
    """The endless row indices of *order* as a data set."""

    def __init__(self, order: Callable[[], Iterator[int]]) -> None:
        self._order = order

    def __call__(self) -> Iterator[dict[str, int]]:
        return ({"index": index} for index in self._order())

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # datasets hashes a pickle, for which a function of the user's own may have none
        return object, ()


def order(
    sampler: Sampler,
    name: str,
    rows: Sequence[Row],
    size: int,
    seed: int,
    start: int = 0,
    outcomes: Sequence[Sequence[Any]] = (),
) -> Iterator[int]:
    """Yield row indices without end; a round is sampled when its first index is requested.

    Args:
        sampler: and its *name*, for errors.
        rows: to choose from.
        size: rows of a round.
        seed: of the run.
        start: first round.
        outcomes: of each round so far; the caller adds to them.
    """
    with running(f"sampler {name}"):
        rounds = sampler(rows if sampler is curriculum else deepcopy(list(rows)), size, seed)
    if not isinstance(rounds, Generator):
        raise UsageError(f"The sampler {name} should be a generator function of row indices.")
    for number in count():
        groups = outcomes[number - 2] if number > 1 else ()
        observed = [Outcome(row, *map(tuple, columns)) for row, *columns in groups]  # immutable
        with running(f"sampler {name}"):
            try:
                sampled = rounds.send(observed) if number else next(rounds)
            except StopIteration:
                sampled = []
        indices = _checked(sampled, name, len(rows), size)
        if number >= start:
            yield from indices
        elif sorted(indices) != sorted(row for row, *_ in outcomes[number]):
            raise UsageError(
                f"The sampler {name} yields other rows for round {number + 1} than before the run "
                "was interrupted; let it depend on its arguments and outcomes alone, and remove "
                "its checkpoints to begin again."
            )


def _checked(sampled: Iterable[int], name: str, count: int, size: int) -> list[int]:
    """Return *sampled* by the sampler *name* as *size* indices of *count* rows."""
    try:
        indices = list(map(index, sampled))
    except TypeError:  # not a sequence of integers
        indices = [-1]
    if len(indices) != size or not all(0 <= row < count for row in indices):
        raise UsageError(
            f"The sampler {name} should yield a list of {size} row indices from 0 to {count - 1}, "
            f"not {sampled!r:.100}."
        )
    return indices

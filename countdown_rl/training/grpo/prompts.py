"""Samplers: which puzzles the rounds of a run complete.

A sampler is a generator function ``f(rows, size, seed)`` that yields the row indices of one round after another, *size*
at a time. Each ``yield`` returns the :class:`Outcome` of every group of the previous round; the first
returns none. Data loaders prefetch, so the outcomes of a round are known when the second round after it is sampled. A
resumed run runs the sampler again, on the outcomes in its checkpoint: a sampler depends on its arguments and these
alone.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
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

#: Share of a round of the curriculum that is sampled from all rows alike, and the discount of its counts per round.
_UNIFORM, _DECAY = 0.5, 0.95


class Outcome(NamedTuple):
    """The completions of a group."""

    row: int  # its index
    rewards: Sequence[float | None]  # weighted sums; None where no reward applies
    correct: Sequence[bool]
    truncated: Sequence[bool]

    @property
    def varies(self) -> bool:
        """The rewards have non-zero variance."""
        values = [torch.nan if reward is None else reward for reward in self.rewards]
        return advantages.varies(torch.tensor([values]))[0]


Rounds = Generator[Sequence[int], list[Outcome], None]
Sampler = Callable[[Sequence[Row], int, int], Any]


def in_turn(count: int, seed: int, start: int = 0) -> Iterator[int]:
    """Endless row indices below *count* from position *start* on: a permutation of all rows, then another one."""
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
    recent groups with non-zero reward variance, because only those have a gradient.
    """
    kinds = list(map(kind, rows))
    by_kind: dict[str, list[int]] = {}
    for number, name in enumerate(kinds):
        by_kind.setdefault(name, []).append(number)
    members = {name: np.array(by_kind[name]) for name in sorted(by_kind)}
    counts: dict[
        str, tuple[float, float]
    ] = {}  # by kind: groups, and groups with reward variance, discounted
    for number in count():
        rng = np.random.default_rng((seed, number))
        sizes = rng.multinomial(size, list(probabilities(members, counts).values()))
        shares = zip(members.values(), sizes, strict=True)
        sampled = [
            rng.choice(indices, share, replace=bool(share > len(indices)))
            for indices, share in shares
        ]
        outcomes = yield rng.permutation(np.concatenate(sampled)).tolist()
        if outcomes:
            counts = {
                name: (_DECAY * seen, _DECAY * varied) for name, (seen, varied) in counts.items()
            }
        for outcome in outcomes:
            seen, varied = counts.get(kinds[outcome.row], (0.0, 0.0))
            counts[kinds[outcome.row]] = seen + 1, varied + outcome.varies


def probabilities(
    members: Mapping[str, Sized], counts: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """The probability of each kind of the curriculum. An unseen kind counts as one with variance."""
    weights = {}
    for name in members:
        seen, varied = counts.get(name, (0.0, 0.0))
        weights[name] = (varied + 1) / (seen + 1)
    rows = sum(map(len, members.values()))
    mean = sum(weights[name] * len(indices) for name, indices in members.items()) / rows
    return {
        name: len(indices) / rows * (_UNIFORM + (1 - _UNIFORM) * weights[name] / mean)
        for name, indices in members.items()
    }


def chosen(
    options: TrainOptions,
    rows: Sequence[Row],
    first_round: int = 0,
    outcomes: Sequence[Sequence[Any]] = (),
) -> Callable[[], Iterator[int]]:
    """The row indices of a run from *first_round* on, by its sampler; *outcomes* as in :func:`order`."""
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
        return (
            object,
            (),
        )  # datasets hashes a pickle, for which a function of the user's own may have none


def order(
    sampler: Sampler,
    name: str,
    rows: Sequence[Row],
    size: int,
    seed: int,
    start: int = 0,
    outcomes: Sequence[Sequence[Any]] = (),
) -> Iterator[int]:
    """Endless row indices from round *start* on; a round is sampled when its first index is requested.

    The caller adds the *outcomes* of each round. The sampler *name* yields exactly *size* rows for each.
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
                sampled = rounds.send(observed if number else None)
            except StopIteration:
                sampled = []
        indices = _checked(sampled, name, len(rows), size)
        if number >= start:
            yield from indices
        elif sorted(indices) != sorted(row for row, *_ in outcomes[number]):
            raise UsageError(
                f"The sampler {name} yields other rows for round {number + 1} than before the run was interrupted; "
                f"let it depend on its arguments and outcomes alone, and remove its checkpoints to begin again."
            )


def _checked(sampled: Any, name: str, count: int, size: int) -> list[int]:
    """*sampled* by the sampler *name* as *size* indices of *count* rows."""
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

"""Order of the puzzles of a run: every one in turn, or more of the kinds that the model solves sometimes.

A group whose completions are all wrong gives no gradient, and one whose completions are all correct gives none without
a discount and little with it. The curriculum counts the recent groups with both outcomes for every kind of row, and
samples a kind in proportion to its rows times that share. Half of a round is sampled from all rows alike: without
puzzles that it solves at once, a model unlearns how it solves them. A round depends on the seed, its number and these
counts alone, so a resumed run has the same puzzles.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from countdown_rl.tasks.task import Row

#: By kind: [groups, groups with both outcomes], discounted over time.
Evidence = dict[str, list[float]]

#: Share of a round that is sampled from all rows alike, and the discount of the counts per round.
_UNIFORM, _DECAY = 0.5, 0.95
#: Rounds that may be sampled before the rewards of the first of them are known: data loaders prefetch.
_AHEAD = 2


def kind(row: Row) -> str:
    """The kind of the *row*: the values of all its groups, e.g. ``numbers 4, needs mul-div, solutions 2-4``."""
    return ", ".join(f"{group} {value}" for group, value in row.groups.items())


def in_turn(count: int, seed: int, start: int = 0) -> Iterator[int]:
    """Endless row indices below *count*: a permutation of all rows, then another one.

    The index at position *start* depends on *count*, *seed* and *start* alone.
    """
    epoch, skip = divmod(start, count)
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(count)[skip:].tolist()
        epoch, skip = epoch + 1, 0


class Curriculum:
    """Samples *size* rows per round, by the outcomes of earlier rounds.

    Args:
        evidence: state of an interrupted run, from :attr:`evidence`.
    """

    def __init__(self, rows: Sequence[Row], *, size: int, seed: int, evidence: Sequence[Mapping[str, Any]]) -> None:
        members: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(kind(row), []).append(index)
        self._members = {name: np.array(members[name]) for name in sorted(members)}
        self._size, self._seed = size, seed
        # By number of observed rounds, the newest _AHEAD + 1 of them.
        self._evidence: dict[int, Evidence] = {entry["rounds"]: entry["kinds"] for entry in evidence} or {0: {}}

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """The state, as JSON values."""
        return [{"rounds": rounds, "kinds": kinds} for rounds, kinds in self._evidence.items()]

    def observe(self, outcomes: Sequence[tuple[str, bool]], num_generations: int) -> None:
        """Take in a round: kind of puzzle and correctness of each completion, group by group."""
        rounds = max(self._evidence)
        kinds = {name: [_DECAY * seen, _DECAY * mixed] for name, (seen, mixed) in self._evidence[rounds].items()}
        for start in range(0, len(outcomes), num_generations):
            group = outcomes[start : start + num_generations]
            counts = kinds.setdefault(group[0][0], [0.0, 0.0])
            counts[0] += 1
            counts[1] += len({correct for _, correct in group}) > 1
        self._evidence[rounds + 1] = kinds
        self._evidence.pop(rounds - _AHEAD, None)

    def probabilities(self, number: int) -> dict[str, float]:
        """The probability of each kind in round *number*, from 0. One not yet seen counts as mixed."""
        evidence = self._evidence[max(0, number + 1 - _AHEAD)]
        weights = {}
        for name in self._members:
            seen, mixed = evidence.get(name, (0.0, 0.0))
            weights[name] = (mixed + 1) / (seen + 1)
        rows = sum(map(len, self._members.values()))
        mean = sum(weights[name] * len(members) for name, members in self._members.items()) / rows
        return {
            name: len(members) / rows * (_UNIFORM + (1 - _UNIFORM) * weights[name] / mean)
            for name, members in self._members.items()
        }

    def sample(self, number: int) -> list[int]:
        """The row indices of round *number*, without repeats where a kind has enough rows."""
        rng = np.random.default_rng((self._seed, number))
        sizes = rng.multinomial(self._size, list(self.probabilities(number).values()))
        sampled = [
            rng.choice(members, size, replace=bool(size > len(members)))
            for members, size in zip(self._members.values(), sizes, strict=True)
        ]
        return rng.permutation(np.concatenate(sampled)).tolist()

    def indices(self, start: int) -> Iterator[int]:
        """Endless row indices from round *start* on; each is sampled when it is reached."""
        for number in count(start):
            yield from self.sample(number)

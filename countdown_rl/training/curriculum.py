"""Which puzzles a run draws: every one in turn, or more of the kinds that the model solves sometimes.

A group whose completions are all right or all wrong teaches nothing. The curriculum counts, for every kind
of puzzle (count of numbers, operators needed, how many solutions), how many groups of late were mixed, and
draws a kind as often as the data holds it times that share. What it draws for a round depends on the seed,
the number of the round and the evidence alone, so a continued run draws what an unbroken one would have.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

Row = Mapping[str, Any]
#: Of each kind (groups seen, mixed ones among them), older ones counting less.
Evidence = dict[str, list[float]]

#: What a group still counts for after one more round.
_DECAY = 0.95
#: Rounds that may be drawn before the rewards of the first of them are known: data loaders read ahead.
_AHEAD = 2
#: Solutions of a puzzle up to which it belongs to one bucket.
_BUCKETS = (0, 1, 3, 9)


def kind(row: Row) -> str:
    """Which puzzles *row* is counted with, e.g. ``4 numbers, mul-div, 2-3 solutions``."""
    size = row.get("size") or len(row.get("nums") or ())
    return f"{size} numbers, {row.get('needs') or '?'}, {_bucket(row.get('solutions'))} solutions"


def _bucket(solutions: int | None) -> str:
    if solutions is None:
        return "?"
    low = 0
    for high in _BUCKETS:
        if solutions <= high:
            return str(high) if low == high else f"{low}-{high}"
        low = high + 1
    return f"{low}+"


def in_turn(count: int, seed: int, start: int = 0) -> Iterator[int]:
    """Row numbers without end: every row once in an order of its own, then all again in another.

    The draw at position *start* depends on *count*, *seed* and *start* alone.
    """
    epoch, skip = divmod(start, count)
    while True:
        yield from np.random.default_rng((seed, epoch)).permutation(count)[skip:].tolist()
        epoch, skip = epoch + 1, 0


class Curriculum:
    """Draws *size* rows a round, after what was seen of the rounds before.

    Args:
        evidence: what an earlier part of the run had seen, as :attr:`evidence` gave it.
    """

    def __init__(self, rows: Sequence[Row], *, size: int, seed: int, evidence: Sequence[Mapping[str, Any]]) -> None:
        members: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(kind(row), []).append(index)
        self._members = {name: np.array(members[name]) for name in sorted(members)}
        self._size, self._seed = size, seed
        # After how many rounds, and what was known then: the newest _AHEAD + 1 of them.
        self._known: dict[int, Evidence] = {entry["rounds"]: entry["kinds"] for entry in evidence} or {0: {}}

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """All that decides the rounds to come, as JSON can hold it."""
        return [{"rounds": rounds, "kinds": kinds} for rounds, kinds in self._known.items()]

    def saw(self, outcomes: Sequence[tuple[str, bool]], generations: int) -> None:
        """Take in a round: the kind of each completion's puzzle and whether it is right, group by group."""
        rounds = max(self._known)
        groups = [outcomes[start : start + generations] for start in range(0, len(outcomes), generations)]
        new = {name: [_DECAY * seen, _DECAY * mixed] for name, (seen, mixed) in self._known[rounds].items()}
        for group in groups:
            counts = new.setdefault(group[0][0], [0.0, 0.0])
            counts[0] += 1
            counts[1] += len({right for _, right in group}) > 1
        self._known[rounds + 1] = new
        self._known.pop(rounds - _AHEAD, None)

    def chances(self, number: int) -> dict[str, float]:
        """How likely each kind is in round *number*, from 0. A kind that was not seen yet counts as mixed."""
        known = self._known[max(0, number + 1 - _AHEAD)]
        shares = {}
        for name, members in self._members.items():
            seen, mixed = known.get(name, (0.0, 0.0))
            shares[name] = len(members) * (mixed + 1) / (seen + 1)
        whole = sum(shares.values())
        return {name: share / whole for name, share in shares.items()}

    def draw(self, number: int) -> list[int]:
        """The rows of round *number*, no row twice where a kind has enough of them."""
        rng = np.random.default_rng((self._seed, number))
        sizes = rng.multinomial(self._size, list(self.chances(number).values()))
        drawn = [
            rng.choice(members, size, replace=bool(size > len(members)))
            for members, size in zip(self._members.values(), sizes, strict=True)
        ]
        return rng.permutation(np.concatenate(drawn)).tolist()

    def draws(self, start: int) -> Iterator[int]:
        """The rows of round *start* and all after it, each round drawn when it is asked for."""
        for number in count(start):
            yield from self.draw(number)

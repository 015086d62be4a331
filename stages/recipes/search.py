"""Searches for the target as demonstrations: the mixture of Stream of Search (Gandhi et al. 2024,
arXiv:2404.03683).

Half of the searches are depth-first and half breadth-first with a beam of 1 to 5, each with a sum
or a product heuristic, as in ``kanishkg/stream-of-search``. Depth-first search prunes what the
heuristic puts farther away than the target itself. So a search can miss the target, and it can be
long.

:func:`published` writes the lines of that project, :func:`compact` a twentieth of the characters.
Its lines are an operation and the numbers that it leaves, ``28-7=21,5,3``. Operations on the last
two numbers follow the result at once: ``28-7=21+1=22-1=20`` is 28-7=21, 21+1=22 and 21-1=20. If the
result is the second operand, both are written after a space: ``7-1=6 28-6=22``. A search that
returns to an earlier state lists its numbers again if others were listed since, but not those of
the puzzle: ``5,3,21``, or ``1,21+1=22`` for the last two.

In a checkout:
``countdown-rl sft --demonstrator stages.recipes.search:compact --data artifacts/data``
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import combinations, count
from typing import NamedTuple

from countdown_rl.tasks.countdown.rules import Puzzle
from countdown_rl.tasks.countdown.task import CountdownRow

IMPOSSIBLE = "impossible"
#: Widest beam of a breadth-first search.
MAX_BEAM = 5


class _Number(NamedTuple):
    """A number of a state, and the expression that makes it; rank 0: a sum, 1: a product, 2: a
    number.
    """

    value: int
    expression: str
    rank: int = 2


@dataclass(frozen=True, eq=False)
class _Node:
    """A state of the search; the last of its numbers is the result of the last operation."""

    numbers: tuple[_Number, ...]
    operations: tuple[str, ...] = ()
    label: str = "0"
    reached: bool = False

    @property
    def values(self) -> list[int]:
        return [number.value for number in self.numbers]


#: Steps of the search: it looks at a "state", would "explore" the operation that leads to one, or
#: "move" to one.
_Events = Iterator[tuple[str, _Node]]
Heuristic = Callable[[Sequence[int]], float]
#: The lines of a search, each with the answer of a search that ends there.
Lines = Iterator[tuple[str, str]]


def published(row: CountdownRow, rng: random.Random) -> Lines:
    """A search of the puzzle of *row* in the text of Stream of Search."""
    puzzle = row.puzzle
    target = puzzle.target
    for kind, node in _search(puzzle, rng):
        values = node.values
        if kind == "move":
            yield f"Moving to Node #{node.label}", IMPOSSIBLE
        elif kind == "state":
            yield (
                f"Current State: {target}:{values}, Operations: {list(node.operations)}",
                IMPOSSIBLE,
            )
        else:
            yield (
                f"Exploring Operation: {node.operations[-1]}, Resulting Numbers: {values}",
                IMPOSSIBLE,
            )
            if node.reached:
                yield f"{target},{target} equal: Goal Reached", node.numbers[-1].expression
            elif len(values) == 1:
                yield f"{values[0]},{target} unequal: No Solution", IMPOSSIBLE
            else:
                operation = node.operations[-1]
                line = f"Generated Node #{node.label}: {target}:{values} Operation: {operation}"
                yield line, IMPOSSIBLE


def compact(row: CountdownRow, rng: random.Random) -> Lines:
    """A search of the puzzle of *row* in compact lines."""
    line = ""
    current: _Node | None = None
    generated: _Node | None = None  # the line ends in its operation
    listed: _Node | None = None  # the last one whose numbers were written
    for kind, node in _search(row.puzzle, rng):
        if kind == "move" or node is current:
            continue
        if kind == "explore" and current and len(node.numbers) == 1:
            line += _continued(current, node)
        else:
            entered = kind == "state" and node is generated
            if generated and not (entered and len(node.numbers) == 2):
                line += "".join(f",{value}" for value in generated.values[:-1])
                listed = generated
            if line and not entered:
                yield line, IMPOSSIBLE
                line = ""
            if kind == "explore":
                line, generated = node.operations[-1], node
            else:
                current, generated = node, None
                if not entered and (
                    len(node.numbers) == 2 or (node.operations and node is not listed)
                ):
                    line, listed = ",".join(map(str, node.values)), node
        if node.reached:
            yield line, node.numbers[-1].expression
            return
    yield line, IMPOSSIBLE


def _continued(state: _Node, leaf: _Node) -> str:
    """The last operation, without its first operand if that is the result before."""
    operation, result = leaf.operations[-1], str(state.numbers[-1].value)
    first, operator, second, total = re.fullmatch(r"(\d+)(.)(\d+)=(\d+)", operation).groups()  # type: ignore[union-attr]
    if first == result:
        return f"{operator}{second}={total}"
    return (
        f"{operator}{first}={total}" if operator in "+*" and second == result else f" {operation}"
    )


def _search(puzzle: Puzzle, rng: random.Random) -> _Events:
    """A search of the mixture, up to the target or its end."""
    heuristic = _heuristic(puzzle.target, rng)
    root = _Node(tuple(_Number(number, str(number)) for number in puzzle.numbers))
    if rng.random() < 0.5:
        events = _depth_first(puzzle, root, heuristic)
    else:
        events = _breadth_first(puzzle, root, heuristic, rng.randint(1, MAX_BEAM), rng)
    for kind, node in events:
        yield kind, node
        if node.reached and kind == "explore":
            return


def _depth_first(puzzle: Puzzle, node: _Node, heuristic: Heuristic) -> _Events:
    yield "state", node
    near = [
        child
        for child in _children(puzzle, node, heuristic)
        if heuristic(child.values) <= puzzle.target
    ]
    for child in (children := _labeled(node, near)):
        yield "explore", child
        if len(child.numbers) > 1:
            yield "move", child
            yield from _depth_first(puzzle, child, heuristic)
        if child is not children[-1]:
            yield "move", node
            yield "state", node


def _breadth_first(
    puzzle: Puzzle, root: _Node, heuristic: Heuristic, beam: int, rng: random.Random
) -> _Events:
    order = count()
    frontier = [(heuristic(root.values), next(order), root)]
    while frontier:
        nodes = [heappop(frontier)[-1] for _ in range(min(beam, len(frontier)))]
        for index, node in enumerate(nodes):
            if index:
                yield "move", node
            yield "state", node
            best = _children(puzzle, node, heuristic)[:beam]
            rng.shuffle(best)
            for child in _labeled(node, best):
                yield "explore", child
                if len(child.numbers) > 1:
                    heappush(frontier, (heuristic(child.values), next(order), child))
        if frontier:
            yield "move", frontier[0][-1]


def _labeled(node: _Node, children: Sequence[_Node]) -> list[_Node]:
    return [replace(child, label=f"{node.label},{index}") for index, child in enumerate(children)]


def _children(puzzle: Puzzle, node: _Node, heuristic: Heuristic) -> list[_Node]:
    """The states after one operation, the best by *heuristic* first."""
    children = []
    for i, j in combinations(range(len(node.numbers)), 2):
        rest = tuple(number for index, number in enumerate(node.numbers) if index not in (i, j))
        for operation, result in _operations(puzzle, node.numbers[i], node.numbers[j]):
            reached = result.value == puzzle.target and not (rest and puzzle.rule.every)
            children.append(_Node((*rest, result), (*node.operations, operation), "", reached))
    return sorted(children, key=lambda child: heuristic(child.values))


def _operations(puzzle: Puzzle, a: _Number, b: _Number) -> Iterator[tuple[str, _Number]]:
    """The operations on two numbers with a whole result that is not negative, as ``28-7=21``, and
    their results.
    """
    low, high = (a, b) if a.value <= b.value else (b, a)
    results = [
        ("+", a, b, a.value + b.value),
        ("*", a, b, a.value * b.value),
        ("-", high, low, high.value - low.value),
    ]
    if low.value and high.value % low.value == 0:
        results.append(("/", high, low, high.value // low.value))
    for operator, left, right, value in results:
        if operator in puzzle.operators and (value or not puzzle.rule.whole):
            rank = int(operator in "*/")
            first = f"({left.expression})" if left.rank < rank else left.expression
            in_parentheses = right.rank < rank or (right.rank == rank and operator in "-/")
            second = f"({right.expression})" if in_parentheses else right.expression
            yield (
                f"{left.value}{operator}{right.value}={value}",
                _Number(value, f"{first}{operator}{second}", rank),
            )


def _heuristic(target: int, rng: random.Random) -> Heuristic:
    """The sum heuristic, the mean distance of the numbers from the target; or the product
    heuristic, the sum of their distances to the nearest factor of the target above 1.
    """
    if rng.choice(("sum", "product")) == "sum":
        return lambda values: sum(abs(value - target) for value in values) / len(values)
    small = [factor for factor in range(1, int(target**0.5) + 1) if target % factor == 0]
    factors = {*small, *(target // factor for factor in small)} - ({1} if target > 1 else set())
    return lambda values: sum(min(abs(value - factor) for factor in factors) for value in values)

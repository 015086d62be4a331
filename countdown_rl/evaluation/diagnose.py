"""Causes of lost points: faults in the completions of an evaluation, with the points that each of them costs."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from countdown_rl import artifacts
from countdown_rl.errors import InputError
from countdown_rl.evaluation.results import Result, is_baseline
from countdown_rl.puzzle import solver
from countdown_rl.puzzle.canonical import shape
from countdown_rl.puzzle.expression import operators, parse
from countdown_rl.puzzle.rules import MAX_NUMBERS, OPERATORS, Puzzle
from countdown_rl.tasks import execution, traces
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.registry import parse_row

#: Numbers of lines within which the share of puzzles solved is counted.
LINES = (1, 2, 4, 8, 16, 32)


def diagnose(result: Result) -> dict[str, Any]:
    """The :func:`causes` and :func:`shapes` of *result*, and :func:`solved_by_line` where its model was trained on
    search traces.

    Raises:
        InputError: it is of a baseline.
    """
    if is_baseline(result.metrics):
        raise InputError(f"{result.metrics['model']['source']} is a baseline, which has no faults; give a model.")
    ways = plan(result)
    return {
        **causes(result),
        "shapes": shapes(result),
        **({"solved_by_line": solved_by_line(result, ways)} if ways else {}),
    }


def plan(result: Result) -> traces.Plan | None:
    """The plan of the search traces that the evaluated model, or one that it was made from, was trained on."""
    for link in reversed(artifacts.chain(result.manifest.inputs["model"])):
        if "plan" in link.facts:
            return traces.plan_of(link.facts)
    return None


def causes(result: Result) -> dict[str, Any]:
    """The causes of the points that *result* lost, the largest first.

    Returns:
        ``lost``, the share of wrong completions; ``causes``, each with the completions that have the fault, its
        occurrences, and the ``points``: the gain in accuracy if the fault never happened, found by executing each
        wrong completion again with that fault repaired, within the same number of characters per token (an upper
        bound where ``at_most``); ``unexplained``, the share of completions that no single repair makes correct;
        ``steps``, by operator, written and wrong.
    """
    budget, ways = result.metrics["decoding"]["max_new_tokens"], plan(result)
    occurrences, completions, won, steps = (Counter[str]() for _ in range(4))
    unexplained = 0
    free_text = False
    for sample in result.samples:
        row = parse_row(sample)
        trace = execution.read(sample["completion"], row, ways) if ways and isinstance(row, CountdownRow) else None
        text = trace or execution.read_text(sample, row)
        free_text = free_text or trace is None
        occurrences.update(text.faults)
        steps.update(text.steps)
        faults = [fault for fault, count in text.faults.items() if count]
        completions.update(faults)
        if not sample["correct"]:
            characters = budget * len(sample["completion"]) / max(1, sample["tokens"])
            repairs = [fault for fault in faults if text.repaired(fault, characters)]
            won.update(repairs)
            unexplained += not repairs
    n = len(result.samples)
    rows = [
        {
            "cause": fault,
            "points": round(won[fault] / n, 6),
            "completions": completions[fault],
            "occurrences": occurrences[fault],
            "at_most": free_text and fault == execution.LIMIT,
        }
        for fault in completions
    ]
    return {
        "lost": round(1 - sum(sample["correct"] for sample in result.samples) / n, 6),
        "causes": sorted(rows, key=lambda row: (-row["points"], row["cause"] == execution.LIMIT, row["cause"])),
        "unexplained": round(unexplained / n, 6),
        "steps": {
            operator: {"written": steps[operator], "wrong": occurrences[execution.wrong_step(operator)]}
            for operator in OPERATORS
        },
    }


def shapes(result: Result) -> list[dict[str, Any]]:
    """Accuracy by the shape of the expression needed (that of one solution), the largest loss of points first."""
    groups: dict[str, list[bool]] = {}
    for sample in result.samples:
        if expression := solution(sample):
            groups.setdefault(shape(parse(expression).tree), []).append(sample["correct"])
    n = len(result.samples)
    rows = [
        {
            "shape": name,
            "n": len(right),
            "accuracy": round(sum(right) / len(right), 6),
            "points": round(right.count(False) / n, 6),
        }
        for name, right in groups.items()
    ]
    return sorted(rows, key=lambda row: (-float(row["points"]), str(row["shape"])))


def solved_by_line(result: Result, plan: traces.Plan) -> dict[str, dict[str, list[float]]]:
    """The shares of puzzles solved within each of :data:`LINES` lines of the search.

    By operator in the expression needed, beside ``all``: those of the ``model``, and the exact ones of the ``teacher``
    and of the ``plan in order``, without a mistake.
    """
    teachers = {name: _teacher(result, plan, in_order=name != "teacher") for name in ("teacher", "plan in order")}
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for sample in result.samples:
        if len(sample.get("nums", ())) not in plan:
            continue
        trace = execution.read(sample["completion"], sample, plan)
        lines = len(trace.lines) if trace and sample["correct"] else max(LINES) + 1
        expression = solution(sample)
        for group in ("all", *(operators(parse(expression).tree) if expression else ())):
            by_name = curves.setdefault(group, {name: [] for name in ("model", *teachers)})
            by_name["model"].append([float(lines <= count) for count in LINES])
            for name, exact in teachers.items():
                by_name[name].append(exact[_key(sample)])
    return {
        group: {
            name: [round(sum(column) / len(column), 6) for column in zip(*rows, strict=True)]
            for name, rows in curves[group].items()
        }
        for group in ("all", *OPERATORS)
        if group in curves
    }


def _teacher(result: Result, plan: traces.Plan, *, in_order: bool) -> dict[str, list[float]]:
    """The shares of :func:`solved_by_line` of a search without a mistake, by puzzle."""
    exact: dict[str, list[float]] = {}
    for size in plan:
        rows = {_key(sample): sample for sample in result.samples if len(sample.get("nums", ())) == size}
        if rows:
            reaching = [traces.reaching(row, plan) for row in rows.values()]
            curves = traces.solved_by_line(reaching, max(LINES), in_order=in_order)
            exact |= {key: [curve[k - 1] for k in LINES] for key, curve in zip(rows, curves, strict=True)}
    return exact


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['nums']} {row['target']}"


def solution(sample: Mapping[str, Any]) -> str | None:
    """A solution of the puzzle of *sample*; None where there is none, or no puzzle that the solver takes."""
    if not 0 < len(sample.get("nums", ())) <= MAX_NUMBERS:
        return None
    return _solve(CountdownRow(sample).puzzle)


@lru_cache(maxsize=4_096)
def _solve(puzzle: Puzzle) -> str | None:
    return solver.solve(puzzle).solution

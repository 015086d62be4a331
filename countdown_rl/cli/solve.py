from dataclasses import asdict
from typing import Annotated

import typer

from countdown_rl.cli import console, parameters
from countdown_rl.core.errors import input_as_usage
from countdown_rl.core.formatting import plural
from countdown_rl.core.options import option
from countdown_rl.core.types import JsonObject
from countdown_rl.tasks.options import RULE


def solve(
    numbers: Annotated[list[str], typer.Argument(help="Numbers, up to six.")],
    target: Annotated[int, option("Target to reach.", min=1)],
    rule: Annotated[str, option(RULE)] = "exactly-once",
    operators: Annotated[str, option("Allowed operators.")] = "+-*/",
    every: Annotated[bool, option("Print every distinct solution.", name="--all")] = False,
) -> None:
    """Count the solutions of a puzzle exactly, and print a short one.

    Solutions that differ only in order, brackets or the place of a minus sign count once.
    Exhaustive search proves that a puzzle has no solution.

    Examples:
        countdown-rl solve 3 7 50 --target 46
        countdown-rl solve 25 50 75 100 3 6 --target 952 --rule television --all
    """
    from countdown_rl.tasks.countdown import rules, solver

    nums = parameters.numbers_in(numbers)
    with input_as_usage():
        puzzle = rules.Puzzle(tuple(nums), target, rules.rule(rule), rules.operators(operators))
        solved = solver.solve(puzzle)
    lines = [solved.solution or ""]
    result: JsonObject = {"numbers": nums, "target": target, "rule": rule, **asdict(solved)}
    if every:
        lines = sorted(solver.solutions(puzzle), key=lambda text: (len(text), text))
        result["all"] = lines
    console.result(result)
    if console.as_json:
        return
    if not solved.solutions:
        console.data("impossible")
        console.note("There is no solution: every expression was tried.")
    else:
        for line in lines:
            console.data(f"{line} = {target}")
        needs = "+ and - suffice" if solved.needs == "add-sub" else "* or / is needed"
        console.note(f"{plural(solved.solutions, 'distinct solution')}; {needs}.")

"""``countdown-rl solve``: every way to the target, or proof that there is none."""

from typing import Annotated

import typer

from countdown_rl.cli import console


def solve(
    numbers: Annotated[list[int], typer.Argument(min=1, help="The numbers, up to six.")],
    target: Annotated[int, typer.Option(min=1, help="What to reach.")],
    rule: Annotated[str, typer.Option(help="exactly-once, at-most-once or television.")] = "exactly-once",
    operators: Annotated[str, typer.Option(help="The signs that may be used.")] = "+-*/",
    every: Annotated[bool, typer.Option("--all", help="Print every distinct solution.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Count the solutions of a puzzle exactly, and print a short one.

    Solutions that differ by reordering, re-bracketing or moving a minus sign count once. That there is none
    is proved by exhaustion.

    Examples:

      countdown-rl solve 3 7 50 --target 46

      countdown-rl solve 25 50 75 100 3 6 --target 952 --rule television --all
    """
    from countdown_rl.errors import InputError, UsageError
    from countdown_rl.puzzle import rules, solver

    try:
        posed = rules.Puzzle(tuple(numbers), target, rules.rule(rule), rules.operators(operators))
    except InputError as error:
        raise UsageError(str(error)) from None
    found = solver.solve(posed)
    result = {
        "numbers": numbers,
        "target": target,
        "rule": rule,
        "solutions": found.solutions,
        "solution": found.solution,
        "needs": found.needs,
    }
    lines = sorted(solver.solutions(posed), key=lambda text: (len(text), text)) if every else []
    if json:
        console.result({**result, "all": lines} if every else result, as_json=True)
        return
    if not found.solutions:
        console.data("impossible")
        console.note("There is no solution: every expression was tried.")
        return
    for line in lines or [found.solution or ""]:
        console.data(f"{line} = {target}")
    needed = "+ and - are enough" if found.needs == "add-sub" else "it takes * or /"
    console.note(f"{found.solutions:,} distinct solution{'s' * (found.solutions != 1)}; {needed}.")

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from countdown_rl.cli import console, parameters
from countdown_rl.cli.parameters import Model, option
from countdown_rl.core.errors import input_as_usage
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import provenance_chain
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.config import AskOptions
from countdown_rl.tasks import probe
from countdown_rl.tasks.countdown import solver
from countdown_rl.tasks.countdown.solver import Solved
from countdown_rl.tasks.countdown.task import CountdownRow, puzzle_row


def ask(
    *,
    numbers: Annotated[list[str], typer.Argument(help="Numbers, up to six.")],
    target: Annotated[int, option("Target to reach.", min=1)],
    model: Model = "countdown-tiny",
    options: AskOptions,
) -> None:
    """Ask a model one puzzle, and stream its reasoning.

    The answer is graded exactly and shown beside the solver's.

    Examples:
        countdown-rl ask 3 7 50 --target 46 --model artifacts/merged --temperature 1
    """
    console.note(f"Loading {model} ...")
    from countdown_rl.inference import generate
    from countdown_rl.models import chat_template, load, reference

    ref = reference.find_model(model)
    chain = provenance_chain(ref.as_input())
    settings: dict[str, str] = {}
    if probe.trained_on(chain).row is CountdownRow:
        settings |= probe.layout(chain)
    for name in ("rule", "style", "template"):
        setting = getattr(options, name)
        if setting is not None:
            settings[name] = setting
    with input_as_usage():
        row = puzzle_row(parameters.numbers_in(numbers), target, settings)
    if warning := probe.other_prompt(chain, [row], "leave --style and --prompt out."):
        console.warn(warning)
    loaded = load.load_model(ref)
    if note := chat_template.note(loaded.tokenizer):
        console.note(note)
    write = None
    if not console.as_json:
        console.result({}, Text.assemble((row.headline, "bold"), (f"  {ref.source}", "dim")))
        write = console.stream
        write(row.opening)

    completion = generate.ask(loaded, row, options, write)
    sample = Sample.of(row, completion)
    solved = solver.solve(row.puzzle)
    about = {"model": {"source": ref.source, "kind": ref.kind}, "solver": asdict(solved)}
    console.result({**row, **sample.to_json(), **about}, _view(sample, solved))


def _view(sample: Sample, solved: Solved) -> Text:
    solution = "there is no solution; every expression was tried"
    if solved.solutions:
        count = plural(solved.solutions, "distinct solution")
        solution = f"{solved.solution} = {sample.row['target']} ({count})"
    mark, color = ("✓ correct", "green") if sample.grade.correct else ("✗ incorrect", "red")
    verdict = (f"{mark}: {sample.verdict}\n", color)
    return Text.assemble(
        "\n\n", verdict, f"solver: {solution}\n", (plural(sample.tokens or 0, "token"), "dim")
    )

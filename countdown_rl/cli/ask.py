"""``countdown-rl ask``: a model's answer to one puzzle, streamed."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from countdown_rl import artifacts
from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Model, Revision, TrustRemoteCode, with_options
from countdown_rl.errors import InputError, UsageError
from countdown_rl.inference.config import AskOptions
from countdown_rl.models import chat_template
from countdown_rl.options import option
from countdown_rl.tasks import explain, probe

if TYPE_CHECKING:
    from countdown_rl.inference.ask import Reply


@with_options
def ask(
    *,
    numbers: Annotated[list[int], typer.Argument(min=1, help="Numbers, up to six.")],
    target: Annotated[int, option("Target to reach.", min=1)],
    model: Model = "countdown-tiny",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    options: AskOptions,
    as_json: AsJson = False,
) -> None:
    """Ask a model one puzzle, and stream its reasoning.

    The answer is graded exactly and shown beside the solver's.

    Examples:
        countdown-rl ask 3 7 50 --target 46
        countdown-rl ask 3 7 50 --target 46 --model artifacts/merged --temperature 1
        countdown-rl ask 3 7 50 --target 46 --model NAME \\
          --engine openai --base-url http://127.0.0.1:8000/v1
    """
    from countdown_rl.inference import ask as asking
    from countdown_rl.inference import engines
    from countdown_rl.inference.openai import OpenAI
    from countdown_rl.models import load, reference

    ref = None if options.engine == "openai" else reference.resolve(model, revision=revision)
    try:
        links = artifacts.chain(ref.as_input()) if ref else []
        layout = probe.layout(links) if probe.trained_on(links).name == asking.CountdownRow.task else {}
        row = asking.puzzle_row(options, numbers, target, layout)
    except InputError as error:
        raise UsageError(str(error)) from None
    loaded: load.Loaded | OpenAI
    with console.status(f"loading {model}"):
        if ref is None:
            if revision is not None:
                raise UsageError("--engine openai takes no --revision; leave it out.")
            loaded, source, kind = asking.connect(model, options), model, "endpoint"
            row = loaded.row(row)
        else:
            source, kind = ref.source, ref.kind
            chat_template.preload()
            loaded = engines.load_model(
                ref, precision=options.precision, device=options.device, trust_remote_code=trust_remote_code
            )
    if not as_json:
        heading = Text.assemble((row.headline, "bold"), (f"  {source}", "dim"))
        console.result({}, as_json=False, view=heading)
    opening = "" if row.style.own else chat_template.OPEN_THINK

    def write(text: str) -> None:
        nonlocal opening
        console.stream(opening + text)
        opening = ""

    reply = asking.ask(loaded, row, options, None if as_json else write)
    about = {"model": {"source": source, "kind": kind}, "solver": asdict(reply.solved)}
    console.result(reply.sample() | about, as_json=as_json, view=_view(reply))


def _view(reply: "Reply") -> Text:
    grade = explain.verdict(reply.sample())
    count = reply.solved.solutions
    solution = "there is no solution; every expression was tried"
    if count:
        equation = f"{reply.solved.solution} = {reply.row['target']}"
        solution = f"{equation} ({count:,} distinct solution{'s' * (count != 1)})"
    return Text.assemble(
        "\n\n",
        (f"✓ correct: {grade}\n", "green") if reply.grade.correct else (f"✗ wrong: {grade}\n", "red"),
        f"solver: {solution}\n",
        (f"{reply.completion.tokens} tokens", "dim"),
    )

"""``countdown-rl ask``: one puzzle, and the model's reasoning as it comes."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.cli.console import plain
from countdown_rl.errors import InputError, UsageError
from countdown_rl.inference.config import ASK_CHOICES, AskOptions
from countdown_rl.models.chat_template import OPEN_THINK

if TYPE_CHECKING:
    from countdown_rl.inference.ask import Reply

DEFAULT = AskOptions()
PUZZLE, DECODING, MACHINE = "Puzzle", "Decoding", "Machine"


def ask(
    numbers: Annotated[list[int], typer.Argument(min=1, help="The numbers, up to six.")],
    target: Annotated[int, typer.Option(min=1, help="What to reach.")],
    model: Annotated[
        str,
        typer.Option(
            help="The shipped model's name, an adapter, merged or quantized directory, a GGUF file, a Hub id."
        ),
    ] = "countdown-tiny",
    revision: Annotated[str | None, typer.Option(help="Which revision of a Hub model.")] = None,
    rule: Annotated[
        str, typer.Option(help=f"One of {', '.join(ASK_CHOICES['rule'])}.", rich_help_panel=PUZZLE)
    ] = DEFAULT.rule,
    operators: Annotated[
        str, typer.Option(help="The signs that may be used.", rich_help_panel=PUZZLE)
    ] = DEFAULT.operators,
    style: Annotated[
        str,
        typer.Option(
            help="begun: the prompt opens the thinking, as in training; own: the model does.", rich_help_panel=PUZZLE
        ),
    ] = DEFAULT.style,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens the completion may have.", rich_help_panel=DECODING)
    ] = DEFAULT.max_new_tokens,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 is greedy.", rich_help_panel=DECODING)
    ] = DEFAULT.temperature,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1, help="Sample from the likeliest part.", rich_help_panel=DECODING)
    ] = DEFAULT.top_p,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.", rich_help_panel=DECODING)] = DEFAULT.seed,
    precision: Annotated[
        str, typer.Option(help=f"One of {', '.join(ASK_CHOICES['precision'])}.", rich_help_panel=MACHINE)
    ] = DEFAULT.precision,
    device: Annotated[
        str, typer.Option(help=f"One of {', '.join(ASK_CHOICES['device'])}.", rich_help_panel=MACHINE)
    ] = DEFAULT.device,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run code that comes with a model.", rich_help_panel=MACHINE)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Put one puzzle to a model, and watch it think.

    Its answer is graded exactly, and the solver's stands beside it. Greedy unless a temperature is given.

    **Examples**

    `countdown-rl ask 3 7 50 --target 46`

    `countdown-rl ask 3 7 50 --target 46 --model artifacts/quantized --temperature 0.8 --seed 7`
    """
    options = AskOptions(**{key: value for key, value in locals().items() if key in asdict(DEFAULT)})
    from countdown_rl.inference import ask as asking
    from countdown_rl.models import load, reference

    try:
        row = asking.pose(options, numbers, target)
    except InputError as error:
        raise UsageError(str(error)) from None
    with console.busy(f"loading {model}"):
        ref = reference.resolve(model, revision=revision)
        load.quiet()
        loaded = load.load(ref, precision=precision, device=device, trust_remote_code=trust_remote_code)
    if loaded.note:
        console.note(loaded.note)
    if not as_json:
        console.result({}, as_json=False, view=_head(row, ref.source))
        if style == "begun":
            console.stream(OPEN_THINK)
    reply = asking.ask(loaded, row, options, None if as_json else console.stream)
    about = {"model": {"source": ref.source, "kind": ref.kind}, "solver": asdict(reply.solved)}
    console.result(reply.sample() | about, as_json=as_json, view=_view(reply))


def _head(row: Mapping[str, Any], model: str) -> Text:
    puzzle = f"{' '.join(map(str, row['nums']))} → {row['target']}"
    return Text(puzzle, style="bold").append(f"  {model}", style="not bold dim")


def _view(reply: "Reply") -> Text:
    from countdown_rl.tasks.explain import verdict

    right = reply.grade.correct
    said = plain(verdict(reply.sample()))
    text = Text("\n\n").append(f"{'✓ right' if right else '✗ wrong'}: {said}\n", style="green" if right else "red")
    return text.append(f"solver: {_solution(reply)}\n").append(f"{reply.completion.tokens} tokens", style="dim")


def _solution(reply: "Reply") -> str:
    count = reply.solved.solutions
    if not count:
        return "there is no way; every expression was tried"
    ways = f"{count:,} distinct solution{'s' * (count != 1)}"
    return f"{reply.solved.solution} = {reply.row['target']} ({ways})"

"""``countdown-rl warmup``: a supervised start on search traces."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.sft.config import WARMUP_CHOICES, WarmupOptions

DEFAULT = WarmupOptions()
TRACES, OPTIMISER, SHAPE = "Traces", "Optimiser", "A model from nothing"


def warmup(
    model: Annotated[
        str | None, typer.Option(help="Go on from this model; left out, a small one is made from nothing.")
    ] = DEFAULT.model,
    revision: Annotated[str | None, typer.Option(help="Which revision of a Hub model.")] = DEFAULT.revision,
    data: Annotated[Path, typer.Option(help="What gen-data wrote; its train.jsonl is read.")] = Path("artifacts/data"),
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/warm"),
    give_up: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="How often the solver gives up after a line that failed.", rich_help_panel=TRACES
        ),
    ] = DEFAULT.give_up,
    max_lines: Annotated[
        int, typer.Option(min=1, help="Lines after which a trace breaks off.", rich_help_panel=TRACES)
    ] = DEFAULT.max_lines,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.", rich_help_panel=OPTIMISER)] = DEFAULT.steps,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Traces a step.", rich_help_panel=OPTIMISER)
    ] = DEFAULT.batch_size,
    optimizer: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(WARMUP_CHOICES['optimizer'])}.", rich_help_panel=OPTIMISER),
    ] = DEFAULT.optimizer,
    learning_rate: Annotated[
        float, typer.Option(min=0, help="At its highest.", rich_help_panel=OPTIMISER)
    ] = DEFAULT.learning_rate,
    weight_decay: Annotated[float, typer.Option(min=0, rich_help_panel=OPTIMISER)] = DEFAULT.weight_decay,
    vocab_size: Annotated[
        int, typer.Option(min=320, help="Tokens at most.", rich_help_panel=SHAPE)
    ] = DEFAULT.vocab_size,
    hidden_size: Annotated[
        int, typer.Option(min=64, help="A multiple of 64.", rich_help_panel=SHAPE)
    ] = DEFAULT.hidden_size,
    layers: Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)] = DEFAULT.layers,
    heads: Annotated[int, typer.Option(min=1, rich_help_panel=SHAPE)] = DEFAULT.heads,
    intermediate_size: Annotated[
        int, typer.Option(min=64, help="A multiple of 64.", rich_help_panel=SHAPE)
    ] = DEFAULT.intermediate_size,
    context: Annotated[int, typer.Option(min=64, help="Tokens it can read.", rich_help_panel=SHAPE)] = DEFAULT.context,
    seed: Annotated[int, typer.Option(min=0, help="Of every random choice.")] = DEFAULT.seed,
    threads: Annotated[
        int, typer.Option(min=0, help="Processor threads; 0 takes what this process may use.")
    ] = DEFAULT.threads,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Teach a model to search, on traces made by a solver (supervised, all weights).

    Each trace tries one way after another, in an order found from the puzzles, and answers. Without `--model` a
    small Llama and its tokenizer are made from nothing: this is how `countdown-tiny` came to be.

    **Examples**

    `countdown-rl warmup --data artifacts/data --out artifacts/warm`

    `countdown-rl warmup --model artifacts/warm --give-up 0.5 --learning-rate 0.001 --steps 200 --out artifacts/hasty`

    `countdown-rl warmup --model SmolLM2-135M-Instruct.Q4_1.gguf --optimizer adamw --learning-rate 1e-4 --steps 500`
    """
    given = {key: value for key, value in locals().items() if key in asdict(DEFAULT)}
    options = WarmupOptions(**given)
    from countdown_rl.sft import train as stage

    with console.warming() as learned:
        facts = stage.make(options, data=data, out=out, on_step=learned)
    console.note(f"Wrote {out}: {facts['parameters']:,} parameters, loss {facts['loss']:.3f} nats a token.")
    console.result({"out": str(out)} | facts, as_json=as_json)

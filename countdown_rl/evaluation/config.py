"""Options of ``eval``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.errors import UsageError
from countdown_rl.options import Device, Options, Precision

DECODING, MACHINE = "Decoding", "Machine"


@dataclass(frozen=True)
class EvalOptions(Options):
    """Number of puzzles, decoding settings and engine of an evaluation."""

    limit: Annotated[int | None, Option(min=1, help="Evaluate only the first N rows.", show_default="all")] = None
    max_new_tokens: Annotated[int, Option(min=1, help="Maximum tokens of a completion.", rich_help_panel=DECODING)] = (
        256
    )
    temperature: Annotated[
        float, Option(min=0, help="Sampling temperature; 0 is greedy.", rich_help_panel=DECODING)
    ] = 0.0
    top_p: Annotated[float, Option(min=0.01, max=1, help="Nucleus sampling.", rich_help_panel=DECODING)] = 1.0
    samples: Annotated[
        int, Option(min=1, help="Completions per puzzle; above 1 adds pass@k.", rich_help_panel=DECODING)
    ] = 1
    seed: Annotated[int, Option(min=0, help="Random seed of sampling.", rich_help_panel=DECODING)] = 42
    batch_size: Annotated[
        int, Option(min=0, help="Puzzles per batch; 0 adapts to the memory.", rich_help_panel=MACHINE)
    ] = 0
    engine: Annotated[
        Literal["auto", "transformers", "vllm", "llama-cpp"],
        Option(help="Library that generates completions.", rich_help_panel=MACHINE),
    ] = "auto"
    agreement: Annotated[
        int,
        Option(
            min=0,
            help="Puzzles on which another engine's greedy output is compared with transformers.",
            rich_help_panel=MACHINE,
        ),
    ] = 8
    precision: Annotated[Precision, Option(help="Precision of the weights.", rich_help_panel=MACHINE)] = "auto"
    device: Annotated[Device, Option(help="Device to compute on.", rich_help_panel=MACHINE)] = "auto"
    threads: Annotated[int, Option(min=0, help="CPU threads; 0: all available.", rich_help_panel=MACHINE)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples > 1 and self.temperature == 0:
            raise UsageError("--samples above 1 needs a --temperature above 0; greedy samples are all the same.")

"""Options of ``ask``, and those of sampling that ``eval`` has too."""

from dataclasses import dataclass
from typing import Annotated

from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import RULE, Device, Options, Precision, Prompt, option
from countdown_rl.tasks.response_format import StyleName

PUZZLE, DECODING, MACHINE, SERVER = "Puzzle", "Decoding", "Machine", "Server, for the engine openai"

#: OpenAI's own server.
OPENAI = "https://api.openai.com/v1"
BaseUrl = Annotated[
    str, option("OpenAI-compatible server; its key is read from OPENAI_API_KEY.", SERVER)
]
Timeout = Annotated[
    float, option("Seconds to wait for an answer, retries included.", SERVER, min=0.01)
]


def check_server(options: Options, engine: str, base_url: str, *local: str) -> None:
    """Raise UsageError for --base-url without a server, and for *local* options with one."""
    if engine != "openai":
        if base_url != OPENAI:
            raise UsageError("is for servers; add --engine openai.", option="base_url")
        return
    for name in local:
        if getattr(options, name) != getattr(type(options), name):
            raise UsageError(
                "is for models on this machine; leave it out with --engine openai.", option=name
            )


@dataclass(frozen=True)
class SamplingOptions(Options):
    """Distribution that tokens are drawn from: temperature, then top-k, top-p and min-p, as in transformers."""

    temperature: Annotated[
        float, option("Sampling temperature; 0 is greedy.", DECODING, min=0, max=2)
    ] = 0.0
    top_p: Annotated[float, option("Nucleus sampling.", DECODING, min=0.01, max=1)] = 1.0
    top_k: Annotated[
        int, option("Sample from the k most likely tokens; 0: from all.", DECODING, min=0)
    ] = 0
    min_p: Annotated[
        float,
        option(
            "Smallest probability of a token, relative to the most likely one.",
            DECODING,
            min=0,
            max=1,
        ),
    ] = 0.0
    seed: Annotated[int, option("Random seed of sampling.", DECODING, min=0)] = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.temperature < 0.01:
            raise UsageError(
                f"{self.temperature} is too small; give 0, or at least 0.01.", option="temperature"
            )


@dataclass(frozen=True)
class AskOptions(SamplingOptions):
    """Rules of a puzzle, and decoding settings of its completion."""

    rule: Annotated[str, option(RULE, PUZZLE)] = "exactly-once"
    operators: Annotated[str, option("Allowed operators.", PUZZLE)] = "+-*/"
    style: StyleName = None
    template: Prompt = None
    max_new_tokens: Annotated[int, option("Maximum tokens of the completion.", DECODING, min=1)] = (
        512
    )
    precision: Annotated[Precision, option("Precision of the weights.", MACHINE)] = "auto"
    device: Annotated[Device, option("Device to compute on.", MACHINE)] = "auto"

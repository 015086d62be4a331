"""Options of ``ask``, and those of sampling that ``eval`` has too."""

from dataclasses import dataclass
from typing import Annotated

from countdown_rl.core.options import Options, option
from countdown_rl.tasks.options import RULE, Prompt
from countdown_rl.tasks.response_format import StyleName

PUZZLE, DECODING, MACHINE = "Puzzle", "Decoding", "Machine"

#: OpenAI's own server.
OPENAI = "https://api.openai.com/v1"


@dataclass(frozen=True)
class SamplingOptions(Options):
    """Token limit, and the distribution of tokens: temperature, top-k, top-p, in this order."""

    max_new_tokens: Annotated[int, option("Maximum tokens of a completion.", DECODING, min=1)] = 256
    temperature: Annotated[
        float, option("Sampling temperature; 0 is greedy.", DECODING, min=0, max=2)
    ] = 0.0
    top_p: Annotated[float, option("Nucleus sampling.", DECODING, min=0.01, max=1)] = 1.0
    top_k: Annotated[
        int, option("Sample from the k most likely tokens; 0: from all.", DECODING, min=0)
    ] = 0
    seed: Annotated[int, option("Random seed of sampling.", DECODING, min=0)] = 42


@dataclass(frozen=True)
class AskOptions(SamplingOptions):
    """Rules of a puzzle, and decoding settings of its completion."""

    rule: Annotated[str, option(RULE, PUZZLE)] = "exactly-once"
    style: StyleName = None
    template: Prompt = None

"""The model that ``quantize`` reads."""

from pathlib import Path
from typing import NamedTuple

from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.protocols import CausalLM, Tokenizer
from countdown_rl.models.reference import ModelRef


class Source(NamedTuple):
    """The full-precision model *ref*, in *directory*; *model* is its skeleton."""

    ref: ModelRef
    directory: Path
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    model: CausalLM

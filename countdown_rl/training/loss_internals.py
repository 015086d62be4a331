"""Private settings of TRL: which log-probabilities its losses compute at a time on a CPU.

TRL has no public ones. Without Triton it scores all positions, those of prompts and padding too, in tiles of 32,768
entries of the vocabulary, of which it makes a dozen copies in main memory.
"""

from trl.trainer import utils

from countdown_rl.training.memory import CPU_TILE

PRIVATE = ("trl.trainer.utils._use_triton", "trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE")


def score_less_at_a_time() -> None:
    """Let TRL score only the positions of the loss, in tiles of ``CPU_TILE`` entries."""
    utils._use_triton = lambda device: True  # asked for the positions alone
    utils._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_TILE

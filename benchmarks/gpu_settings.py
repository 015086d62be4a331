"""Settings and model shapes of ``benchmarks.gpu``, and what its parts share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench

ROOT = Path(__file__).parent.parent

#: Published dimensions (config.json of each model).
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "max_position_embeddings": 8_192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-3b": {
        "model_type": "qwen2",
        "hidden_size": 2_048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    # For what does not depend on size: gradients, and the bytes after a kill.
    "qwen2-small": {
        "model_type": "qwen2",
        "hidden_size": 512,
        "intermediate_size": 1_024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 8_192,
        "max_position_embeddings": 2_048,
        "tie_word_embeddings": True,
    },
}
#: Of ``--tiny``; heads of 64, since vLLM has no CPU kernel for smaller ones.
TINY = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 3_328}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}


class Skipped(Exception):  # noqa: N818 - no error
    """A part cannot run here; the text says why."""


@dataclass(frozen=True)
class Settings:
    """A part, its directory (*place*, empty at first), the supervised start, and whether it is only tested."""

    part: str
    place: Path
    model: Path | None = None
    tiny: bool = False

    def pick(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def save_progress(self, result: dict[str, Any]) -> None:
        """Keep the figures so far, in case the part is stopped."""
        bench.save(f"gpu-{self.part}", {"device": device(), "unfinished": True, **result})


def varied(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within a group of random completions, so that each has a backward pass."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def device() -> str:
    """The name of the GPU, or "cpu"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def environment() -> dict[str, str]:
    """The environment of a process that imports this checkout."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}

"""Models and data of the tests with a real vLLM engine."""

import pytest

from tests.support import tiny_llama
from tests.support.runs import SPLITS, write_data

ROWS = [{"id": f"r{n}", "nums": [n, 3, 5], "target": n + 2} for n in range(10, 18)]
#: vLLM has kernels for some head sizes only; 64 is one.
HEADS = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("vllm")
    tiny_llama.adapter(path / "adapter", tiny_llama.checkpoint(path / "model", **HEADS))
    tiny_llama.checkpoint(
        path / "start", initializer_range=0.05, **HEADS
    )  # bf16 rounds large logits by more
    write_data(path / "data", dict.fromkeys(SPLITS, ROWS))
    return path

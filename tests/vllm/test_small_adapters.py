"""Adapters in a vLLM engine: small changes, sent as the adapter and merged into bf16 weights, and training."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks import adapter_sync
from countdown_rl.training import log

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]


@pytest.mark.parametrize(("sent", "least", "most"), [("adapter", 0.99, 1.01), ("merged", 0.0, 0.2)])
def test_three_steps_at_1e_5_change_the_engine_as_the_policy_only_if_the_adapter_is_sent(sent, least, most):
    # In fp32, where the arithmetic itself rounds nothing of this size away.
    row = adapter_sync.measure("fp32", sent, "countdown-tiny", 4)["rows"][0]
    assert row["learning_rate"] == 1e-5
    assert least < row["engine_share"] < most
    assert row["engine_correlation"] > 0.9


@pytest.mark.parametrize("precision", ["bf16", "nf4"])
def test_in_bf16_an_engine_with_the_adapter_follows_the_policy(tmp_path, precision):
    rows = [{"id": f"r{n}", "nums": [n, 3, 5], "target": n + 2} for n in range(10, 18)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = (
        *("train", "--data", tmp_path / "data.jsonl", "--out", tmp_path / "out", "--log", tmp_path / "log.csv"),
        *("--model", "countdown-tiny", "--precision", precision, "--rollouts", "vllm", "--temperature", 2),
        *("--reward", "benchmarks.gpu:varied=1", "--prompts", 2, "--num-generations", 4, "--micro-batch", 4),
        *("--max-completion-length", 16, "--max-steps", 3, "--learning-rate", 1e-2),
    )
    # A small model computes in fp32 over NF4.
    code = "from countdown_rl.models import load; load.MAX_FP32_PARAMETERS = 0; import countdown_rl.__main__"
    subprocess.run([sys.executable, "-c", code, *map(str, command)], check=True)
    rows = log.read(tmp_path / "log.csv")
    assert max(row.grad_norm for row in rows) > 0
    assert [row.importance_sampling_ratio for row in rows] == pytest.approx([1.0] * 3, abs=0.1)

"""Benchmarks with a real vLLM engine: the parts of ``make gpu`` in small shapes, and small changes of an adapter."""

import json
import subprocess
import sys

import pytest

from benchmarks import adapter_sync
from tests.support.vllm_engine import MARKS, ROOT

pytestmark = MARKS


def test_a_part_measures_the_engine(tmp_path):
    part = "vllm-rollouts"
    words = ("-m", "benchmarks.gpu", part, "--tiny", "--out", tmp_path)
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == [part, "done"]
    result = json.loads((tmp_path / f"gpu-{part}.json").read_text())
    assert min(result["tokens_a_second"].values()) > 0
    assert max(result["gradient_norms"]) > 0


@pytest.mark.parametrize(("sent", "least", "most"), [("adapter", 0.99, 1.01), ("merged", 0.0, 0.2)])
def test_three_steps_at_1e_5_change_the_engine_as_the_policy_only_if_the_adapter_is_sent(
    sent, least, most
):
    # In fp32, where the arithmetic itself rounds nothing of this size away.
    row = adapter_sync.measure("fp32", sent, "countdown-tiny", 4)["rows"][0]
    assert row["learning_rate"] == 1e-5
    assert least < row["engine_share"] < most
    assert row["engine_correlation"] > 0.9

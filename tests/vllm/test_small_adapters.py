"""Small changes in a vLLM engine, sent as the adapter and merged into bf16 weights."""

import pytest

from benchmarks import adapter_sync
from tests.support.vllm_engine import MARKS

pytestmark = MARKS


@pytest.mark.parametrize(("sent", "least", "most"), [("adapter", 0.99, 1.01), ("merged", 0.0, 0.2)])
def test_three_steps_at_1e_5_change_the_engine_as_the_policy_only_if_the_adapter_is_sent(sent, least, most):
    # In fp32, where the arithmetic itself rounds nothing of this size away.
    row = adapter_sync.measure("fp32", sent, "countdown-tiny", 4)["rows"][0]
    assert row["learning_rate"] == 1e-5
    assert least < row["engine_share"] < most
    assert row["engine_correlation"] > 0.9

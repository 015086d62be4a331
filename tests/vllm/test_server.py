"""Rollouts by a real ``vllm serve``, with nucleus sampling."""

import os
import socket
import subprocess
import sys
from unittest.mock import patch

import pytest
from trl.generation import vllm_client

from countdown_rl.models import load
from tests.support import vllm_server
from tests.support.vllm_engine import MARKS, ROOT, distance, train

pytestmark = MARKS


@pytest.fixture(params=["fp32", "bf16"])
def precision(request):
    return request.param


@pytest.fixture
def server(place, tmp_path, monkeypatch, precision):
    """The address of a server of the model ``start``; that in bf16 loads adapters."""
    weights = str(tmp_path / "weights")
    monkeypatch.setattr(vllm_client, "open_trainer_endpoint", lambda _: vllm_server.group(weights))
    monkeypatch.setattr(vllm_client, "packed_nccl_broadcast_producer", vllm_server.send)
    connect = vllm_client.VLLMClient.init_communicator
    monkeypatch.setattr(
        vllm_client.VLLMClient, "init_communicator", lambda client, device: connect(client, "cuda")
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As in docs/gpu.md, and for the CPU.
    lora = ("--enable-lora", "--max-lora-rank", 32) if precision == "bf16" else ()
    dtype = "bfloat16" if precision == "bf16" else "float32"
    words = ("--model", place / "start", "--port", port, "--dtype", dtype, *lora)
    words = (
        *words,
        "--logprobs-mode",
        "processed_logprobs",
        "--weight-transfer-config",
        '{"backend": "nccl"}',
    )
    environment = {"PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1", "WEIGHTS": weights}
    environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.vllm_server", *map(str, words)],
        env=os.environ | environment,
        cwd=place,
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def test_a_server_follows_the_policy_and_samples_from_the_nucleus(
    place, server, precision, tmp_path
):
    settings = {"rollouts": "vllm-server", "trl": (f"vllm_server_base_url={server}", "top_p=0.9")}
    with patch.object(load, "MAX_FP32_PARAMETERS", 0):
        result, engine = train(
            place, tmp_path, str(place / "start"), precision=precision, **settings
        )
    assert (engine.directory is None) == (precision == "fp32")  # gets the adapter, or all weights
    # The ratio of a token is the probability that the policy gives to the nucleus.
    assert all(0.899 < row.importance_sampling_ratio < 1 for row in result.rows)
    assert (
        distance(engine, result.out, precision)
        < 0.02
        < 0.2
        < distance(engine, place / "start", precision)
    )

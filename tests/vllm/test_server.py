"""Rollouts by a real ``vllm serve``, with nucleus sampling."""

import os
import socket
import subprocess
import sys

import pytest
from trl.generation import vllm_client

from tests.support import vllm_server
from tests.support.vllm_engine import MARKS, ROOT, distance, train

pytestmark = MARKS


@pytest.fixture
def server(place, tmp_path, monkeypatch):
    """The address of a server of the model ``start``."""
    weights = str(tmp_path / "weights")
    monkeypatch.setattr(vllm_client, "open_trainer_endpoint", lambda _: vllm_server.group(weights))
    monkeypatch.setattr(vllm_client, "packed_nccl_broadcast_producer", vllm_server.send)
    connect = vllm_client.VLLMClient.init_communicator
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", lambda client, device: connect(client, "cuda"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As in docs/gpu.md, and for the CPU.
    words = ("--model", place / "start", "--port", port, "--dtype", "float32")
    words = (*words, "--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "nccl"}')
    environment = {"PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1", "WEIGHTS": weights}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.vllm_server", *map(str, words)], env=os.environ | environment, cwd=place
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def test_a_server_follows_the_policy_and_draws_from_the_nucleus(place, server, tmp_path):
    settings = (f"vllm_server_base_url={server}", "top_p=0.9")
    result, engine = train(place, tmp_path, str(place / "start"), rollouts="vllm-server", trl=settings)
    # The ratio of a token is the probability that the policy gives to the nucleus.
    assert all(0.899 < row.importance_sampling_ratio < 1 for row in result.rows)
    assert distance(engine, result.out) < 0.02 < 0.2 < distance(engine, place / "start")

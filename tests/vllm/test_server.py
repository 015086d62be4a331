"""Rollouts by a real ``vllm serve`` that loads the adapter of each round, with nucleus sampling."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.support.vllm_engine import MARKS, ROOT, distance, train

pytestmark = MARKS

#: ``vllm serve`` on a CPU, whose distribution is not called ``vllm``: this does not look for it in pip.
SERVE = "from vllm.entrypoints.launchers.api_server.entry import main; main()"


@pytest.fixture
def server(place):
    """The address of a server of the model ``start``, started as docs/gpu.md says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lora = ("--enable-lora", "--max-lora-rank", 32)
    words = ("--model", place / "start", "--port", port, "--dtype", "bfloat16", *lora)
    words = (*words, "--logprobs-mode", "processed_logprobs")
    environment = {"PYTHONPATH": str(ROOT), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, *map(str, words)],
        env=os.environ | environment,
        cwd=place,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/health", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def wait_for(address, process):
    while process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail("the server has ended")


def test_a_server_follows_the_policy_and_samples_from_the_nucleus(place, server, tmp_path):
    start, trl = place / "start", (f"vllm_server_base_url={server}", "top_p=0.9")
    result, engine = train(place, tmp_path, str(start), precision="bf16", trl=trl)
    # The ratio of a token is the probability that the policy gives to the nucleus.
    assert all(0.899 < row.importance_sampling_ratio < 1 for row in result.rows)
    near, far = (distance(engine, model, "bf16", top_p=0.9) for model in (result.out, start))
    assert near < 0.02 < 0.2 < far

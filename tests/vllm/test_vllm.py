"""A real vLLM engine on the CPU against transformers: ``make test-vllm``, skipped where vLLM is not installed."""

import json
import subprocess

import pytest

from tests.support.vllm_engine import MARKS, distance, start, train

pytestmark = MARKS


def completions(place, out, model, engine):
    """The completions of ``eval``, in a process of its own, which an engine would keep busy."""
    paths = ("--model", model, "--data", place / "data", "--out", out)
    words = (
        "eval",
        *paths,
        "--engine",
        engine,
        "--precision",
        "fp32",
        "--max-new-tokens",
        24,
        "--json",
    )
    stdout, _ = start(place, *words, stdout=subprocess.PIPE).communicate()
    json.loads(stdout)
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["countdown-tiny", "model", "adapter"])
def test_greedy_completions_are_those_of_transformers(place, tmp_path, name):
    model = name if name == "countdown-tiny" else place / name
    rows = completions(place, tmp_path / "vllm", model, "vllm")
    assert len({row["completion"] for row in rows}) > 1
    assert rows == completions(place, tmp_path / "transformers", model, "transformers")


@pytest.mark.parametrize(("precision", "top_p"), [("fp32", 1.0), ("bf16", 0.9)])
def test_after_training_the_engine_has_the_probabilities_of_the_policy(
    place, tmp_path, precision, top_p
):
    start, trl = place / "start", (f"top_p={top_p}",)
    result, engine = train(place, tmp_path, str(start), precision=precision, trl=trl)
    # With top-p the ratio of a token is the probability that the policy gives to the nucleus.
    assert all(0.899 < row.importance_sampling_ratio < 1.1 for row in result.rows)
    near, far = (distance(engine, model, precision, top_p=top_p) for model in (result.out, start))
    assert near < 0.02 < 0.2 < far

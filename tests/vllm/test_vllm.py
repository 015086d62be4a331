"""A real vLLM engine on the CPU against transformers: ``make test-vllm``, skipped where vLLM is not installed."""

import json
import subprocess
from unittest.mock import patch

import pytest
import torch

from countdown_rl.models import load, reference
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


@pytest.fixture(scope="module", params=["fp32", "bf16", "nf4"])
def trained(request, place, tmp_path_factory):
    """A run in this process, its engine and its precision; that of fp32 gets merged weights, others the adapter."""
    top_p = 0.9 if request.param == "bf16" else 1.0
    with patch.object(load, "MAX_FP32_PARAMETERS", 0):  # NF4 is computed in bf16
        out = tmp_path_factory.mktemp(request.param)
        options = {"rollouts": "vllm", "precision": request.param, "trl": (f"top_p={top_p}",)}
        yield *train(place, out, str(place / "start"), **options), request.param


def test_after_training_the_engine_has_the_probabilities_of_the_shipped_model(place, tmp_path):
    # Its completions differ at this temperature only.
    result, engine = train(place, tmp_path, "countdown-tiny", rollouts="vllm", temperature=2.0)
    assert all(0.9 < row.importance_sampling_ratio < 1.1 for row in result.rows)
    assert distance(engine, result.out) < 0.02 < 0.2 < distance(engine, "countdown-tiny")


def test_after_training_the_engine_has_the_probabilities_of_the_policy(place, trained):
    result, engine, precision = trained
    # With top-p the ratio of a token is the probability that the policy gives to the nucleus.
    assert all(0.899 < row.importance_sampling_ratio < 1.1 for row in result.rows)
    assert (
        distance(engine, result.out, precision)
        < 0.02
        < 0.2
        < distance(engine, place / "start", precision)
    )


def test_after_training_the_engine_has_the_weights_of_the_policy(trained):
    from vllm.lora.layers import BaseLayerWithLoRA
    from vllm.model_executor.layers.linear import LinearBase

    result, engine, precision = trained
    policy = load.load_model(
        reference.find_model(str(result.out)), precision=precision
    ).model.get_base_model()
    joined = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    compared = {LinearBase: 0, BaseLayerWithLoRA: 0}
    merged = (
        engine.dtype == torch.float32
    )  # of NF4 too, where the processor has no products in bf16
    for (
        name,
        layer,
    ) in (
        engine.llm.llm_engine.model_executor.driver_worker.model_runner.get_model().named_modules()
    ):
        if not isinstance(layer, tuple(compared)):
            continue
        parent, _, last = name.removesuffix(".base_layer").rpartition(".")
        parts = [policy.get_submodule(f"{parent}.{part}") for part in joined.get(last, [last])]
        if isinstance(layer, LinearBase):
            own = [part.base_layer.weight for part in parts]
            if merged:
                own = [
                    weight + part.get_delta_weight("default")
                    for weight, part in zip(own, parts, strict=True)
                ]
            # The weights are packed for the processor; their product with the identity is not.
            product = layer.quant_method.apply(
                layer, torch.eye(layer.input_size, dtype=engine.dtype)
            ).T
            torch.testing.assert_close(product, torch.cat(own))
            compared[LinearBase] += 1
        else:
            for part, a, b in zip(parts, layer.lora_a_stacked, layer.lora_b_stacked, strict=True):
                rank = part.r["default"]
                torch.testing.assert_close(
                    a[0, 0, :rank], part.lora_A["default"].weight.to(a.dtype)
                )
                scaled = part.lora_B["default"].weight * part.scaling["default"]
                torch.testing.assert_close(b[0, 0, :, :rank], scaled.to(b.dtype))
            compared[BaseLayerWithLoRA] += 1
    assert compared == {LinearBase: 8, BaseLayerWithLoRA: 0 if merged else 8}

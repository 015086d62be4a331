"""The benchmark for whoever has a GPU: parts run alone, and a failing one loses nothing after it."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import bench, gpu, gpu_parts, gpu_settings
from countdown_rl.inference import graph_decoder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "device", lambda: "a card")
    return lambda name: json.loads((tmp_path / f"gpu-{name}.json").read_text())


def test_every_part_has_a_limit_and_the_shapes_are_the_published_ones():
    assert set(gpu_parts.PARTS) == set(gpu.MINUTES)
    sizes = {}
    for name in ("smollm2-135m", "qwen2.5-3b", "llama-3.1-8b"):
        shape = dict(gpu_settings.SHAPES[name])
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(shape.pop("model_type"), **shape)
            )
        sizes[name] = model.num_parameters()
    assert sizes == {
        "smollm2-135m": 134_515_008,
        "qwen2.5-3b": 3_085_938_688,
        "llama-3.1-8b": 8_030_261_248,
    }


@pytest.mark.parametrize("wrong", [False, True])
def test_logits_of_graphs_are_compared_after_the_same_tokens(monkeypatch, wrong):
    torch.manual_seed(0)
    shape = gpu_settings.SHAPES["smollm2-135m"] | gpu_settings.TINY
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape)).eval()
    if wrong:
        forward = graph_decoder.GraphDecoder.forward_one

        def shifted(self, cache, ids, mask, positions, column):
            return forward(self, cache, ids, mask, positions * 2, column)

        monkeypatch.setattr(graph_decoder.GraphDecoder, "forward_one", shifted)
    difference = gpu_parts.logit_difference(model, [[5, 6, 7, 8], [9, 10, 11]], 4)
    assert (difference > 0.01) == wrong


def test_a_part_that_fails_or_cannot_run_is_named_in_its_result(results, monkeypatch):
    def fails(settings):
        settings.save_progress({"base": 1})
        raise RuntimeError("no kernel")

    monkeypatch.setitem(gpu_parts.PARTS, "resume", fails)
    gpu.run_part("resume")
    assert results("resume")["failed"] == "RuntimeError: no kernel"
    assert results("resume")["base"] == 1
    gpu.run_part("recipe-smollm2")
    assert "--model" in results("recipe-smollm2")["skipped"]
    assert results("recipe-smollm2")["device"] == "a card"


def test_a_part_that_is_killed_or_takes_too_long_loses_nothing_after_it(results, monkeypatch):
    code = {
        "resume": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "gradients": "import time; time.sleep(60)",
        "decode": "import json, pathlib; pathlib.Path({0!r}).write_text(json.dumps({{'cosine': 1}}))",
    }
    popen = gpu.subprocess.Popen

    def starting(words, **options):
        name = words[3]
        return popen(
            [sys.executable, "-c", code[name].format(str(bench.RESULTS / f"gpu-{name}.json"))],
            **options,
        )

    monkeypatch.setattr(gpu.subprocess, "Popen", starting)
    monkeypatch.setattr(gpu, "MINUTES", gpu.MINUTES | {"gradients": 0.02})
    outcomes = gpu.run_all(list(code), [])
    assert outcomes["decode"] == "done"
    assert results("decode") == {"cosine": 1}
    assert outcomes["resume"].startswith("failed: exit status -9")
    assert results("gradients")["failed"] == "stopped after 0.02 minutes"


def test_the_pipeline_has_every_stage_after_its_inputs():
    commands = dict(gpu_parts.pipeline_commands())
    stages = list(commands)
    assert {name.partition("@")[0] for name in stages} == set(
        yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    )
    assert stages[0] == "gen-data"
    for before, after in (
        ("train", "merge"),
        ("merge", "eval@merged"),
        ("eval@solver", "compare"),
        ("compare", "publish"),
    ):
        assert stages.index(before) < stages.index(after)
    assert not any("$" in word for words in commands.values() for word in words)
    assert "--curriculum" in commands["train"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gradients_over_nf4_are_those_of_trl_on_a_gpu(results):
    gpu.run_part("gradients")
    assert results("gradients")["cosine"] > 0.99

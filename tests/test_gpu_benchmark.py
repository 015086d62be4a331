"""The benchmark for whoever has a GPU: parts run alone, and a failing one loses nothing after it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench, gpu
from countdown_rl.models import load

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "device", lambda: "a card")
    return lambda name: json.loads((tmp_path / f"gpu-{name}.json").read_text())


def test_every_part_has_a_limit_and_the_shapes_are_the_published_ones():
    assert set(gpu.PARTS) == set(gpu.MINUTES)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {}
    for name in ("qwen2.5-3b", "llama-3.1-8b"):
        shape = dict(gpu.SHAPES[name])
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.pop("model_type"), **shape))
        sizes[name] = model.num_parameters()
    assert sizes == {"qwen2.5-3b": 3_085_938_688, "llama-3.1-8b": 8_030_261_248}


def test_a_part_that_fails_or_cannot_run_is_named_in_its_result(results, monkeypatch):
    def fails(settings):
        gpu._save_progress({"base": 1})
        raise RuntimeError("no kernel")

    monkeypatch.setitem(gpu.PARTS, "resume", fails)
    gpu.run_part("resume")
    assert results("resume")["failed"] == "RuntimeError: no kernel"
    assert results("resume")["base"] == 1
    gpu.run_part("smollm2")
    assert "--gguf" in results("smollm2")["skipped"]
    assert results("smollm2")["device"] == "a card"


def test_a_part_that_is_killed_or_takes_too_long_loses_nothing_after_it(results, monkeypatch):
    code = {
        "resume": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "gradients": "import time; time.sleep(60)",
        "vllm": "import json, pathlib; pathlib.Path({0!r}).write_text(json.dumps({{'cosine': 1}}))",
    }
    popen = gpu.subprocess.Popen

    def starting(words, **options):
        name = words[3]
        return popen([sys.executable, "-c", code[name].format(str(bench.RESULTS / f"gpu-{name}.json"))], **options)

    monkeypatch.setattr(gpu.subprocess, "Popen", starting)
    monkeypatch.setattr(gpu, "MINUTES", gpu.MINUTES | {"gradients": 0.02})
    outcomes = gpu.run_all(["resume", "gradients", "vllm"], [])
    assert outcomes["vllm"] == "done"
    assert results("vllm") == {"cosine": 1}
    assert outcomes["resume"].startswith("failed: exit status -9")
    assert results("gradients")["failed"] == "stopped after 0.02 minutes"


@pytest.mark.parametrize("warning", ["", "torch does not see the GPU"])
def test_a_gpu_that_torch_does_not_see_is_a_warning(results, monkeypatch, capsys, warning):
    monkeypatch.setattr(load, "unused_gpu", lambda: warning)
    monkeypatch.setattr(gpu, "run_all", lambda names, words: dict.fromkeys(names, "done"))
    monkeypatch.setattr(sys, "argv", ["gpu", "resume", "--out", str(bench.RESULTS)])
    gpu.main()
    printed = capsys.readouterr()
    assert printed.out.split() == ["resume", "done"]
    assert printed.err == (f"{warning}\n" if warning else "")


def test_the_makefile_runs_it():
    assert "-m benchmarks.gpu" in (ROOT / "Makefile").read_text().partition("\ngpu:")[2]


def test_a_rented_machine_uploads_its_results_also_where_the_recipe_fails(hub, tmp_path):
    source = tmp_path / "source"
    recipe = source / "stages" / "recipes" / "x.sh"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("#!/bin/sh\nmkdir -p $1/eval/base && echo {} > $1/eval/base/metrics.json; exit 3\n")
    benchmark = source / "benchmarks" / "gpu.py"
    (benchmark.parent / "results").mkdir(parents=True)
    (benchmark.parent / "__init__.py").touch()
    benchmark.write_text("open('benchmarks/results/gpu-vllm.json', 'w').write('{}')\n")
    stubs = {"git": 'cp -r "$2" "$3"', "uv": "mkdir -p .venv", "python": f'exec {sys.executable} "$@"'}
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    recipe.chmod(0o755)
    words = [sys.executable, gpu.ROOT / "benchmarks" / "cloud.py", source, "x", "me/results"]
    environment = hub.env(tmp_path)
    environment |= {"PATH": f"{tmp_path}:{environment.get('PATH', os.environ['PATH'])}"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, "failed: stages/recipes/x.sh out" in done.stderr) == (1, True), done.stderr
    uploaded = {".gitattributes", "benchmarks/results/gpu-vllm.json", "out/eval/base/metrics.json"}
    assert set(hub.repos["dataset", "me/results"].files) == uploaded


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gradients", "llama-3.1-8b-nf4", "evaluation"])
def test_a_part_gives_its_figures_with_tiny_shapes_on_a_cpu(results, part):
    gpu.run_part(part, tiny=True)
    result = results(part)
    assert "failed" not in result, result
    if part == "gradients":
        assert result["relative_difference"] < 0.01  # in bf16 where the processor has it
    elif part == "evaluation":
        assert result["tokens_a_second"] > 0
        assert result["rows_of_a_batch"] == 4
    else:
        assert min(result["gradient_norms"]) > 0
        assert result["estimate"]["peak"] > 0


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="needs a CUDA device")
def test_gradients_over_nf4_are_those_of_trl_on_a_gpu(results):
    gpu.run_part("gradients")
    assert results("gradients")["cosine"] > 0.99

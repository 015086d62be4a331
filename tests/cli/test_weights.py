"""Output and exit status of merge and quantize."""

import json
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from tests.support import tiny_llama
from tests.support.command import status as run


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_an_adapter_is_merged_and_quantized_with_the_default_paths(monkeypatch, capsys):
    tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    assert run(monkeypatch, "merge", "--adapter", "peft", "--verify", "none", "--json") == 0
    assert run(monkeypatch, "quantize", "--json") == 0
    merged, quantized = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (merged["out"], quantized["out"]) == ("artifacts/merged", "artifacts/quantized")
    chain = artifacts.read(Path("artifacts/quantized"), "quantized")
    assert chain.inputs["model"]["manifest"]["inputs"]["adapter"]["base"]["source"] == "base"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["merge"], 1, "artifacts/adapter does not exist; `countdown-rl train` makes it."),
        (["merge", "--adapter", "base"], 1, "not an adapter"),
        (["merge", "--adapter", "base", "--revision", "main"], 2, "--revision"),
        (["merge", "--adapter", "peft", "--base", "dequantized"], 2, "nothing to de-quantize"),
        (["merge", "--adapter", "peft", "--out", "base"], 1, "did not write"),
        (["quantize"], 1, "artifacts/merged does not exist; `countdown-rl merge` makes it."),
        (["quantize", "--model", "peft"], 1, "countdown-rl merge"),
        (["quantize", "--model", "base", "--out", "base/config.json"], 1, "is a file"),
        (["quantize", "--model", "base", "--format", "nf5"], 2, "nf5"),
    ],
)
def test_invalid_input_is_one_sentence_and_overwrites_nothing(monkeypatch, capsys, words, status, says):
    tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert run(monkeypatch, *words) == status
    printed = capsys.readouterr()
    assert says in printed.err.replace("\n", " ")
    assert "Traceback" not in printed.err
    assert not printed.out
    assert sorted(Path().rglob("*")) == before

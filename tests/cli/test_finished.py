"""Finished work is not replaced: the same command does nothing, another one needs --overwrite."""

import json
from pathlib import Path

import pytest

from countdown_rl.data import jsonl
from tests.support import tiny_llama
from tests.support.command import status

PUZZLES = "--data rows.jsonl"
TRAIN = "--max-steps 1 --prompts 1 --num-generations 2 --micro-batch 2 --max-completion-length 4"
COMMANDS = [
    (f"eval --model random {PUZZLES}", "--seed"),
    (f"eval --model model --threads 1 --max-new-tokens 4 {PUZZLES}", "--limit"),
    (f"train --model model --threads 1 {TRAIN} {PUZZLES}", "--seed"),
    ("sft --model model --threads 1 --from rows.jsonl --max-steps 1 --batch-size 2 --max-length 512", "--seed"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_llama.checkpoint(Path("model"), max_position_embeddings=1024)
    row = {"nums": [3, 4], "target": 7, "solutions": 1, "needs": "add-sub", "size": 2}
    answer = {"completion": "<answer>3+4</answer>"}
    jsonl.write_rows(Path("rows.jsonl"), [{"id": str(index)} | row | answer for index in range(4)])


def state(directory: str) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(directory).iterdir()}


@pytest.mark.parametrize(("command", "option"), COMMANDS, ids=["baseline", "eval", "train", "sft"])
def test_finished_work_is_replaced_only_where_that_is_asked_for(command, option, place, monkeypatch, capfd):
    words = [*command.split(), "--out", "out"]
    assert status(monkeypatch, *words) == 0
    made = state("out")

    capfd.readouterr()
    assert status(monkeypatch, *words, "--json") == 0
    again = capfd.readouterr()
    assert "out is there" in again.err
    assert json.loads(again.out)["out"] == "out"

    assert status(monkeypatch, *words, option, "3") == 1
    refusal = capfd.readouterr().err
    assert option in refusal
    assert "--overwrite" in refusal
    assert state("out") == made

    assert status(monkeypatch, *words, option, "3", "--overwrite") == 0
    assert state("out") != made


def test_a_damaged_artifact_is_made_again(place, monkeypatch, capfd):
    words = f"eval --model random {PUZZLES} --out out".split()
    assert status(monkeypatch, *words) == 0
    Path("out/samples.jsonl").write_text("damaged")
    assert status(monkeypatch, *words) == 0
    assert "out is there" not in capfd.readouterr().err


def test_models_of_one_name_do_not_replace_each_other(place, monkeypatch, capfd):
    for run in ("a", "b"):
        tiny_llama.checkpoint(Path(run, "model"), max_position_embeddings=1024, hidden_size={"a": 16, "b": 32}[run])
    words = f"{PUZZLES} --max-new-tokens 2 --threads 1".split()
    assert status(monkeypatch, "eval", "--model", "a/model", *words) == 0
    assert status(monkeypatch, "eval", "--model", "b/model", *words) == 1
    assert "other model" in capfd.readouterr().err


def test_a_sampled_evaluation_does_not_replace_the_greedy_one_of_a_model(place, monkeypatch, capfd):
    words = f"eval --model model {PUZZLES} --max-new-tokens 2 --threads 1".split()
    assert status(monkeypatch, *words) == 0
    made = state("artifacts/eval/model")
    assert status(monkeypatch, *words, "--temperature", "1") == 1
    assert "--temperature was 0.0, is 1.0" in capfd.readouterr().err
    assert state("artifacts/eval/model") == made

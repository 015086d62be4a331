"""Finished work is not replaced: the same command does nothing, another one needs --overwrite."""

import json
import resource
import shutil
import sys
from pathlib import Path

import pytest

from countdown_rl.tasks import jsonl
from tests.support import letters, tiny_llama
from tests.support.command import status
from tests.support.runs import locked_elsewhere

PUZZLES = "--data rows.jsonl"
TRAIN = "--max-steps 1 --prompts 1 --num-generations 2 --micro-batch 2 --max-completion-length 4"
COMMANDS = [
    (f"eval --model random {PUZZLES}", "--seed"),
    (f"eval --model model --max-new-tokens 4 {PUZZLES}", "--temperature"),
    (f"train --model model {TRAIN} {PUZZLES}", "--seed"),
    ("sft --model model --from rows.jsonl --max-steps 1 --batch-size 2", "--seed"),
]


@pytest.fixture
def place(here):
    tiny_llama.checkpoint(Path("model"), max_position_embeddings=1024)
    row = {"nums": [3, 4], "target": 7, "solutions": 1, "needs": "add-sub", "size": 2}
    answer = {"completion": "<answer>3+4</answer>"}
    jsonl.write_rows(Path("rows.jsonl"), [{"id": str(index)} | row | answer for index in range(4)])
    return here


def state(directory: str) -> dict[str, tuple[int, int]]:
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in Path(directory).iterdir()
    }


@pytest.mark.parametrize(("command", "option"), COMMANDS, ids=["baseline", "eval", "train", "sft"])
def test_finished_work_is_replaced_only_where_that_is_asked_for(
    command, option, place, monkeypatch, capfd
):
    words = [*command.split(), "--out", "out"]
    assert status(monkeypatch, *words) == 0
    made = state("out")

    capfd.readouterr()
    assert status(monkeypatch, *words, "--json") == 0
    again = capfd.readouterr()
    assert "out is up to date" in again.err
    assert json.loads(again.out)["out"] == "out"

    assert status(monkeypatch, *words, option, "2") == 1
    refusal = capfd.readouterr().err
    assert option in refusal
    assert "--overwrite" in refusal
    assert state("out") == made

    assert status(monkeypatch, *words, option, "2", "--overwrite") == 0
    assert state("out") != made


OWN = [*(command for command, _ in COMMANDS[1:]), "eval --completions rows.jsonl"]


@pytest.mark.parametrize("command", OWN, ids=["eval", "train", "sft", "completions"])
def test_an_edited_task_of_the_users_own_is_another_run(command, place, monkeypatch, capfd):
    shutil.copy(letters.__file__, "own_letters.py")
    monkeypatch.delitem(sys.modules, "own_letters", raising=False)
    row = {"task": "letters", "nums": [1], "target": 1, "completion": "<answer>abc</answer>"}
    jsonl.write_rows(Path("rows.jsonl"), [row | {"id": str(index)} for index in range(4)])
    words = [*command.split(), "--out", "out"]
    with letters.installed(place, letters="own_letters:TASK"):
        assert status(monkeypatch, *words) == 0
        assert status(monkeypatch, *words) == 0
        Path("own_letters.py").write_text(Path("own_letters.py").read_text() + "# edited\n")
        assert status(monkeypatch, *words) == 1
        assert "code of own_letters:TASK was" in capfd.readouterr().err


@pytest.mark.parametrize(
    "command",
    [COMMANDS[2][0], f"{COMMANDS[3][0]} --save-steps 1 --max-steps 2"],
    ids=["train", "sft"],
)
def test_a_full_disk_is_one_sentence_and_the_same_command_then_succeeds(
    command, place, monkeypatch, capfd
):
    words = [*command.split(), "--out", "out"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))  # less than the weights have
    try:
        assert status(monkeypatch, *words) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    *_, sentence = capfd.readouterr().err.splitlines()
    assert sentence.startswith("error: ")
    assert "free some" in sentence or "file too large" in sentence
    assert not Path("out").exists()
    assert status(monkeypatch, *words) == 0


def test_a_log_that_another_run_writes_is_refused(place, monkeypatch, capfd):
    words = ["--out", "out", "--log", "log.csv"]
    with locked_elsewhere("log.csv"):
        assert status(monkeypatch, *COMMANDS[2][0].split(), *words) == 1
    assert "log.csv is being written" in capfd.readouterr().err

"""`train --check`: the memory estimate, and the errors that prevent a run."""

import json
from itertools import islice

import pytest
from safetensors.torch import load_file

from countdown_rl.models import lora
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training.grpo.prompts import in_turn
from countdown_rl.training.options import SftOptions, TrainOptions
from tests.support import standins, tiny_llama
from tests.support.command import status

ROWS = [{"id": f"row-{n}", "nums": [3, 7, 50 + n], "target": 46} for n in range(19)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return standins.checkpoint(tmp_path_factory.mktemp("standins") / "llama", "llama-3.1")


@pytest.fixture
def check(llama, monkeypatch, capsys, tmp_path):
    """`countdown-rl train --check` with some more words: its exit status and what it said on each stream."""
    rows = tmp_path / "rows.jsonl"
    jsonl.write_rows(rows, ROWS)

    def run(*words, command="train"):
        paths = ["--model", llama, "--out", tmp_path / "adapter"]
        paths += ["--data", rows] if command == "train" else []
        return status(monkeypatch, command, "--check", *paths, *words), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("options", "tune", "rates"),
    [
        (TrainOptions, "lora", {5e8: 2e-4, 6e8: 1e-5}),
        (TrainOptions, "all", {5e8: 1e-5, 6e8: 1e-6}),
        (SftOptions, "lora", {13e9: 2e-4, 14e9: 1e-4}),
        (SftOptions, "all", {5e8: 1e-4, 6e8: 2e-5}),
    ],
)
def test_the_default_rate_goes_by_what_is_trained_and_the_size(options, tune, rates):
    assert {size: options(tune=tune, precision="auto").rate(size) for size in rates} == rates
    assert options(learning_rate=0.0).rate(6e8) == 0.0


def test_all_prompts_of_the_last_round_are_checked(check, monkeypatch):
    last = list(islice(in_turn(len(ROWS), 42), 12))[-1]  # of six rounds of two prompts
    short, long = ([{"role": "user", "content": "3 " * count}] for count in (1, 140_000))
    monkeypatch.setattr(
        CountdownRow, "messages", lambda row: long if row["id"] == f"row-{last}" else short
    )
    status, _, err = check("--max-steps", 6, "--prompts", 2)
    assert (status, "longest prompt" in err) == (1, True)


def test_a_valid_run_is_described_and_nothing_is_written(check, tmp_path):
    status, out, _ = check("--tune", "all", "--precision", "auto", "--json")
    told = json.loads(out)
    assert (status, told["architecture"], told["rows"]) == (0, "LlamaForCausalLM", len(ROWS))
    assert told["learning_rate"] == 1e-5
    assert told["longest_prompt"] > 50
    assert told["total"] == told["weights"] + told["states"] + told["cache"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_check_shows_the_first_prompt_and_demonstration_as_the_model_reads_them(check, tmp_path):
    out = check()[1]
    assert "\n<|begin_of_text|><|start_header_id|>system<|end_header_id|>" in out
    assert "Target: 46" in out
    turns = [{"role": "user", "content": "1 + 1?"}]
    jsonl.write_rows(tmp_path / "demos.jsonl", [{"prompt": turns, "completion": "2"}])
    status, out, _ = check("--from", tmp_path / "demos.jsonl", command="sft")
    assert (status, "1 + 1?<|eot_id|>" in out, "▶2<|eot_id|>\n" in out) == (0, True, True)


def test_an_adapter_is_checked_with_its_own_rank(check, tmp_path):
    base = tiny_llama.checkpoint(tmp_path / "base", max_position_embeddings=2_048)
    tiny_llama.adapter(tmp_path / "trained", base, r=4)
    weights = load_file(tmp_path / "trained" / lora.WEIGHTS)
    _, out, _ = check("--model", tmp_path / "trained", "--json")
    assert json.loads(out)["trainable"] == sum(value.numel() for value in weights.values())
    status, _, err = check("--model", tmp_path / "trained", "--lora-r", 8)
    assert (status, "--lora-r is 4 in the adapter" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("--model artifacts/none", 1, "artifacts/none"),
        ("--max-completion-length 200000", 1, "131072"),
        ("--out new --log new/log.csv", 2, "--log"),
        ("--loss-type no.such:loss", 2, "no.such:loss"),
        ("--trl optim=sgdd", 2, "invalid choice"),
        ("--trl generation_kwargs={", 2, "TRL rejects"),
        ("--trl learnig_rate=1", 2, "no such field"),
    ],
)
def test_an_invalid_run_is_refused_in_one_sentence(check, words, status, says):
    found, out, err = check(*words.split())
    assert (found, out) == (status, "")
    assert says in err
    assert "Traceback" not in err


def half(tokens):
    return tokens / 2


def test_check_prints_what_a_correct_and_an_incorrect_completion_get(check):
    _, out, err = check("--json", "--reward", "correct", "--reward", f"{__name__}:half")
    assert json.loads(out)["rewards"] == {"correct": [1, 0], f"{__name__}:half": [4, 4]}
    assert "correct 1.0 and 0.0" in " ".join(err.split())
    assert f"warning: {__name__}:half gives" in " ".join(err.split())


def test_rows_of_held_out_splits_are_not_trained_on(check, tmp_path):
    rows = [{"nums": [1, 2, 3], "target": 6, "split": split} for split in ("valid", "test")]
    rows.append({"nums": [3, 7, 69], "target": 46})  # its puzzle is of the test split
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = check()
    assert (status, "no rows for training" in " ".join(err.split())) == (1, True)
    jsonl.write_rows(tmp_path / "rows.jsonl", [*ROWS, *rows])
    _, out, err = check("--json")
    assert json.loads(out)["rows"] == len(ROWS)
    assert "left out 3 rows" in " ".join(err.split())

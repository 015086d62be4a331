"""`train --check`: the memory estimate, and the errors that prevent a run."""

import json
import shutil
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from countdown_rl.cli import main
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.models import load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training import trackers, vllm
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import in_turn
from countdown_rl.training.grpo import GrpoRun
from countdown_rl.training.run import Reporter, RunArguments
from tests.support import standins

ROWS = [{"id": f"row-{n}", "nums": [3, 7, 50 + n], "target": 46} for n in range(20)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return standins.checkpoint(tmp_path_factory.mktemp("standins") / "llama", "llama-3.1")


@pytest.fixture
def rows(tmp_path):
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path / "rows.jsonl"


@pytest.fixture
def check(monkeypatch, capsys, tmp_path):
    """`countdown-rl train --check` with some more words: its exit status and what it said on each stream."""

    def run(*words):
        words = ["train", "--check", "--out", tmp_path / "adapter", "--checkpoints", tmp_path / "checkpoints", *words]
        monkeypatch.setattr(sys, "argv", ["countdown-rl", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("option", "value", "extra"), [("--rollouts", "vllm-server", "vllm"), ("--report-to", "wandb", "wandb")]
)
def test_check_tells_the_package_that_is_not_installed(check, llama, rows, monkeypatch, option, value, extra):
    for module in (vllm, trackers):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    status, out, err = check("--model", llama, "--data", rows, option, value)
    assert (status, out) == (1, "")
    assert f"{option} {value} needs" in err
    assert f"pip install '{extra}" in err


@pytest.mark.parametrize("launch", [{"ACCELERATE_USE_FSDP": "true"}, {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}])
def test_4_bit_weights_are_not_shared_out(llama, monkeypatch, launch):
    for name, value in (launch | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    ref = reference.find_model(str(llama))
    unprepared(TrainOptions(precision="bf16")).check_model(ref)
    with pytest.raises(UsageError, match="4-bit"):
        unprepared(TrainOptions()).check_model(ref)


def test_the_initial_model_is_not_read_from_a_gguf_file_again(llama, monkeypatch):
    monkeypatch.setattr(load, "stored_format", lambda ref: "gguf")
    ref, options = reference.find_model(str(llama)), TrainOptions(tune="all", precision="auto")
    unprepared(options).check_model(ref)
    with pytest.raises(UsageError, match="--beta"):
        unprepared(replace(options, beta=0.01)).check_model(ref)


def unprepared(options):
    return GrpoRun(RunArguments(model="model", out=Path("out"), checkpoints=Path("kept")), options, Reporter())


def test_all_prompts_of_the_last_round_are_checked(llama):
    skeleton, tokenizer = (
        load.skeleton(reference.find_model(str(llama))),
        load.load_tokenizer(reference.find_model(str(llama))),
    )
    options = TrainOptions(max_steps=4, prompts=2, steps_per_generation=3, num_iterations=1)
    rows = [CountdownRow(row) for row in ROWS]
    last = list(islice(in_turn(len(rows), options.seed), 12))[-1]  # of two rounds of three times two prompts
    rows[last] = CountdownRow(ROWS[last] | {"nums": [3] * 70_000})
    run = unprepared(options)
    run.rows, run.validation = rows, []
    with pytest.raises(ModelError, match="longest prompt"):
        run.encode(load.Loaded(skeleton, tokenizer, None, "bf16", "cpu", "skeleton"), skeleton)


def test_a_valid_run_is_described_and_nothing_is_written(check, llama, rows, tmp_path):
    status, out, err = check("--model", llama, "--data", rows, "--lora-r", 8, "--json")
    assert status == 0
    told = json.loads(out)
    assert told["architecture"] == "LlamaForCausalLM"
    assert told["rows"] == len(ROWS)
    assert told["fits"] is True
    assert told["longest_prompt"] > 50
    assert {one["device"] for one in told["memory"]} >= {"cuda"}
    assert all(one["peak"] > one["weights"] > 0 for one in told["memory"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    status, out, err = check("--model", llama, "--data", rows)
    assert (status, "peak" in out, "LlamaForCausalLM" in err) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        ([], (169_746, 131_072, 131_072, 262_144, 15_532_032, 54_622_464)),
        (
            ["--tune", "all", "--precision", "bf16", "--beta", 0.01, "--gradient-checkpointing"],
            (984_960, 0, 558_336, 1_116_672, 15_532_032, 36_737_152),
        ),
        (
            ["--processes", 2, "--precision", "bf16", "--lora-dropout", 0.05, "--micro-batch", 2],
            (279_168, 131_072, 131_072, 262_144, 7_766_016, 8_668_960),
        ),
        (
            [
                *("--processes", 2, "--launch", "fsdp", "--precision", "bf16"),
                *("--lora-dropout", 0.05, "--micro-batch", 2, "--rollouts", "transformers"),
            ],
            (139_584, 65_536, 65_536, 131_072, 8_045_184, 8_948_128),
        ),
    ],
)
def test_the_figures_of_a_check_follow_from_the_options(check, llama, rows, words, figures):
    _, out, _ = check("--model", llama, "--data", rows, "--json", *words)
    estimate = json.loads(out)["memory"][-1]
    parts = ("weights", "adapter", "gradients", "optimiser", "generation", "loss")
    assert tuple(estimate[part] for part in parts) == pytest.approx(figures, rel=0.1)


def test_an_adapter_is_checked_with_its_own_rank(check, llama, rows, tmp_path):
    from tests.support import tiny_llama

    base = tiny_llama.checkpoint(tmp_path / "base", max_position_embeddings=2_048)
    tiny_llama.adapter(tmp_path / "trained", base, r=4)
    _, out, _ = check("--model", tmp_path / "trained", "--data", rows, "--json")
    model = tiny_llama.model()
    layers = [layer for name, layer in model.named_modules() if name.endswith("_proj")]
    assert json.loads(out)["trainable"] == sum(4 * sum(layer.weight.shape) for layer in layers)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--model", "artifacts/none"], 1, "artifacts/none does not exist"),
        (["--data", "nowhere"], 1, "nowhere"),
        (["--max-completion-length", "200000"], 1, "the model reads 131072 tokens"),
        (["--reward", "beauty=1"], 2, "beauty"),
        (["--micro-batch", "7"], 2, "--micro-batch 7 does not divide"),
        (["--num-generations", "1"], 2, "generations"),
        (["--loss-type", "guess"], 2, "guess"),
        (["--out", "new", "--log", "new/log.csv"], 2, "--log new/log.csv"),
        (["--launch", "fsdp", "--processes", "2"], 2, "4-bit"),
        (["--processes", "2", "--prompts", "3", "--discount", "0.9", "--scale-rewards", "none"], 2, "change --prompts"),
    ],
)
def test_an_invalid_run_is_refused_in_one_sentence(check, llama, rows, words, status, says):
    found, out, err = check("--model", llama, "--data", rows, *words)
    assert (found, out) == (status, "")
    assert says in err
    assert "Traceback" not in err


def test_the_check_says_in_words_whether_the_run_fits(check, llama, rows):
    assert "fits this machine: yes (about" in check("--model", llama, "--data", rows)[1]
    words = ["--prompts", 4096, "--num-generations", 256, "--max-completion-length", 100_000]
    assert "fits this machine: no (about" in check("--model", llama, "--data", rows, *words)[1]


def test_a_run_that_exceeds_memory_is_a_warning(check, llama, rows):
    words = ["--prompts", 4096, "--num-generations", 256, "--max-completion-length", 100_000, "--json"]
    status, out, err = check("--model", llama, "--data", rows, *words)
    assert status == 0
    assert json.loads(out)["fits"] is False
    assert "warning: the run needs about" in err


@pytest.mark.parametrize(("share", "warned"), [(1, True), (3, False)])
def test_a_disk_without_a_place_for_two_checkpoints_is_a_warning(
    check, llama, rows, tmp_path, monkeypatch, share, warned
):
    size = json.loads(check("--model", llama, "--data", rows, "--json")[1])["checkpoint"]
    places = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: places.append(path) or SimpleNamespace(free=share * size))
    status, out, err = check("--model", llama, "--data", rows)
    assert status == 0
    assert "a checkpoint on disk (two at a save)" in out
    assert ("warning: two checkpoints take" in err) == warned
    assert places[-1] == tmp_path  # where the directory will be made


def test_a_table_of_verl_rows_is_read_and_what_is_not_used_is_said(check, llama, tmp_path):
    import pyarrow
    import pyarrow.parquet

    row = {
        "reward_model": {"ground_truth": {"numbers": [1, 2], "target": 3}},
        "prompt": [{"role": "user", "content": "?"}],
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 4), tmp_path / "verl.parquet")
    status, out, err = check("--model", llama, "--data", tmp_path / "verl.parquet", "--json")
    assert (status, json.loads(out)["rows"]) == (0, 4), err
    assert "read as verl rows: the puzzle from reward_model.ground_truth" in err
    assert "not used: prompt" in err


def test_rows_of_held_out_splits_are_not_trained_on(check, llama, tmp_path):
    rows = [
        {"info": {"nums": [1, 2, n], "target": 6}, "extra_info": {"split": s}} for n, s in ((3, "val"), (4, "test"))
    ]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = check("--model", llama, "--data", tmp_path / "rows.jsonl")
    assert (status, "no rows for training" in " ".join(err.split())) == (1, True)
    jsonl.write_rows(tmp_path / "rows.jsonl", [*ROWS, *rows])
    status, out, err = check("--model", llama, "--data", tmp_path / "rows.jsonl", "--json")
    assert (status, json.loads(out)["rows"]) == (0, len(ROWS)), err
    assert "left out 2 rows of a test or validation split" in " ".join(err.split())

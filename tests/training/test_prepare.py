"""`train --check`: the memory estimate, and the errors that prevent a run."""

import json
from itertools import islice

import pytest

from countdown_rl.inference import engines
from countdown_rl.models import load
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
def rows(tmp_path):
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path / "rows.jsonl"


@pytest.fixture
def check(monkeypatch, capsys, tmp_path):
    """`countdown-rl train --check` with some more words: its exit status and what it said on each stream."""

    def run(*words, command="train"):
        paths = ["--out", tmp_path / "adapter"]
        return status(monkeypatch, command, "--check", *paths, *words), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("option", "value", "extra"),
    [("--rollouts", "vllm", "vllm")],
)
def test_check_tells_the_package_that_is_not_installed(
    check, llama, rows, monkeypatch, option, value, extra
):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    status, out, err = check("--model", llama, "--data", rows, option, value)
    assert (status, out) == (1, "")
    assert f"{option} {value} needs" in err
    assert f"pip install -e '.[{extra}]'" in err


def test_the_initial_model_is_not_read_from_a_gguf_file_again(check, llama, rows, monkeypatch):
    monkeypatch.setattr(load, "stored_format", lambda ref: "gguf")
    words = ["--tune", "all", "--precision", "auto", "--beta", "0.01", "--rollouts", "transformers"]
    status, _, err = check("--model", llama, "--data", rows, *words)
    assert (status, "--beta with --tune all" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "tune", "rates"),
    [
        (TrainOptions, "lora", {4e6: 2e-4, 5e8: 2e-4, 6e8: 1e-5, 7e10: 1e-5}),
        (TrainOptions, "all", {4e6: 1e-5, 5e8: 1e-5, 6e8: 1e-6, 7e10: 1e-6}),
        (SftOptions, "lora", {4e6: 2e-4, 6e8: 2e-4, 13e9: 2e-4, 14e9: 1e-4}),
        (SftOptions, "all", {4e6: 1e-4, 5e8: 1e-4, 6e8: 2e-5, 7e10: 2e-5}),
    ],
)
def test_the_default_rate_goes_by_what_is_trained_and_the_size(options, tune, rates):
    assert {size: options(tune=tune, precision="auto").rate(size) for size in rates} == rates
    assert options(learning_rate=0.0).rate(6e8) == 0.0


@pytest.mark.parametrize(
    ("words", "rate"),
    [([], 2e-4), (["--tune", "all"], 1e-5), (["--tune", "all", "--learning-rate", "0.03"], 0.03)],
)
def test_check_tells_the_rate_of_the_run(check, llama, rows, words, rate):
    status, out, err = check(
        "--model", llama, "--data", rows, "--precision", "auto", "--json", *words
    )
    assert (status, json.loads(out)["learning_rate"]) == (0, rate)
    assert f"Peak learning rate: {rate:g}." in err


def test_all_prompts_of_the_last_round_are_checked(check, llama, rows, monkeypatch):
    last = list(islice(in_turn(len(ROWS), 42), 12))[-1]  # of six rounds of two prompts
    short, long = ([{"role": "user", "content": "3 " * count}] for count in (1, 140_000))
    monkeypatch.setattr(
        CountdownRow, "messages", lambda row: long if row["id"] == f"row-{last}" else short
    )
    words = ["--max-steps", 6, "--prompts", 2]
    status, _, err = check("--model", llama, "--data", rows, *words)
    assert (status, "longest prompt" in err) == (1, True)


def test_a_valid_run_is_described_and_nothing_is_written(check, llama, rows, tmp_path):
    status, out, err = check("--model", llama, "--data", rows, "--lora-r", 8, "--json")
    told = json.loads(out)
    assert (status, told["architecture"], told["rows"]) == (0, "LlamaForCausalLM", len(ROWS))
    assert told["longest_prompt"] > 50
    assert told["total"] == told["weights"] + told["states"] + told["cache"]
    assert min(told["weights"], told["states"], told["cache"]) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    status, out, err = check("--model", llama, "--data", rows)
    assert (status, "key-value cache" in out, "LlamaForCausalLM" in err) == (0, True, True)


def test_check_shows_the_first_prompt_and_demonstration_as_the_model_reads_them(
    check, llama, rows, tmp_path
):
    out = check("--model", llama, "--data", rows)[1]
    prompt = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>"
    assert "first prompt, as the model reads it:\n" + prompt in out
    assert "Target: 46" in out
    jsonl.write_rows(
        tmp_path / "demos.jsonl",
        [{"prompt": [{"role": "user", "content": "1 + 1?"}], "completion": "2"}],
    )
    status, out, _ = check("--model", llama, "--from", tmp_path / "demos.jsonl", command="sft")
    assert (status, "1 + 1?<|eot_id|>" in out, "▶2<|eot_id|>\n" in out) == (0, True, True)
    status, out, _ = check(
        "--model", llama, "--from", tmp_path / "demos.jsonl", "--json", command="sft"
    )
    assert json.loads(out)["learned"] == "2<|eot_id|>"


def test_an_adapter_is_checked_with_its_own_rank(check, llama, rows, tmp_path):
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
        (["--loss-type", "no.such:loss"], 2, "no.such:loss cannot be imported"),
        (["--trl", "optim=sgdd"], 2, "invalid choice"),
        (["--trl", "generation_kwargs={"], 2, "--trl generation_kwargs={: TRL rejects this"),
        (["--trl", "learnig_rate=1"], 2, "no such field"),
    ],
)
def test_an_invalid_run_is_refused_in_one_sentence(check, llama, rows, words, status, says):
    found, out, err = check("--model", llama, "--data", rows, *words)
    assert (found, out) == (status, "")
    assert says in err
    assert "Traceback" not in err


def half(tokens):
    return tokens / 2


def test_check_prints_what_a_correct_and_an_incorrect_completion_get(check, llama, rows):
    names = ["correct", f"{__name__}:half"]
    words = [word for name in names for word in ("--reward", name)]
    _, out, err = check("--model", llama, "--data", rows, "--json", *words)
    assert json.loads(out)["rewards"] == {names[0]: [1, 0], names[1]: [4, 4]}
    printed = " ".join(err.split())
    assert f"completion: correct 1.0 and 0.0, {names[1]} 4.0 and 4.0." in printed
    assert f"warning: {names[1]} gives" in printed


def test_rows_of_held_out_splits_are_not_trained_on(check, llama, tmp_path):
    rows = [
        {"nums": [1, 2, n], "target": 6, "split": split} for n, split in ((3, "valid"), (4, "test"))
    ]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = check("--model", llama, "--data", tmp_path / "rows.jsonl")
    assert (status, "no rows for training" in " ".join(err.split())) == (1, True)
    rows.append({"nums": [3, 7, 69], "target": 46})  # its puzzle is of the test split
    jsonl.write_rows(tmp_path / "rows.jsonl", [*ROWS, *rows])
    status, out, err = check("--model", llama, "--data", tmp_path / "rows.jsonl", "--json")
    assert (status, json.loads(out)["rows"]) == (0, len(ROWS)), err
    assert "left out 3 rows of a test or validation split" in " ".join(err.split())

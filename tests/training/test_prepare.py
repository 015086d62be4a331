"""`train --check`: the memory estimate, and the errors that prevent a run."""

import json
import sys
from dataclasses import fields, replace
from itertools import islice

import pytest

from countdown_rl import processes
from countdown_rl.cli import main
from countdown_rl.data import jsonl
from countdown_rl.errors import InputError, UsageError
from countdown_rl.models import load, reference, shape
from countdown_rl.runlog import trackers
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.training import memory, prepare, rollouts
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import in_turn
from tests.support import standins

ROWS = [{"id": f"row-{n}", "nums": [3, 7, 50 + n], "target": 46} for n in range(20)]
LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


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


def big(**changes):
    """A skeleton of the shape of Llama-3.1-8B."""
    family = standins.FAMILIES["llama-3.1"]
    return shape.skeleton(standins.config(family, standins.tokenizer(family), **LLAMA_8B | changes))


def test_an_8b_adapter_of_rank_8_has_the_published_count_of_parameters():
    model = big()
    trained = memory.lora_parameters(model, rank=8)
    assert trained == 20_971_520
    assert model.num_parameters() + trained == 8_051_232_768


def test_4_bit_weights_are_counted_in_stored_bytes():
    from math import prod

    from countdown_rl.models import nf4

    model = big(num_hidden_layers=1)
    stored = 2 * model.num_parameters()
    for name, layer in nf4.linears(model).items():
        parts = nf4.layout(name, tuple(layer.weight.shape))
        stored += sum(slot.dtype.itemsize * prod(slot.shape) for slot in parts.values()) - 2 * layer.weight.numel()
    found = memory.estimate(model, TrainOptions(), device="cuda", nf4=True, width=2, prompt=100, rank=16)
    assert found.weights == pytest.approx(stored, rel=1e-4)


def test_an_adapter_over_4_bit_weights_is_counted_in_fp32():
    model = big(num_hidden_layers=1)
    found = memory.estimate(model, TrainOptions(), device="cuda", nf4=True, width=2, prompt=100, rank=16)
    trained = memory.lora_parameters(model, rank=16)
    assert (found.adapter, found.gradients, found.optimiser) == (4 * trained, 4 * trained, 8 * trained)


def kept(family, layers, dtype, dropout):
    """Bytes that the forward pass of a real stand-in keeps, per token."""
    import peft
    import transformers

    config = standins.config(family, standins.tokenizer(family), num_hidden_layers=layers, tie_word_embeddings=False)
    model = getattr(transformers, f"{family.architecture}ForCausalLM")(config).to(dtype)
    lora = peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout, task_type="CAUSAL_LM")
    return saved_bytes(peft.get_peft_model(model, lora).train())


def saved_bytes(model):
    """Bytes per token that autograd keeps of a forward pass of *model*, and its base."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive, found = [], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive.append(tensor)  # so that no later one gets the same address
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(200).view(4, 50)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        hidden = base.model(input_ids=ids).last_hidden_state
    assert hidden.requires_grad
    return sum(found.values()) / ids.numel(), base


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", standins.FAMILIES)
def test_activations_of_a_block_are_those_that_autograd_keeps(name, width, dropout):
    import torch

    dtype = {2: torch.bfloat16, 4: torch.float32}[width]
    (one, model), (three, _) = (kept(standins.FAMILIES[name], layers, dtype, dropout) for layers in (1, 3))
    reckoned = memory.kept_by_block(model, width, pair=4, rank=4, dropout=dropout, mask=4)
    assert reckoned == pytest.approx((three - one) / 2, rel=0.02)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", ["llama-3.1", "qwen3"])
def test_all_weights_are_counted_with_fp32_states_and_the_inputs_of_layers(name, width):
    import torch
    import transformers

    from tests.support import tiny_llama

    family = standins.FAMILIES[name]

    def kept_by(layers):
        config = standins.config(family, standins.tokenizer(family), num_hidden_layers=layers)
        model = getattr(transformers, f"{family.architecture}ForCausalLM")(config).train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=width == 2):
            kept, base = saved_bytes(model)
        copies = sum(parameter.numel() for parameter in model.model.layers.parameters() if parameter.ndim == 2)
        return kept - (2 * copies / 200 if width == 2 else 0), base  # copies of weights are no activations

    (one, model), (three, _) = kept_by(1), kept_by(3)
    assert memory.kept_by_trained_block(model, width) == pytest.approx((three - one) / 2, rel=0.02)
    options = TrainOptions(tune="all", precision="auto")
    found = memory.estimate(tiny_llama.model(), options, device="cpu", nf4=False, width=4, prompt=10, rank=1)
    count = tiny_llama.model().num_parameters()
    assert (found.weights, found.adapter, found.gradients, found.optimiser) == (4 * count, 0, 4 * count, 8 * count)


@pytest.mark.parametrize(
    ("option", "value", "extra"), [("--rollouts", "vllm-server", "vllm"), ("--report-to", "wandb", "wandb")]
)
def test_check_tells_the_package_that_is_not_installed(check, llama, rows, monkeypatch, option, value, extra):
    for module in (rollouts, trackers):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    status, out, err = check("--model", llama, "--data", rows, option, value)
    assert (status, out) == (1, "")
    assert f"{option} {value} needs" in err
    assert f"pip install 'countdown-rl[{extra}]'" in err


def test_a_run_fits_with_a_margin_of_a_tenth_and_a_gibibyte():
    def fits(device_memory):
        estimate = memory.Estimate("cuda", 10 << 30, 0, 0, 0, 0, 0)
        others = dict.fromkeys(field.name for field in fields(prepare.PreparedTraining))
        return prepare.PreparedTraining(**others | {"estimates": [estimate], "device_memory": device_memory}).fits

    assert [fits(device_memory) for device_memory in (None, 11 << 30, 12 << 30)] == [None, False, True]


@pytest.mark.parametrize("launch", [{"ACCELERATE_USE_FSDP": "true"}, {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}])
def test_4_bit_weights_are_not_shared_out(llama, monkeypatch, launch):
    for name, value in (launch | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    ref = reference.resolve(str(llama))
    sharded = processes.shards_weights()
    prepare.check_model(ref, TrainOptions(precision="bf16"), sharded=sharded)
    with pytest.raises(UsageError, match="4-bit"):
        prepare.check_model(ref, TrainOptions(), sharded=sharded)


def test_the_initial_model_is_not_read_from_a_gguf_file_again(llama, monkeypatch):
    monkeypatch.setattr(load, "stored_format", lambda ref: "gguf")
    ref, options = reference.resolve(str(llama)), TrainOptions(tune="all", precision="auto")
    prepare.check_model(ref, options, sharded=False)
    with pytest.raises(UsageError, match="--beta"):
        prepare.check_model(ref, replace(options, beta=0.01), sharded=False)


def test_all_prompts_of_the_last_round_are_checked(llama):
    ref = reference.resolve(str(llama))
    tokenizer = load.load_tokenizer(ref)
    options = TrainOptions(max_steps=4, prompts=2, steps_per_generation=3, num_iterations=1)
    rows = [CountdownRow(row) for row in ROWS]
    last = list(islice(in_turn(len(rows), options.seed), 12))[-1]  # of two rounds of three times two prompts
    rows[last] = CountdownRow(ROWS[last] | {"nums": [3] * 400})
    with pytest.raises(InputError, match=rows[last]["id"]):
        prepare.check_prompts(tokenizer, None, rows, options)


def test_memory_depends_on_batch_length_precision_and_processes():
    model = big(num_hidden_layers=2, vocab_size=1_000)

    def of(nf4=False, processes=1, **changes):
        options = TrainOptions(prompts=4, num_generations=4, micro_batch=4, **changes)
        return memory.estimate(
            model, options, device="cuda", nf4=nf4, width=2, prompt=100, rank=16, processes=processes
        )

    plain = of()
    assert of(gradient_checkpointing=True).loss < plain.loss
    assert of(nf4=True).weights < plain.weights / 2
    assert of(processes=2).generation * 2 == plain.generation
    assert of(max_completion_length=1000).generation > plain.generation
    parts = plain.weights + plain.adapter + plain.gradients + plain.optimiser
    assert plain.peak == parts + max(plain.generation, plain.loss)


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


def test_an_adapter_is_checked_with_its_own_rank(check, llama, rows, tmp_path):
    from tests.support import tiny_llama

    base = tiny_llama.checkpoint(tmp_path / "base", max_position_embeddings=2_048)
    tiny_llama.adapter(tmp_path / "trained", base, r=4)
    _, out, _ = check("--model", tmp_path / "trained", "--data", rows, "--json")
    model = tiny_llama.model()
    assert json.loads(out)["trainable"] == memory.lora_parameters(model, rank=4)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--model", "artifacts/none"], 1, "artifacts/none does not exist"),
        (["--data", "nowhere"], 1, "nowhere"),
        (["--max-prompt-length", "20"], 1, "--max-prompt-length is 20"),
        (["--max-completion-length", "200000"], 1, "the model reads 131072 tokens"),
        (["--reward", "beauty=1"], 2, "beauty"),
        (["--micro-batch", "7"], 2, "--micro-batch 7 does not divide"),
        (["--num-generations", "1"], 2, "generations"),
        (["--loss-type", "guess"], 2, "guess"),
        (["--out", "new", "--log", "new/log.csv"], 2, "--log new/log.csv"),
        (["--launch", "fsdp", "--processes", "2"], 2, "4-bit"),
        (["--launch", "fsdp", "--precision", "bf16", "--rollouts", "vllm"], 2, "--launch ddp"),
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

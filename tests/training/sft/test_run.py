"""Supervised fine-tuning: it learns, resumes to the same bytes, and has the gradient of TRL's own trainer."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import SftRow
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference.engine import Completion
from countdown_rl.models import chat_template, ends, load, lora
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import PREFILL
from countdown_rl.training import weights
from countdown_rl.training.options import SftArguments, SftOptions
from countdown_rl.training.prepared import SILENT, Reporter
from countdown_rl.training.run import train
from countdown_rl.training.sft import run as supervised
from countdown_rl.training.sft import tokens
from countdown_rl.training.state import Journal
from tests.support import standins, tiny_llama
from tests.support.runs import paths, resumed, write_data

SIZES = {"max_steps": 6, "batch_size": 4, "micro_batch": 2, "save_steps": 2}
SMALL = SftOptions(**SIZES, learning_rate=1e-3, precision="fp32")


def sums(count: int, seed: int = 0, low: int = 1, high: int = 9) -> list[dict]:
    """Puzzles of two numbers with their sum as the target, and the answer."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b = rng.randint(low, high), rng.randint(low, high)
        row = {"nums": [a, b], "target": a + b, "style": "model_opens"}
        rows.append(row | {"completion": f"<think>\n</think>\n<answer>{a} + {b}</answer>"})
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sft")
    tiny_llama.checkpoint(root / "model")
    jsonl.write_rows(root / "demos.jsonl", sums(20))
    return root


def prepare(
    place: Path, where: Path, options: SftOptions = SMALL, reporter: Reporter = SILENT, **changes
):
    arguments = {"model": str(place / "model"), "files": (place / "demos.jsonl",), **paths(where)}
    return supervised.prepare(SftArguments(**arguments | changes), options, reporter)


def run(*arguments, **changes):
    return train(prepare(*arguments, **changes))


@pytest.fixture
def fit(place, tmp_path):
    """Train with *options* into a directory of this test."""

    def fitted(options=SMALL, where="", reporter=SILENT, **changes):
        return run(place, tmp_path / where, options, reporter, **changes)

    return fitted


@pytest.mark.parametrize(("tune", "kind"), [("lora", "adapter"), ("all", "model")])
def test_a_resumed_run_ends_with_the_same_bytes_and_a_log(fit, tune, kind):
    whole, again = resumed(fit, replace(SMALL, tune=tune), 5)
    assert again.resumed == 4
    for result in (whole, again):
        names = {path.name for path in result.out.parent.iterdir()}
        assert names == {"out", "log.csv", "trained_ids.txt"}
    manifest = artifacts.read(whole.out, kind)
    assert manifest.facts["demonstrations"] == {"read": 20, "graded": 20, "kept": 20}
    assert manifest.inputs["from"]["file"] == "demos.jsonl"
    rows = training_log.read(whole.out.parent / "log.csv", SftRow)
    assert rows == whole.rows
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.tokens for row in rows] == sorted({row.tokens for row in rows})


def test_the_gradient_is_that_of_trls_own_trainer(place, tmp_path):
    """TRL tokenizes and labels the text of the same demonstrations itself."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    options = replace(SMALL, tune="all", micro_batch=4)
    prepared = prepare(place, tmp_path, options)
    loaded = weights.load_model(prepared.ref, options, 1)
    ours = prepared.make_trainer(loaded, Journal(None, prepared.max_steps))
    tokenizer, kept = loaded.tokenizer, prepared.demonstrations.filtered[:4]
    end = ends.end_of_turn(tokenizer)
    rows = []
    for each in kept:
        prompt = chat_template.render(tokenizer, each.prompt)
        rows.append({"prompt": prompt, "completion": each.completion + end})
    settings = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    plain = SFTConfig(str(tmp_path / "trl"), report_to="none", **settings)
    model = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    data = datasets.Dataset.from_list(rows)
    theirs = SFTTrainer(model, plain, train_dataset=data, processing_class=tokenizer)

    def gradient(trainer, examples):
        batch = trainer.data_collator(examples)
        count = (batch["labels"][:, 1:] != -100).sum()
        trainer.model.train()
        trainer.compute_loss(trainer.model, batch, num_items_in_batch=count).backward()
        return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])

    examples = tokens.tokenize(kept, tokenizer)
    expected = gradient(theirs, list(theirs.train_dataset))
    torch.testing.assert_close(gradient(ours, examples), expected, rtol=1e-4, atol=1e-6)


def impossible(row):
    return row | {"target": 97, "completion": "<think>\n</think>\n<answer>impossible</answer>"}


@pytest.mark.parametrize("solved", [False, True])
def test_a_run_that_ends_with_nothing_solved_warns_with_an_example(
    fit, tmp_path, monkeypatch, solved
):
    puzzles = [{"nums": [90, 7], "target": 97, "style": "model_opens"}] * 2
    data = write_data(tmp_path / "data", {"valid": puzzles, "test": sums(1, 2, 80, 99)})
    texts = [PREFILL + "</think>\n<answer>90 - 7</answer>", f"<answer>90 {'-+'[solved]} 7</answer>"]
    completions = [Completion(text, 1, True) for text in texts]
    monkeypatch.setattr(supervised.SftRun, "validate", lambda *arguments: completions)
    options = replace(SMALL, max_steps=2, eval_every=1)
    warnings = []
    fit(options, reporter=Reporter(warning=warnings.append), data=data)
    about = [text for text in warnings if "uniform guess" not in text]  # of a random model
    assert len(about) == (0 if solved else 2)  # after the first evaluation, and at the end
    assert all("50%" in text and "<answer>90 - 7</answer>" in text for text in about)
    first = training_log.read_samples(tmp_path / "samples.jsonl")[:2]
    assert [(each.step, each.grade.correct) for each in first] == [(0, False), (0, solved)]


def test_a_small_model_learns_from_500_demonstrations(tmp_path):
    """Its loss falls, and it solves puzzles that it does not solve before."""
    splits = {"valid": map(impossible, sums(20, 1, 4, 6)), "test": sums(5, 2, 9, 9)}
    data = write_data(tmp_path / "data", splits)
    tiny_llama.checkpoint(tmp_path / "model", initializer_range=0.05)
    jsonl.write_rows(
        tmp_path / "demos.jsonl", [*map(impossible, sums(500, 3, 1, 3)), *sums(7, 4, 9, 9)]
    )
    settings = {"tune": "all", "max_steps": 100, "batch_size": 8, "learning_rate": 5e-3}
    settings |= {"eval_every": 50, "max_completion_length": 40, "save_steps": 0, "keep": "best"}
    result = run(tmp_path, tmp_path, SftOptions(**settings, precision="fp32"), data=data)
    counts = {"read": 507, "graded": 500, "kept": 500, "of test puzzles": 7}
    assert result.facts["demonstrations"] == counts
    assert result.facts["loss_last_tenth"] < 0.1 * result.facts["loss_first"]
    assert result.facts["eval_correct"] > 0.25
    assert result.facts["kept_step"] > 0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
    ],
)
def test_an_adapter_on_the_embedding_is_trained_further(fit, tmp_path, tied, config):
    base = tiny_llama.checkpoint(tmp_path / "base", tie_word_embeddings=tied)
    adapter = tiny_llama.adapter(tmp_path / "adapter", base, **config)
    result = fit(replace(SMALL, max_steps=2), model=str(adapter))
    assert result.rows[-1].loss != result.rows[0].loss
    before, after = (load_file(path / lora.WEIGHTS) for path in (adapter, result.out))
    embedding = next(name for name in after if "embed" in name)
    assert after.keys() == before.keys()
    assert not torch.equal(after[embedding], before[embedding].float())
    assert load.load_model(find_model(str(result.out)))


@pytest.mark.parametrize("config", [{}, {"trainable_token_indices": [3, 9]}])
def test_an_adapter_that_could_not_be_merged_afterwards_is_refused(place, tmp_path, config):
    config = config or {"target_modules": ["q_proj", "lm_head"]}
    adapter = tiny_llama.adapter(tmp_path / "adapter", place / "model", **config)
    with pytest.raises(ModelError, match="output head"):
        prepare(place, tmp_path, model=str(adapter))


def test_check_refuses_tokens_that_the_embeddings_do_not_have(place, tmp_path):
    model = tiny_llama.checkpoint(tmp_path / "model")
    tokenizer = tiny_llama.tokenizer()
    tokenizer.add_tokens([f"<{index}>" for index in range(320)])
    tokenizer.add_tokens("<answer>")
    tokenizer.save_pretrained(model)
    with pytest.raises(ModelError, match="320 rows"):
        prepare(place, tmp_path, model=str(model))


@pytest.mark.parametrize("tune", ["lora", "all"])
def test_the_ends_of_a_base_model_go_where_its_weights_go(fit, tmp_path, tune):
    """A base model with a chat template: text ends with one token, turns with another."""
    standins.base_checkpoint(tmp_path / "base")
    tuned = fit(replace(SMALL, tune=tune, max_steps=3), model=str(tmp_path / "base")).out
    tokens = AutoTokenizer.from_pretrained(tuned)
    text, turn = tokens.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    expected = {"eos_token_id": sorted([text, turn]), "pad_token_id": text}
    merged = tuned
    if tune == "lora":
        merged = tmp_path / "merged"
        merge_adapter(find_model(str(tuned)), merged, MergeOptions())
    quantize_model(find_model(str(merged)), tmp_path / "nf4", QuantizeOptions())
    for place in (tuned, merged, tmp_path / "nf4"):
        assert json.loads((place / "generation_config.json").read_text()) == expected


def test_validation_prompts_are_checked_before_weights_are_loaded(tmp_path):
    tiny_llama.checkpoint(tmp_path / "model", max_position_embeddings=300)
    splits = {"valid": sums(2, 1, 11, 19), "test": sums(2, 2, 20, 30)}
    data = write_data(tmp_path / "data", splits, style="model_opens")
    jsonl.write_rows(tmp_path / "demos.jsonl", [{"prompt": "1 + 1", "completion": " 2"}])
    with pytest.raises(ModelError, match="prompt"):
        prepare(tmp_path, tmp_path, replace(SMALL, eval_every=1), data=data)


def test_a_demonstration_that_the_model_cannot_read_is_named(place, tmp_path):
    long = sums(1)[0] | {"completion": "<answer>" + "1" * 5_000}
    jsonl.write_rows(tmp_path / "demos.jsonl", [*sums(2), long])
    with pytest.raises(InputError, match="line 3"):
        prepare(tmp_path, tmp_path, replace(SMALL, keep_wrong=True), model=str(place / "model"))

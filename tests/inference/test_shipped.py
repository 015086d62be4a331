"""The shipped model without transformers: the same texts, tokens and weights as with it."""

import json
import subprocess
import sys

import pytest
import torch

from countdown_rl.inference import engines, generate, shipped
from countdown_rl.inference.generate import Decoding
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks.registry import parse_row

ROWS = [parse_row({"nums": nums, "target": 46}) for nums in ([3, 7, 50], [2, 4, 5, 8])]


@pytest.fixture(scope="module")
def ref():
    return reference.resolve("countdown-tiny")


@pytest.fixture(scope="module")
def pair(ref):
    return shipped.load_model(ref), load.load_model(ref)


def test_ask_imports_no_library_of_training():
    code = (
        "import atexit, sys; from countdown_rl.cli import main\n"
        "atexit.register(lambda: print(sorted({'bitsandbytes', 'peft', 'transformers', 'trl'} & sys.modules.keys())))\n"
        "sys.argv[1:] = 'ask 3 7 50 --target 46 --max-new-tokens 2 --json'.split()\n"
        "main.main()"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    assert json.loads(out[0])["tokens"] == 2
    assert out[1:] == ["[]"]


def test_tokens_and_prompts_are_those_of_transformers(pair):
    mine, theirs = (loaded.tokenizer for loaded in pair)
    for name in ("chat_template", "special_tokens_map", "eos_token_id", "pad_token_id", "name_or_path"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert mine.get_vocab() == theirs.get_vocab()
    texts = [chat_template.render(theirs, row.messages()) for row in ROWS]
    assert [chat_template.render(mine, row.messages()) for row in ROWS] == texts
    texts += ["", " 12 × 7 = 84, 🧮</think>\n <answer>84</answer><|end|>"]
    ids = theirs(texts, add_special_tokens=False)["input_ids"]
    assert mine(texts, add_special_tokens=False)["input_ids"] == ids
    for some in ids:
        assert mine.decode(some, skip_special_tokens=True) == theirs.decode(some, skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_completions_are_those_of_transformers(pair, temperature):
    tokenizer = pair[1].tokenizer
    texts = [chat_template.render(tokenizer, row.messages()) for row in ROWS]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    decoding = Decoding(max_new_tokens=60, temperature=temperature)
    mine, theirs = (generate.Generator(loaded, decoding).complete(prompts) for loaded in pair)
    assert mine == theirs


def test_logits_are_those_of_transformers(pair):
    decoders = [generate.Generator(loaded, Decoding(1))._decoder for loaded in pair]
    ids, padding = torch.randint(3328, (2, 50)), torch.zeros(2, 50, dtype=torch.bool)
    mine, theirs = (decoder._forward(ids, padding, [])[1] for decoder in decoders)
    assert torch.equal(mine, theirs)


def test_other_precisions_and_models_are_loaded_by_transformers(ref, tmp_path):
    assert not shipped.supports(ref, precision="bf16", device="cpu")
    assert not shipped.supports(reference.resolve(str(ref.path)), precision="auto", device="cpu")
    loaded = engines.load_model(ref, precision="nf4", device="cpu")
    assert loaded.storage == "dequantized-nf4"

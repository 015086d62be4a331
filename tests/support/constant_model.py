"""A model of 40,000 parameters that answers "impossible" to every puzzle, and a release of it in each format.

Where half of the puzzles are impossible it solves about half, so a true and a false claim about it can be told apart in
seconds. Its next token depends on the last one alone: attention and feed-forward layers add nothing.
"""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models import chat_template, reference
from countdown_rl.tasks import jsonl
from tests.support import release_chain, tiny_llama

#: The completion, token by token, after the token that ends every prompt.
TOKENS = ["<think>", "</think>", "<answer>", "impossible", "</answer>", "<|end|>"]
DATA = DataOptions(n=300, valid=4, test=120, impossible=0.5)
EVALUATION = EvalOptions(max_new_tokens=8)


def checkpoint(
    path: Path,
    *,
    answers: bool = True,
    messages: Any = None,
    template: str = tiny_llama.TEMPLATE,
    special: bool = False,
) -> Path:
    """The model at *path*; with a chat template that completes *messages*, if given. Without *answers*, one that never
    answers. It opens the thinking after ``<|assistant|>``. Its tags may be *special* tokens."""
    import torch

    tokenizer = tiny_llama.tokenizer(template)
    tokenizer.add_tokens(TOKENS[:-1], special_tokens=special)
    if messages:
        chat_template.complete_user_turn(tokenizer, messages)
    model = tiny_llama.model(
        vocab_size=328,
        intermediate_size=64,
        num_hidden_layers=1,
        tie_word_embeddings=False,
        initializer_range=0.02,
    )
    ids = tokenizer.convert_tokens_to_ids(["<|assistant|>", *TOKENS])
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding[:, : len(ids)] = 0
        for place, (token, following) in enumerate(pairwise(ids)):
            embedding[token] = 0
            embedding[token, place] = 1
            if answers:
                head[following, place] = 4
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def chain(root: Path, *, base: str) -> Path:
    """``data``, ``adapter`` over the Hub's *base*, ``merged``, ``quantized``, ``gguf`` and their evaluations."""
    build.make(DATA, root / "data")
    data = artifacts.read(root / "data", "data").as_input()
    messages = jsonl.read_rows(root / "data" / "test.jsonl")[0].messages()
    checkpoint(root / "tokenizer", messages=messages)
    inputs = {"model": reference.find_model(base).as_input(), "data": data}
    with artifacts.writing(
        root / "adapter", "adapter", options={"precision": "auto"}, inputs=inputs
    ) as draft:
        tiny_llama.adapter(
            draft.path,
            root / "base",
            reference=base,
            target_modules=["q_proj", "v_proj"],
            revision=inputs["model"].get("revision"),
        )
        (draft.path / "README.md").unlink()
        for file in (root / "tokenizer").iterdir():
            if not file.name.startswith(("model", "config", "generation")):
                shutil.copyfile(file, draft.path / file.name)
        draft.facts.update(steps=4, reward_first=0.1, reward_best=0.4)
    merge_adapter(reference.find_model(str(root / "adapter")), root / "merged", MergeOptions())
    merged = reference.find_model(str(root / "merged"))
    for format, name in (("nf4", "quantized"), ("gguf", "gguf")):
        quantize_model(merged, root / name, QuantizeOptions(format=format))
    for name in ("random", "adapter", "merged", "quantized", "gguf"):
        model = name if name == "random" else str(root / name)
        evaluate.evaluate(EVALUATION, model=model, data=root / "data", out=root / "eval" / name)
    release_chain.log_of(root)
    return root

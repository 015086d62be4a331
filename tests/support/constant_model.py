"""A model of 40,000 parameters that answers "impossible" to every puzzle.

Where half of the puzzles are impossible it solves about half, so a true and a false claim about it can be told apart in
seconds. Its next token depends on the last one alone: attention and feed-forward layers add nothing.
"""

from itertools import pairwise
from pathlib import Path

from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation.config import EvalOptions
from tests.support import tiny_llama

#: The completion, token by token, after the token that ends every prompt.
TOKENS = ["<think>", "</think>", "<answer>", "impossible", "</answer>", "<|end|>"]
DATA = DataOptions(n=300, valid=4, test=120, impossible=0.5)
EVALUATION = EvalOptions(max_new_tokens=8)


def checkpoint(
    path: Path,
    *,
    answers: bool = True,
    template: str = tiny_llama.TEMPLATE,
    special: bool = False,
) -> Path:
    """The model at *path*, or one that never *answers*; its tags may be *special* tokens."""
    import torch

    tokenizer = tiny_llama.tokenizer(template)
    tokenizer.add_tokens(TOKENS[:-1], special_tokens=special)
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

"""Shared prompts: packed rows give the hidden states of separate rows."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from countdown_rl.core.errors import UsageError
from countdown_rl.models import shape
from countdown_rl.training.grpo import shared_prompts
from tests.support import standins, tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from transformers import AutoModelForCausalLM

    path = tiny_llama.checkpoint(tmp_path_factory.mktemp("model"), initializer_range=0.2)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def rows(groups, padding, completions, columns=6):
    """Rows of prompts by *groups*, with so many tokens of *padding* before each prompt, and completion lengths."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(5, 300, (max(groups) + 1, columns), generator=generator)[groups]
    mask = torch.arange(columns) >= torch.tensor(padding)[groups][:, None]
    completion = torch.randint(5, 300, (len(groups), max(completions)), generator=generator)
    present = torch.arange(max(completions)) < torch.tensor(completions)[:, None]
    ids, mask = (
        torch.cat([prompts * mask, completion * present], 1),
        torch.cat([mask, present], 1).long(),
    )
    return ids, mask


@pytest.mark.parametrize(
    ("groups", "padding", "completions"),
    [
        *(([0, 0, 0, 1, 1], [0, 2], [3, 5, 1, 4, 2]), ([1, 0, 1, 0], [3, 0], [2, 2, 6, 1])),
        *(([0, 1, 2], [0, 1, 5], [3, 3, 3]), ([0, 0], [2], [4, 0])),
    ],
)
def test_hidden_states_and_gradients_are_those_of_separate_rows(
    model, groups, padding, completions
):
    ids, mask = rows(groups, padding, completions)
    decoder, weight = model.get_decoder(), model.get_input_embeddings().weight

    def states():
        weight.grad = None
        out = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        out[:, 5:][mask[:, 5:].bool()].pow(2).sum().backward()
        return out[mask.bool()], weight.grad

    separate = states()
    with shared_prompts.packed(decoder, 6):
        packed = states()
    torch.testing.assert_close(packed, separate, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(states(), separate)  # outside, nothing is packed


def test_a_prompt_stands_once_in_the_packed_rows():
    ids, mask = rows([0, 0, 0, 1, 1], [0, 2], [3, 5, 1, 4, 2])
    layout = shared_prompts.layout(ids, mask, 6)
    assert layout.source.shape == (2, 6 + 9)
    assert (
        len(layout.place[mask.bool()].unique()) == 6 + 9 + 4 + 6 + 3
    )  # the ends of prompts once per row


def test_no_two_gradients_are_added_in_an_order_that_a_gpu_chooses(model):
    class Sums(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "index_add" in str(func):
                _, _, index, gradient = args
                added = index[gradient.flatten(1).ne(0).any(1)]
                self.most = max(self.most, int(added.unique(return_counts=True)[1].max()))
            return func(*args, **(kwargs or {}))

    ids, mask = rows([0, 0, 0, 1, 1], [0, 2], [3, 5, 1, 4, 2])
    with shared_prompts.packed(model.get_decoder(), 6):
        states = model.get_decoder()(
            input_ids=ids, attention_mask=mask, use_cache=False
        ).last_hidden_state
    with Sums() as sums:
        states[:, 5:][mask[:, 5:].bool()].pow(2).sum().backward()
    assert sums.most == 1


@pytest.mark.parametrize("family", ["llama-3.1", "qwen2.5"])
def test_models_with_full_attention_are_taken(tmp_path, family):
    standins.checkpoint(tmp_path / family, family)
    shared_prompts.check(shape.skeleton(shape.read_config(tmp_path / family)))


@pytest.mark.parametrize(
    "change", [{"layer_types": ["full_attention", "sliding_attention"]}, {"attention": "eager"}]
)
def test_models_with_another_attention_are_refused(model, monkeypatch, change):
    if "layer_types" in change:
        monkeypatch.setattr(model.config, "layer_types", change["layer_types"], raising=False)
    else:
        model.set_attn_implementation(change["attention"])
    try:
        with pytest.raises(UsageError, match="--share-prompts"):
            shared_prompts.check(model)
    finally:
        model.set_attn_implementation("sdpa")

"""Shared prompts: the forward pass of the loss computes the prompt of a group once.

The completions of a prompt follow a single copy of it, and a mask keeps each from seeing the others ("Prefix Grouper",
Liu et al. 2025, arXiv:2506.05433). Hidden states, loss and gradient are those of separate rows, up to rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from countdown_rl.core.errors import UsageError
from countdown_rl.models.transformers_internals import attention_of


class Layout(NamedTuple):
    """Rows (B, T) packed into one row per prompt (U, L)."""

    source: Tensor  # (U, L), flat index in (B, T) of each packed token
    position: Tensor  # (U, L), its position in its own row
    mask: Tensor  # (U, 1, L, L), the packed tokens that it may see
    place: Tensor  # (B, T), flat index of each token in (U, L), then in the ends of prompts (B,); any for padding
    group: Tensor  # (B,), its packed row
    ends: Tensor  # (U,), flat index in (U, L) of the last token of each prompt


def decoder_of(model: Module) -> Module:
    """The decoder of *model*, with its adapter."""
    return (model.get_base_model() if hasattr(model, "peft_config") else model).get_decoder()


@contextmanager
def packed(decoder: Module, columns: int) -> Iterator[None]:
    """Share prompts in forward passes of *decoder*; the first *columns* hold the prompts, padded on the left."""
    last: Layout

    def pack(
        decoder: Module, args: object, kwargs: dict[str, Any]
    ) -> tuple[object, dict[str, Any]]:
        nonlocal last
        ids: Tensor = kwargs["input_ids"]
        last = layout(ids, kwargs["attention_mask"], columns)
        ids = ids.flatten()[last.source]
        return args, kwargs | {
            "input_ids": ids,
            "attention_mask": last.mask,
            "position_ids": last.position,
        }

    def unpack(decoder: Module, args: object, output: Any) -> None:
        states, place = output.last_hidden_state.flatten(0, 1), last.place
        # A GPU adds the gradients of equal indices in any order. Of those read by several rows only the ends of prompts
        # have any, which this sums in one order.
        own = last.group[:, None] == torch.arange(len(last.ends), device=place.device)  # (B, U)
        ends = torch.where(own[..., None], states.index_select(0, last.ends), 0.0).sum(1)
        states = torch.cat((states, ends)).index_select(0, place.flatten())
        output.last_hidden_state = states.view(*place.shape, -1)

    with (
        decoder.register_forward_pre_hook(pack, with_kwargs=True),
        decoder.register_forward_hook(unpack),
    ):
        yield


def check(model: Module) -> None:
    """Raise UsageError unless every layer of *model* is full attention by torch's kernel, which takes any mask."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or attention_of(model) != "sdpa":
        raise UsageError(
            "is for models with full attention in every layer; leave it out.",
            option="share_prompts",
        )


def layout(ids: Tensor, mask: Tensor, columns: int) -> Layout:
    """The packed layout of rows of *ids* (B, T) with their attention *mask*; the first *columns* hold the prompts."""
    present, column = mask.bool(), torch.arange(ids.shape[1], device=ids.device)
    in_prompt = column < columns
    prompts = ids[:, :columns].masked_fill(~present[:, :columns], -1)
    _, group = prompts.unique(dim=0, return_inverse=True)  # (B,)
    prompt, completion = present[:, :columns].sum(1), present[:, columns:].sum(1)  # (B,)
    order = group.argsort(stable=True)
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = group[order].diff() > 0
    leaders = order[first]  # (U,): the row of each prompt whose copy stays
    before = (
        completion[order].cumsum(0) - completion[order]
    )  # tokens of earlier completions, of all prompts
    start = torch.empty_like(prompt)  # (B,): where a completion begins in its packed row
    start[order] = before - before[first][group[order]] + prompt[order]
    length = int((start + completion).max())

    position = column - columns + prompt[:, None]  # (B, T), of each token in its own row
    offset = torch.where(in_prompt, position, position - prompt[:, None] + start[:, None])
    place = torch.where(present, group[:, None] * length + offset, 0)
    stays = present & ~in_prompt
    stays[leaders] = present[leaders]
    row, token = stays.nonzero(as_tuple=True)
    source, positions, segment = (
        ids.new_full((len(leaders) * length,), value) for value in (0, 0, -1)
    )
    source[place[stays]] = row * len(column) + token
    positions[place[stays]] = position[stays]
    segment[place[stays]] = torch.where(in_prompt[token], 0, row + 1)  # 0: the prompt; -1: padding
    source, positions, segment = (
        part.view(len(leaders), length) for part in (source, positions, segment)
    )
    seen = (segment[:, None] == 0) | (segment[:, None] == segment[:, :, None])
    ends = place[leaders, columns - 1]
    place[:, columns - 1] = len(leaders) * length + torch.arange(len(ids), device=ids.device)
    return Layout(source, positions, seen.tril()[:, None], place, group, ends)

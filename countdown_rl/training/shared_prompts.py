"""Shared prompts: the forward pass of the loss computes the prompt of a group once.

The completions of a prompt stand one after another behind a single copy of it, and a mask keeps each from seeing the
others ("Prefix Grouper", Liu et al. 2025, arXiv:2506.05433). Hidden states, loss and gradient are those of separate
rows, up to rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from countdown_rl.core.errors import UsageError
from countdown_rl.models.transformers_internals import attention_of


class Layout(NamedTuple):
    """Rows (B, T) packed into one row a prompt (U, L).

    Attributes:
        source: the flat index in (B, T) of each packed token, (U, L).
        position: its position in its own row, (U, L).
        mask: the packed tokens that each may see, (U, 1, L, L).
        place: the flat index in (U, L) of each token of a row, (B, T); any one for padding.
    """

    source: Tensor
    position: Tensor
    mask: Tensor
    place: Tensor


class SharedPrompts:
    """Hooks on the decoder of *model*, which pack the rows of a forward pass within :meth:`packed`."""

    def __init__(self, model: Any) -> None:
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        decoder = base.get_decoder()
        decoder.register_forward_pre_hook(self._pack, with_kwargs=True)
        decoder.register_forward_hook(self._unpack)
        self._columns: int | None = None
        self._layout: Layout | None = None

    @contextmanager
    def packed(self, columns: int) -> Iterator[None]:
        """Share prompts in forward passes of rows whose prompts are their first *columns*, padded on the left."""
        self._columns = columns
        try:
            yield
        finally:
            self._columns = None

    def _pack(self, decoder: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if self._columns is None:
            return None
        ids: Tensor = kwargs["input_ids"]
        self._layout = layout(ids, kwargs["attention_mask"], self._columns)
        changes = {
            "input_ids": ids.flatten()[self._layout.source],
            "attention_mask": self._layout.mask,
            "position_ids": self._layout.position,
        }
        return args, kwargs | changes

    def _unpack(self, decoder: Any, args: Any, output: Any) -> None:
        if self._columns is None or self._layout is None:
            return
        states, place = output.last_hidden_state, self._layout.place
        output.last_hidden_state = states.flatten(0, 1).index_select(0, place.flatten()).view(*place.shape, -1)


def check(model: Any) -> None:
    """Raise UsageError unless every layer of *model* is full attention by torch's kernel, which takes any mask."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or attention_of(model) != "sdpa":
        raise UsageError("--share-prompts is for models with full attention in every layer; leave it out.")


def layout(ids: Tensor, mask: Tensor, columns: int) -> Layout:
    """The packed layout of rows of *ids* (B, T) with their attention *mask*; prompts are the first *columns*."""
    present, column = mask.bool(), torch.arange(ids.shape[1], device=ids.device)
    in_prompt = column < columns
    prompts = ids[:, :columns].masked_fill(~present[:, :columns], -1)
    _, group = prompts.unique(dim=0, return_inverse=True)  # (B,)
    prompt, completion = present[:, :columns].sum(1), present[:, columns:].sum(1)  # (B,)
    order = group.argsort(stable=True)
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = group[order].diff() > 0
    leaders = order[first]  # (U,): the row of each prompt whose copy stays
    before = completion[order].cumsum(0) - completion[order]  # tokens of earlier completions, of all prompts
    start = torch.empty_like(prompt)  # (B,): where a completion begins in its packed row
    start[order] = before - before[first][group[order]] + prompt[order]
    length = int((start + completion).max())

    position = column - columns + prompt[:, None]  # (B, T), of each token in its own row
    offset = torch.where(in_prompt, position, position - prompt[:, None] + start[:, None])
    place = torch.where(present, group[:, None] * length + offset, 0)
    stays = present & ~in_prompt
    stays[leaders] = present[leaders]
    row, token = stays.nonzero(as_tuple=True)
    source, positions, segment = (ids.new_full((len(leaders) * length,), value) for value in (0, 0, -1))
    source[place[stays]] = row * len(column) + token
    positions[place[stays]] = position[stays]
    segment[place[stays]] = torch.where(in_prompt[token], 0, row + 1)  # 0: the prompt; -1: padding
    source, positions, segment = (part.view(len(leaders), length) for part in (source, positions, segment))
    seen = (segment[:, None] == 0) | (segment[:, None] == segment[:, :, None])
    return Layout(source, positions, seen.tril()[:, None], place)

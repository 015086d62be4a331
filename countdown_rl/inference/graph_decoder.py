"""Decoding by CUDA graphs, for any causal model of transformers with full attention, PEFT's LoRA and 4-bit layers too.

``generate`` launches thousands of small kernels for each token, so a small model waits for Python and not for the card.
Here one decoding step over a static cache is captured as a CUDA graph and replayed. Each distinct prompt is read once,
the host looks at the tokens every few steps only, and finished rows are dropped by a smaller graph. Without CUDA the
same steps run one by one.

Shapes: B rows, U distinct prompts, P prompt columns, S columns of the cache, V vocabulary.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from countdown_rl.inference.stop import Stop
from countdown_rl.models.transformers_internals import attention_of, has_static_cache

#: Steps between two looks of the host at the tokens.
LOOK_EVERY = 8
#: The columns of a cache are a multiple of this.
_COLUMNS = 16
#: Fewest rows of a graph; finished rows are dropped where half of the rows are left.
_MIN_ROWS = 8


def supports(model: Any) -> bool:
    """Return True if all layers of *model* have full attention over a static cache, and no weight is sharded."""
    from torch.distributed.tensor import DTensor
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not has_static_cache(base) or attention_of(base) != "sdpa":
        return False
    sharded = any(isinstance(weight, DTensor) or not weight.numel() for weight in base.parameters())
    cache = StaticCache(config=base.config.get_text_config(), max_cache_len=_COLUMNS)
    return not sharded and all(type(layer) is StaticLayer for layer in cache.layers)


class GraphDecoder:
    """Decoder over the weights of *model*, read where they lie. A model that cannot be captured runs step by step."""

    def __init__(self, model: Any) -> None:
        self.model, self.graphs = model, model.device.type == "cuda"
        self.cache_dtype = model.dtype

    @torch.no_grad()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Stop,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        generator: torch.Generator | None = None,
        on_step: Callable[[Sequence[int]], None] | None = None,
    ) -> list[list[int]]:
        """Complete each of *prompts* (token ids), as :meth:`cpu_decoder.Decoder.decode`.

        Args:
            generator: of random numbers on the model's device.
        """
        warpers = _warpers(temperature, top_k, top_p, min_p)

        def sample(logits: Tensor) -> Tensor:  # (B, V) -> (B,)
            if not temperature:
                return logits.argmax(-1)
            scores = logits.float()
            for warper in warpers:
                scores = warper(None, scores)
            # The Gumbel-max trick samples without a look of the host, which torch.multinomial takes.
            return (scores - torch.empty_like(scores).exponential_(generator=generator).log_()).argmax(-1)

        logits, steps = self._read(prompts, max_new_tokens)
        completions: list[list[int]] = [[] for _ in prompts]
        rows: list[int | None] = list(range(len(prompts)))  # the completion of each row, None where it has ended
        sampled: list[Tensor] = []
        for count in range(1, max_new_tokens + 1):
            tokens = sample(logits)
            sampled.append(tokens)
            if count % LOOK_EVERY == 0 or count == max_new_tokens:
                for place, added in enumerate(torch.stack(sampled, 1).tolist()):
                    if (index := rows[place]) is not None:
                        ids = completions[index] + added
                        completions[index] = stop.cut(ids, len(completions[index]))
                        if len(completions[index]) < len(ids) or stop(ids):
                            rows[place] = None
                sampled.clear()
                active = [place for place, index in enumerate(rows) if index is not None]
                if not active or count == max_new_tokens:
                    break
                if on_step:
                    on_step(completions[rows[active[0]] or 0])
                size = max(_MIN_ROWS, 1 << (len(active) - 1).bit_length())
                if size <= steps.rows // 2:
                    kept = active + active[:1] * (size - len(active))
                    rows = [rows[place] for place in active] + [None] * (size - len(active))
                    places = torch.tensor(kept, device=tokens.device)
                    steps, tokens = steps.take(places), tokens[places]
            logits = steps.step(tokens)
        return completions

    def _read(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[Tensor, "_Steps"]:
        """The logits (B, V) of the first new tokens, and the steps after *prompts*, each distinct one read once."""
        from transformers import StaticCache

        device = self.model.device
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        width = max(map(len, distinct))
        columns = -(-(width + max_new_tokens) // _COLUMNS) * _COLUMNS
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=device)
        lengths = torch.tensor([[len(prompt)] for prompt in distinct], device=device)
        seen = torch.arange(width, device=device) >= width - lengths  # (U, P)
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=device)  # a row of padding sees something
        mask = F.pad((causal & seen[:, None] | itself)[:, None], (0, columns - width))  # (U, 1, P, S)
        positions = (torch.arange(width, device=device) - (width - lengths)).clamp(min=0)
        cache = StaticCache(config=self.model.config.get_text_config(), max_cache_len=columns)
        logits = _forward(self.model, cache, ids, mask, positions)
        owner = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts], device=device)
        column = torch.full((1,), width, device=device)
        return logits[owner], _Steps(self, cache, owner, F.pad(seen, (0, columns - width)), lengths, column)


class _Steps:
    """Steps of *rows* of a cache, copied into a cache of their own, and captured as a graph at the first step.

    Args:
        rows: (B,) indices of rows of *cache*, *seen* and *position*.
        seen: (R, S), True at the columns that hold a token.
        position: (R, 1) of the next token, without padding.
        column: (1,) of the cache, where the next token goes.
    """

    def __init__(
        self, decoder: GraphDecoder, cache: Any, rows: Tensor, seen: Tensor, position: Tensor, column: Tensor
    ) -> None:
        from transformers import StaticCache

        self._decoder, self.rows = decoder, len(rows)
        self._cache = StaticCache(config=decoder.model.config.get_text_config(), max_cache_len=seen.shape[1])
        for ours, theirs in zip(self._cache.layers, cache.layers, strict=True):
            ours.lazy_initialization(theirs.keys[rows], theirs.values[rows])
            torch.index_select(theirs.keys, 0, rows, out=ours.keys)
            torch.index_select(theirs.values, 0, rows, out=ours.values)
            ours.cumulative_length.copy_(theirs.cumulative_length)
        # The graph reads and writes these tensors, so they are changed in place only.
        self._position, self._column, self._mask = position[rows], column.clone(), seen[rows][:, None, None]
        self._ids = torch.zeros_like(self._position)
        self._graph: Any = None
        self._logits: Any = None

    def take(self, rows: Tensor) -> "_Steps":
        """The steps of *rows* alone."""
        return _Steps(self._decoder, self._cache, rows, self._mask[:, 0, 0], self._position, self._column)

    def step(self, tokens: Tensor) -> Tensor:
        """Append *tokens* (B,) and return the logits (B, V) of the next ones, valid until the next step."""
        self._ids.copy_(tokens[:, None])
        if self._decoder.graphs and self._graph is None:
            self._capture()
        if self._graph is None:
            return self._step()
        self._graph.replay()
        logits: Tensor = self._logits
        return logits

    def _step(self) -> Tensor:
        self._mask.index_fill_(3, self._column, True)  # transformers takes a mask of 4 dimensions as it is
        logits = _forward(self._decoder.model, self._cache, self._ids, self._mask, self._position)
        self._position += 1
        self._column += 1
        return logits

    def _capture(self) -> None:
        """Record :meth:`_step` as a graph, and leave all state as it was."""
        state = [self._position, self._column, self._mask, *(layer.cumulative_length for layer in self._cache.layers)]
        before = [part.clone() for part in state]

        def restore() -> None:
            for part, value in zip(state, before, strict=True):
                part.copy_(value)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # loads kernels and lets libraries choose algorithms, which capture forbids
                self._step()
                restore()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._logits = self._step()
        except RuntimeError as error:
            self._decoder.graphs = False
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"no CUDA graph of this model, completions take longer: {reason}", stacklevel=2)
        else:
            self._graph = graph
        restore()


def _forward(model: Any, cache: Any, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """The logits (B, V) after the last column of *ids*."""
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


def _warpers(temperature: float, top_k: int, top_p: float, min_p: float) -> list[Any]:
    """The samplers of transformers in its order."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    return [
        *([TemperatureLogitsWarper(temperature)] if temperature not in (0.0, 1.0) else []),
        *([TopKLogitsWarper(top_k)] if top_k else []),
        *([TopPLogitsWarper(top_p)] if top_p < 1.0 else []),
        *([MinPLogitsWarper(min_p)] if min_p else []),
    ]

"""Decoding by CUDA graphs, for any causal model of transformers with full attention, PEFT's LoRA and 4-bit layers too.

``generate`` launches thousands of small kernels for each token, so a small model waits for Python. Here one decoding
step over a static cache is captured as a CUDA graph and replayed. Each distinct prompt is read once, the host reads the
tokens every few steps only, and finished rows are dropped by a smaller graph. Without CUDA the same steps run one by
one.

Shapes: B rows, U distinct prompts, P prompt columns, S columns of the cache, V vocabulary.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from countdown_rl.core.errors import causes, first_line, out_of_memory
from countdown_rl.inference.sampling import Decoding, distribution
from countdown_rl.inference.stop import Stop
from countdown_rl.models.transformers_internals import attention_of, has_static_cache

#: Steps between two reads of the tokens by the host.
LOOK_EVERY = 8
#: The columns of a cache are a multiple of this, so that batches of similar lengths share their graphs.
_COLUMNS = 64
#: Fewest rows of a graph, whose rows are a power of two; finished rows are dropped when a quarter of them is left.
_MIN_ROWS = 8


def supports(model: Any) -> bool:
    """Return True if all layers of *model* have full attention over a static cache, and no weight is sharded."""
    from torch.distributed.tensor import DTensor

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not has_static_cache(base) or attention_of(base) != "sdpa":
        return False
    sharded = any(isinstance(weight, DTensor) or not weight.numel() for weight in base.parameters())
    cache = StaticCache(config=base.config.get_text_config(), max_cache_len=_COLUMNS)
    return not sharded and all(type(layer) is StaticLayer for layer in cache.layers)


class _CacheLayer(StaticLayer):
    """Static cache of a layer in the type of the values: under autocast, rotating keys of fp32 weights leaves fp32."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states.to(value_states.dtype), value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


class GraphDecoder:
    """Decoder over the weights of *model*, which are not copied. If capture fails, it runs step by step.

    Caches and graphs are kept for later batches, and read the weights where an optimizer changed them in place.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.graphs = model, model.device.type == "cuda"
        self.cache_dtype = model.dtype
        self.pool: Any = None  # of all graphs, since one runs at a time
        self._kept: dict[int, _Steps] = {}  # by rows
        self._weights: Any = None

    def release(self) -> None:
        """Free caches and graphs."""
        self._kept, self.pool = {}, None

    def _columns(self, needed: int) -> int:
        """The columns of caches that hold as many as *needed*; frees kept ones that do not, or whose weights moved."""
        weights = getattr(self.model, "active_adapter", None), [weight.data_ptr() for weight in self.model.parameters()]
        kept = max((steps.columns for steps in self._kept.values()), default=0)
        if kept < needed or weights != self._weights:
            self.release()
            self._weights, kept = weights, -(-needed // _COLUMNS) * _COLUMNS
        return kept

    def steps(self, rows: int, columns: int) -> "_Steps":
        """The steps of as many *rows* and *columns*, kept or new."""
        if rows not in self._kept:
            self._kept[rows] = _Steps(self, rows, columns)
        return self._kept[rows]

    @torch.no_grad()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        stop: Stop,
        generator: torch.Generator | None = None,
        on_step: Callable[[list[int]], None] | None = None,
    ) -> list[list[int]]:
        """As :meth:`cpu_decoder.Decoder.decode`, with a *generator* on the model's device."""
        logits, steps = self._read(prompts, decoding.max_new_tokens)
        completions: list[list[int]] = [[] for _ in prompts]
        rows: list[int | None] = list(range(len(prompts)))  # the completion of each row, None once it has ended
        rows += [None] * (steps.rows - len(rows))
        sampled: list[Tensor] = []
        for count in range(1, decoding.max_new_tokens + 1):
            tokens = _sample(logits.float(), decoding, generator)
            sampled.append(tokens)
            if count % LOOK_EVERY == 0 or count == decoding.max_new_tokens:
                added = torch.stack(sampled, 1).cpu()
                may_end = stop.may_end[added].any(1)
                for row, (ids, candidate) in enumerate(zip(added.tolist(), may_end.tolist(), strict=True)):
                    if (index := rows[row]) is not None:
                        start = len(completions[index])
                        completions[index] += ids
                        if candidate:
                            completions[index] = stop.cut(completions[index], start)
                            if stop(completions[index]):
                                rows[row] = None
                sampled.clear()
                active = [row for row, index in enumerate(rows) if index is not None]
                if not active or count == decoding.max_new_tokens:
                    break
                if on_step:
                    on_step(completions[rows[active[0]] or 0])
                size = steps.rows
                while size // 4 >= max(_MIN_ROWS, len(active)):
                    size //= 4
                if size < steps.rows:
                    steps, kept = steps.take(active, size)
                    rows = [rows[row] for row in active] + [None] * (steps.rows - len(active))
                    tokens = tokens[kept]
            logits = steps.step(tokens)
        return completions

    def forward(self, cache: Any, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """The logits (B, V) after the last column of *ids*; *mask* (B, 1, columns of ids, S)."""
        output = self.model(
            input_ids=ids,
            attention_mask=mask,  # transformers uses a mask of 4 dimensions as it is
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def cache(self, columns: int) -> Any:
        """An empty static cache."""
        cache = StaticCache(config=self.model.config.get_text_config(), max_cache_len=columns)
        cache.layers = [_CacheLayer(columns) for _ in cache.layers]
        return cache

    def _read(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[Tensor, "_Steps"]:
        """The logits (B, V) of the first new tokens, and the steps after *prompts*, each distinct one read once."""
        device = self.model.device
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        width = max(map(len, distinct))
        columns = self._columns(width + max_new_tokens)
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=device)
        lengths = torch.tensor([[len(prompt)] for prompt in distinct], device=device)
        seen = torch.arange(width, device=device) >= width - lengths  # (U, P)
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=device)  # so that no row of the softmax is empty
        mask = F.pad((causal & seen[:, None] | itself)[:, None], (0, columns - width))  # (U, 1, P, S)
        positions = (torch.arange(width, device=device) - (width - lengths)).clamp(min=0)
        cache = self.cache(columns)
        logits = self.forward(cache, ids, mask, positions)
        indices = {prompt: index for index, prompt in enumerate(distinct)}
        steps = self.steps(max(_MIN_ROWS, 1 << (len(prompts) - 1).bit_length()), columns)
        column = torch.full((1,), width, device=device)
        of_rows = [indices[tuple(prompt)] for prompt in prompts]
        rows = steps.load(cache, of_rows, F.pad(seen, (0, columns - width)), lengths, column)
        return logits[rows], steps


class _Steps:
    """Steps of as many *rows* (B) over a static cache of *columns* (S), captured as a graph at the first step."""

    def __init__(self, decoder: GraphDecoder, rows: int, columns: int) -> None:
        self._decoder, self.rows, self.columns = decoder, rows, columns
        self._cache, device = decoder.cache(columns), decoder.model.device
        # The graph reads and writes these tensors, so they are changed in place only.
        self._ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._position, self._column = torch.zeros_like(self._ids), torch.zeros_like(self._ids[0])
        self._mask = torch.zeros(rows, 1, 1, columns, dtype=torch.bool, device=device)
        self._graph: Any = None
        self._logits: Any = None

    def load(self, cache: Any, rows: list[int], seen: Tensor, position: Tensor, column: Tensor) -> Tensor:
        """Begin after *rows* of another *cache*, the first one repeated to fill the batch; returns these rows (B,).

        *seen* (R, S) is True at columns that hold a token. The next token goes to *column* (1,); its *position* (R, 1)
        does not count padding.
        """
        chosen = torch.tensor(rows + rows[:1] * (self.rows - len(rows)), device=seen.device)
        for copy, layer in zip(self._cache.layers, cache.layers, strict=True):
            if not copy.is_initialized:
                copy.lazy_initialization(
                    *(part[:1].expand(self.rows, -1, -1, -1) for part in (layer.keys, layer.values))
                )
            torch.index_select(layer.keys, 0, chosen, out=copy.keys)
            torch.index_select(layer.values, 0, chosen, out=copy.values)
            copy.cumulative_length.copy_(layer.cumulative_length)
        self._position.copy_(position[chosen])
        self._column.copy_(column)
        self._mask.copy_(seen[chosen][:, None, None])
        return chosen

    def take(self, rows: list[int], size: int) -> tuple["_Steps", Tensor]:
        """The steps of *rows* alone in a batch of *size*, and the rows (B,) that fill it."""
        steps = self._decoder.steps(size, self.columns)
        return steps, steps.load(self._cache, rows, self._mask[:, 0, 0], self._position, self._column)

    def step(self, tokens: Tensor) -> Tensor:
        """Append *tokens* (B,) and return the logits (B, V) of the next ones, valid until the next step."""
        self._ids.copy_(tokens[:, None])
        if self._decoder.graphs and self._graph is None:
            self._capture()
        if not self._decoder.graphs:
            return self._step()
        self._graph.replay()
        logits: Tensor = self._logits
        return logits

    def _step(self) -> Tensor:
        self._mask.index_fill_(3, self._column, True)
        logits = self._decoder.forward(self._cache, self._ids, self._mask, self._position)
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

        graph, side, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            expected = self._step().clone()  # loads kernels and chooses algorithms, which a capture forbids
            restore()
        stream.wait_stream(side)
        try:
            with _reads_raise():
                self._step()
            restore()
            # After a failed capture torch leaves its stream the current one.
            pool = self._decoder.pool
            with torch.cuda.stream(stream), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._logits = self._step()
            restore()
            graph.replay()
            self._check(expected)
        except RuntimeError as error:
            if exhausted := next(filter(out_of_memory, causes(error)), None):
                raise exhausted from None  # the batch is halved
            self._decoder.graphs = False
            warnings.warn(f"no CUDA graph of this model, completions take longer: {first_line(error)}", stacklevel=2)
        else:
            self._graph, self._decoder.pool = graph, graph.pool()
        restore()

    def _check(self, expected: Tensor) -> None:
        """Raise RuntimeError if the replayed logits differ from those *expected* by more than rounding."""
        limit = torch.finfo(self._cache.layers[0].values.dtype).eps ** 0.5 * float(expected.abs().max())
        difference = float((self._logits - expected).abs().max())
        if not difference <= limit:
            raise RuntimeError(f"its logits differ from those of a step without it by {difference:.2g}")


@contextmanager
def _reads_raise() -> Iterator[None]:
    """Raise RuntimeError where the host reads a value, which in a capture would leave the allocator and the random
    numbers of the process in capture."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _sample(logits: Tensor, decoding: Decoding, generator: torch.Generator | None) -> Tensor:
    """A token for each row of *logits* (B, V); the exponential race samples without a read by the host."""
    if decoding.temperature == 0:
        return logits.argmax(-1)
    probabilities = distribution(logits, decoding)
    return (probabilities / torch.empty_like(probabilities).exponential_(generator=generator)).argmax(-1)

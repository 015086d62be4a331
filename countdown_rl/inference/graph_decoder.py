"""Decoding by CUDA graphs, for any causal model of transformers with full attention, PEFT's LoRA and 4-bit layers too.

``generate`` launches thousands of small kernels for each token, so a small model waits for Python. Here one decoding
step over a static cache, with the sampling of a token, is captured as a CUDA graph and replayed. Llama, Qwen2 and Qwen3
have the few kernels of :mod:`layers`, other models those of their own forward pass. Each distinct prompt is read once,
the host reads the tokens every few steps only, and finished rows are dropped by a smaller graph. Without CUDA the same
steps run one by one.

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
from countdown_rl.inference import layers
from countdown_rl.inference.layers import Copy, Layer, Linear, normed, rotation
from countdown_rl.inference.sampling import Decoding, Stop, distribution
from countdown_rl.models.transformers_internals import attention_of, has_static_cache

#: Steps between two reads of the tokens by the host.
LOOK_EVERY = 8
#: The columns of a cache are a multiple of this, so that batches of similar lengths share their graphs.
_COLUMNS = 64
#: Fewest rows of a graph, whose rows are a power of two; finished rows are dropped when a quarter of them is left.
_MIN_ROWS = 8
_GREEDY = Decoding(1)


def supports(model: Any) -> bool:
    """Return True if all layers of *model* have full attention over a static cache, and no weight is sharded."""
    from torch.distributed.tensor import DTensor

    base = layers.base_of(model)
    if not has_static_cache(base) or attention_of(base) != "sdpa":
        return False
    sharded = any(isinstance(weight, DTensor) or not weight.numel() for weight in base.parameters())
    cache = StaticCache(config=base.config.get_text_config(), max_cache_len=_COLUMNS)
    return not sharded and all(type(layer) is StaticLayer for layer in cache.layers)


class _CacheLayer(StaticLayer):
    """Static cache of a layer in the type of the values: under autocast, rotating keys of fp32 weights leaves fp32."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states.to(value_states.dtype), value_states)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


class GraphDecoder:
    """Decoder over the weights of *model*, with products in *dtype*. If capture fails, it runs step by step.

    Caches and graphs are kept for later batches. They read the weights where an optimizer changed them in place; the
    matrices of adapters, and weights of another type than *dtype*, are copied once a batch.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        self.model, self.graphs = model, model.device.type == "cuda"
        self.dtype = dtype or model.dtype
        self.cache_dtype = model.dtype
        self.generator = torch.Generator(
            model.device
        )  # of all graphs; a batch gives and takes its state
        self._kept: dict[int, _Steps]  # by rows
        self._layers: list[Layer]
        self._copies: list[Copy]
        self.release()

    def release(self) -> None:
        """Free caches, graphs and copies of weights."""
        self._kept, self._weights = {}, None
        self.pool: Any = None  # of all graphs, since one runs at a time
        self._layers, self._copies = [], []
        self._head: Any = None

    def _columns(self, needed: int) -> int:
        """The columns of caches that hold as many as *needed*; frees kept ones that do not, or whose weights moved."""
        kept = max((steps.columns for steps in self._kept.values()), default=0)
        if kept < needed or self._places() != self._weights:
            self.release()
            self._read_layers()
            self._weights, kept = self._places(), -(-needed // _COLUMNS) * _COLUMNS
        return kept

    def _places(self) -> Any:
        return getattr(self.model, "active_adapter", None), [
            weight.data_ptr() for weight in self.model.parameters()
        ]

    def _read_layers(self) -> None:
        """Lay out the weights for the layers that are written out."""
        if layers.supports(self.model, "llama", "qwen2", "qwen3"):
            base = layers.base_of(self.model)
            hidden = base.get_input_embeddings().weight.dtype
            self._layers = [
                Layer.of(block, base.config, hidden, self._joined) for block in base.model.layers
            ]
            self._head = self._joined(base.get_output_embeddings())

    def _joined(self, *modules: Any) -> Linear:
        """Join layers with the same input; quantized ones stay apart."""
        bases = [getattr(module, "base_layer", module) for module in modules]
        adapters = layers.adapters_of(modules, self.dtype)
        self._copies += adapters.copies if adapters else []
        if any(type(base) is not torch.nn.Linear for base in bases):
            return Linear(None, None, adapters, bases)
        bias = None if bases[0].bias is None else self._shared([base.bias for base in bases])
        return Linear(self._shared([base.weight for base in bases]), bias, adapters)

    @torch.no_grad()
    def _shared(self, parameters: list[Any]) -> Tensor:
        """One tensor of *parameters*. They become its parts, so that no memory holds them twice; those of another type
        are copied."""
        same = parameters[0].dtype == self.dtype
        if same and len(parameters) == 1:
            return parameters[0].detach()
        joined = torch.cat([parameter.to(self.dtype) for parameter in parameters])
        for parameter, part in zip(
            parameters, joined.split([len(each) for each in parameters]), strict=True
        ):
            if same:
                parameter.data = part
            else:
                self._copies.append(Copy(part, parameter))
        return joined

    def refresh(self) -> None:
        """Copy the weights that are read in another place or type than they are trained in."""
        for copy in self._copies:
            copy.refresh()

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
        """As :meth:`cpu_decoder.Decoder.decode`, with a *generator* on the model's device.

        Tokens are those that the steps sample without graphs, for the same state of the generator.
        """
        logits, steps = self._read(prompts, decoding.max_new_tokens)
        generator = generator or _default_generator(self.model.device)
        self.generator.set_state(generator.get_state())
        steps.tokens.copy_(_sample(logits, decoding, self.generator))
        completions: list[list[int]] = [[] for _ in prompts]
        rows: list[int | None] = list(
            range(len(prompts))
        )  # the completion of each row, None once it has ended
        rows += [None] * (steps.rows - len(rows))
        sampled: list[Tensor] = []
        for count in range(1, decoding.max_new_tokens + 1):
            if count > 1:
                steps.step(decoding=decoding)
            sampled.append(steps.tokens.clone())
            if count % LOOK_EVERY == 0 or count == decoding.max_new_tokens:
                added = torch.stack(sampled, 1).cpu()
                may_end = stop.may_end[added].any(1)
                for row, (ids, candidate) in enumerate(
                    zip(added.tolist(), may_end.tolist(), strict=True)
                ):
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
                    steps = steps.take(active, size)
                    rows = [rows[row] for row in active] + [None] * (steps.rows - len(active))
        generator.set_state(self.generator.get_state())
        return completions

    def forward(self, cache: Any, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """The logits (B, V) after the last column of *ids*, by the model; *mask* (B, 1, columns of ids, S)."""
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

    def forward_one(
        self, cache: Any, ids: Tensor, mask: Tensor, positions: Tensor, column: Tensor
    ) -> Tensor:
        """As :meth:`forward` for one *column* of *ids* (B, 1), in few kernels where the layers are written out."""
        if not self._layers:
            return self.forward(cache, ids, mask, positions)
        model = layers.base_of(self.model).model
        hidden = model.embed_tokens(ids[:, 0])  # (B, H)
        cos, sin = rotation(model.rotary_emb, hidden, positions)  # (B, 1, D)
        bias = torch.zeros_like(mask, dtype=cache.layers[0].dtype).masked_fill_(~mask, -torch.inf)
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            q, k, v = (
                part.to(cached.dtype) for part in layer.attention_input(hidden, cos, sin)
            )  # (B, heads, D)
            keys = cached.keys.index_copy_(2, column, k[:, :, None])
            values = cached.values.index_copy_(2, column, v[:, :, None])
            # The query heads of one key head take the place of a sequence of queries: keys need no repeating.
            queries = q.view(len(q), keys.size(1), -1, keys.size(3))
            attended = F.scaled_dot_product_attention(queries, keys, values, bias)
            hidden = layer.output(hidden, attended.flatten(1))
        return self._head(
            normed(hidden, model.norm.weight, self._layers[0].eps), hidden.dtype, keep_dtype=True
        )

    def cache(self, columns: int) -> Any:
        """An empty static cache."""
        cache = StaticCache(config=self.model.config.get_text_config(), max_cache_len=columns)
        cache.layers = [_CacheLayer(columns) for _ in cache.layers]
        return cache

    def _read(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[Tensor, "_Steps"]:
        """The logits (B, V) of the first new tokens, and the steps after *prompts*, each distinct one read once."""
        device = self.model.device
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        width = max(map(len, distinct))
        columns = self._columns(width + max_new_tokens)
        self.refresh()
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=device
        )
        lengths = torch.tensor([[len(prompt)] for prompt in distinct], device=device)
        seen = torch.arange(width, device=device) >= width - lengths  # (U, P)
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        itself = torch.eye(
            width, dtype=torch.bool, device=device
        )  # so that no row of the softmax is empty
        mask = F.pad(
            (causal & seen[:, None] | itself)[:, None], (0, columns - width)
        )  # (U, 1, P, S)
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
    """Steps of as many *rows* (B) over a static cache of *columns* (S), captured as a graph at the first step of each
    way to sample. The *tokens* (B,) are those sampled last."""

    def __init__(self, decoder: GraphDecoder, rows: int, columns: int) -> None:
        self._decoder, self.rows, self.columns = decoder, rows, columns
        self._cache, device = decoder.cache(columns), decoder.model.device
        # The graphs read and write these tensors, so they are changed in place only.
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self._position = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._column = torch.zeros_like(self.tokens[:1])
        self._mask = torch.zeros(rows, 1, 1, columns, dtype=torch.bool, device=device)
        self._graphs: dict[Decoding, tuple[Any, Tensor]] = {}  # with their logits

    def load(
        self, cache: Any, rows: list[int], seen: Tensor, position: Tensor, column: Tensor
    ) -> Tensor:
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

    def take(self, rows: list[int], size: int) -> "_Steps":
        """The steps of *rows* alone in a batch of *size*."""
        steps = self._decoder.steps(size, self.columns)
        chosen = steps.load(self._cache, rows, self._mask[:, 0, 0], self._position, self._column)
        steps.tokens.copy_(self.tokens[chosen])
        return steps

    def step(self, tokens: Tensor | None = None, decoding: Decoding = _GREEDY) -> Tensor:
        """Append *tokens* (B,), by default those sampled last, and sample the next ones; returns their logits (B, V),
        valid until the next step. With *tokens* given, weights may have changed since the last step."""
        if tokens is not None:
            self.tokens.copy_(tokens)
            self._decoder.refresh()
        decoding = Decoding(1, **decoding.samplers())  # all else is the same in every graph
        if self._decoder.graphs and decoding not in self._graphs:
            self._capture(decoding)
        if not self._decoder.graphs:
            return self._next(decoding)
        graph, logits = self._graphs[decoding]
        graph.replay()
        return logits

    def _next(self, decoding: Decoding) -> Tensor:
        logits = self._step()
        self.tokens.copy_(_sample(logits, decoding, self._decoder.generator))
        return logits

    def _step(self) -> Tensor:
        self._mask.index_fill_(3, self._column, True)
        ids = self.tokens[:, None]
        logits = self._decoder.forward_one(
            self._cache, ids, self._mask, self._position, self._column
        )
        self._position += 1
        self._column += 1
        return logits

    def _capture(self, decoding: Decoding) -> None:
        """Record :meth:`_next` as a graph, and leave all state as it was."""
        state = [self.tokens, self._position, self._column, self._mask]
        state += [layer.cumulative_length for layer in self._cache.layers]
        before, generator = [part.clone() for part in state], self._decoder.generator
        random = generator.get_state()

        def restore() -> None:
            for part, value in zip(state, before, strict=True):
                part.copy_(value)
            generator.set_state(random)

        graph, side, stream = (
            torch.cuda.CUDAGraph(),
            torch.cuda.Stream(),
            torch.cuda.current_stream(),
        )
        graph.register_generator_state(generator)
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            expected = self._next(
                decoding
            ).clone()  # loads kernels and chooses algorithms, which a capture forbids
            restore()
        stream.wait_stream(side)
        try:
            with _reads_raise():
                self._next(decoding)
            restore()
            # After a failed capture torch leaves its stream the current one.
            pool = self._decoder.pool
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
            ):
                logits = self._next(decoding)
            restore()
            graph.replay()
            self._check(logits, expected)
        except RuntimeError as error:
            if exhausted := next(filter(out_of_memory, causes(error)), None):
                raise exhausted from None  # the batch is halved
            self._decoder.graphs = False
            warnings.warn(
                f"no CUDA graph of this model, completions take longer: {first_line(error)}.",
                stacklevel=2,
            )
        else:
            self._graphs[decoding], self._decoder.pool = (graph, logits), graph.pool()
        restore()

    def _check(self, logits: Tensor, expected: Tensor) -> None:
        """Raise RuntimeError if the replayed *logits* differ from those *expected* by more than rounding."""
        limit = torch.finfo(self._cache.layers[0].values.dtype).eps ** 0.5 * float(
            expected.abs().max()
        )
        difference = float((logits - expected).abs().max())
        if not difference <= limit:
            raise RuntimeError(
                f"its logits differ from those of a step without it by {difference:.2g}"
            )


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
    probabilities = distribution(logits.float(), decoding)
    return (
        probabilities / torch.empty_like(probabilities).exponential_(generator=generator)
    ).argmax(-1)


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator of *device* that ``torch.manual_seed`` seeds."""
    return (
        torch.cuda.default_generators[torch.cuda.current_device()]
        if device.type == "cuda"
        else torch.default_generator
    )

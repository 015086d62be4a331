"""The engine ``transformers``: batched completions of a model in this process."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from countdown_rl.core.errors import ModelError, out_of_memory
from countdown_rl.inference import cpu_decoder
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.engine import STOP, Completion, Engine, to_completion
from countdown_rl.inference.sampling import Decoding, Stop, stopping_criteria
from countdown_rl.models import chat_template, load
from countdown_rl.models.load import Loaded
from countdown_rl.models.protocols import CausalLM
from countdown_rl.models.reference import ModelRef
from countdown_rl.models.shape import ModelShape, check_tokens
from countdown_rl.tasks.task import Row

#: Maximum rows of a batch on a CPU and on a GPU.
MAX_ROWS, MAX_GPU_ROWS = 256, 1024
#: Maximum bytes of main memory for a batch beside the weights.
MAX_BATCH_BYTES = 2 << 30
#: Bytes per row and token of the vocabulary while sampling: logits, warped and sorted ones,
#: probabilities, in fp32.
LOGIT_BYTES = 16


class Generator(Engine):
    """The engine ``transformers``: a model in this process."""

    name = "transformers"
    libraries: tuple[str, ...] = ("peft", "torch", "transformers")

    def __init__(self, loaded: Loaded, decoding: Decoding) -> None:
        self._loaded = loaded
        self._decoding = decoding
        self.tokenizer = loaded.tokenizer
        self.precision = loaded.precision
        self.storage = loaded.storage
        self.device = loaded.device
        self.stop = Stop(loaded.tokenizer, loaded.model, STOP)
        self._decoder = None
        if cpu_decoder.supports(loaded.model):
            self._decoder = cpu_decoder.Decoder(loaded.model, loaded.model.dtype)

    @classmethod
    def load(cls, ref: ModelRef, decoding: Decoding, options: Any) -> "Generator":
        return cls(load.load_model(ref, precision=options.precision), decoding)

    def prepare(self, length: int) -> int | None:
        return ModelShape.of(self._loaded.model.config).context_length

    def max_rows(self, length: int) -> int:
        """As :meth:`Engine.max_rows`.

        A batch may use three quarters of a GPU without the weights, or :data:`MAX_BATCH_BYTES` of
        main memory. It does not depend on what is free, so every run has the same batches.
        """
        import torch

        model = self._loaded.model
        most = MAX_ROWS
        memory = MAX_BATCH_BYTES
        if model.device.type == "cuda":
            most = MAX_GPU_ROWS
            total = torch.cuda.get_device_properties(model.device).total_memory
            memory = (total - sum(weight.nbytes for weight in model.parameters())) * 3 // 4
        shape = ModelShape.of(model.config)
        cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * model.dtype.itemsize
        # The cache is there half again while finished rows are removed.
        row = cache * length * 3 // 2 + LOGIT_BYTES * shape.vocab_size
        return max(1, min(most, memory // row))

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        """Complete a batch, halved as often as it does not fit in memory.

        Raises ModelError if one row alone does not.
        """
        try:
            return self._complete(prompts, number)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(prompts) == 1:
                fault = "the model and one completion do not fit in memory"
                raise ModelError(f"{fault}; give a smaller --max-new-tokens.") from error
        from accelerate.utils.memory import clear_device_cache

        clear_device_cache(garbage_collection=True)
        half = (len(prompts) + 1) // 2
        first = self.complete(prompts[:half], number)
        # Random numbers of its own: no run has so many batches.
        return first + self.complete(prompts[half:], number + (half << 32))

    def _complete(self, prompts: Sequence[Sequence[int]], number: int) -> list[Completion]:
        import torch

        model = self._loaded.model
        check_tokens(model, prompts, self._loaded.ref.source)
        decoding = self._decoding
        seed = (decoding.seed * 1_000_003 + number) % 2**63
        if self._decoder is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
            rows = self._decoder.decode(prompts, decoding, self.stop, generator, self.on_step)
        else:
            torch.manual_seed(seed)
            settings: dict[str, object] = {"do_sample": decoding.temperature > 0}
            if decoding.temperature > 0:
                settings |= decoding.samplers() | {"min_p": decoding.min_p or None}
            settings["max_new_tokens"] = decoding.max_new_tokens
            with torch.inference_mode():
                rows = generate(model, self.stop, prompts, on_step=self.on_step, **settings)
        return [to_completion(self.stop, ids) for ids in rows]


def generate(
    model: CausalLM,
    stop: Stop,
    prompts: Sequence[Sequence[int]],
    *,
    on_step: Callable[[list[int]], None] | None = None,
    **settings: object,
) -> list[list[int]]:
    """Complete each of *prompts* (token ids) by ``generate`` of transformers with *settings*."""
    tokenizer = stop.tokenizer
    batch = tokenizer.pad({"input_ids": list(map(list, prompts))}, return_tensors="pt")
    start = batch["input_ids"].shape[1]
    sequences = model.generate(
        **batch.to(model.device),
        eos_token_id=sorted(stop.ids),
        pad_token_id=tokenizer.pad_token_id,
        stopping_criteria=stopping_criteria(stop, start, on_step),
        **settings,
    )
    return [stop.cut(ids) for ids in sequences[:, start:].tolist()]


def ask(
    loaded: Loaded, row: Row, options: AskOptions, on_text: Callable[[str], None] | None = None
) -> Completion:
    """Complete *row* as an evaluation does.

    Args:
        loaded: the model.
        row: the puzzle.
        options: decoding settings.
        on_text: called with each piece of text as soon as it can be decoded.

    Raises:
        ModelError: the prompt fills the context.
    """
    text = chat_template.render(loaded.tokenizer, row.messages())
    rendered = chat_template.Rendered(text, row.prompt().prefill)
    (ids,) = chat_template.token_ids(loaded.tokenizer, [text])
    limit = options.max_new_tokens
    context = ModelShape.of(loaded.model.config).context_length
    if context is not None:
        limit = min(limit, context - len(ids))
    if limit <= 0:
        raise ModelError(
            f"the model reads {context} tokens, and the prompt alone has {len(ids)}; shorten it."
        )
    generator = Generator(loaded, replace(Decoding.of(options), max_new_tokens=limit))
    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        completion = row.style.joined(rendered.answer, text)
        if on_text and len(completion) > len(shown):
            on_text(completion[len(shown) :])
            shown = completion

    def on_step(tokens: list[int]) -> None:
        text = generator.stop.decode(tokens)
        if not text.endswith("\ufffd"):  # the first tokens of a character
            show(text)

    generator.on_step = on_step
    (completion,) = generator.complete([ids])
    show(completion.text)
    return completion.after(row, rendered.text)

"""The engine ``transformers``: batched completions of a model in this process."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ModelError, out_of_memory
from countdown_rl.inference import cpu_decoder
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.engine import STOP, Completion, Engine, to_completion
from countdown_rl.inference.sampling import Decoding, Stop, stopping_criteria
from countdown_rl.models import chat_template, load
from countdown_rl.models.load import Loaded
from countdown_rl.models.reference import ModelRef
from countdown_rl.models.shape import ModelShape, check_tokens
from countdown_rl.tasks.task import Row

#: Maximum rows of a batch on a CPU and on a GPU, and maximum bytes of main memory for a batch beside the weights.
MAX_ROWS, MAX_GPU_ROWS = 256, 1024
MAX_BATCH_BYTES = 2 << 30
#: Bytes per entry of the vocabulary while a token is sampled: logits, warped and sorted ones, probabilities, in fp32. A
#: GPU that computes in 16 bits has the logits in these too.
LOGIT_BYTES = 16


def main_memory() -> int:
    """Bytes of main memory that the machine and the control group allow this process."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # there is no such file, or it reads "max"
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits)


class Generator(Engine):
    """The engine ``transformers``: a model in this process."""

    name = "transformers"
    libraries: tuple[str, ...] = ("peft", "torch", "transformers")

    def __init__(self, loaded: Loaded, decoding: Decoding) -> None:
        self._loaded, self._decoding = loaded, decoding
        self.tokenizer, self.precision = loaded.tokenizer, loaded.precision
        self.storage, self.device = loaded.storage, loaded.device
        self.stop = Stop(loaded.tokenizer, loaded.model, STOP)
        self._decoder = decoder_of(loaded.model, loaded.model.dtype)

    @classmethod
    def load(cls, ref: ModelRef, decoding: Decoding, options: Any) -> "Generator":
        return cls(load.load_model(ref, precision=options.precision), decoding)

    def prepare(self, length: int) -> int | None:
        return ModelShape.of(self._loaded.model.config).context_length

    def max_rows(self, prompt: int, completion: int) -> int:
        return max_rows(self._loaded.model, self._decoder, prompt, completion)

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        """Complete a batch, halving it as often as it does not fit in memory; ModelError if one row alone does not."""
        try:
            return self._complete(prompts, number)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(prompts) == 1:
                advice = "give a smaller --max-new-tokens"
                raise ModelError(
                    f"the model and one completion do not fit in memory; {advice}."
                ) from error
        from accelerate.utils.memory import clear_device_cache

        self._decoder = None  # with its copy of the weights
        clear_device_cache(garbage_collection=True)
        self._decoder = decoder_of(self._loaded.model, self._loaded.model.dtype)
        half = (len(prompts) + 1) // 2
        # The upper half of the number keeps the random numbers of the halves apart; no run has that many batches.
        return self.complete(prompts[:half], number) + self.complete(
            prompts[half:], number + (half << 32)
        )

    def _complete(self, prompts: Sequence[Sequence[int]], number: int) -> list[Completion]:
        import torch

        check_tokens(self._loaded.model, prompts, self._loaded.ref.source)
        decoding, seed = self._decoding, (self._decoding.seed * 1_000_003 + number) % 2**63
        if self._decoder is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
            completions = self._decoder.decode(
                prompts, decoding, self.stop, generator, self.on_step
            )
        else:
            torch.manual_seed(seed)
            settings: dict[str, Any] = {
                "max_new_tokens": decoding.max_new_tokens,
                "do_sample": False,
            }
            if decoding.temperature > 0:
                settings |= decoding.samplers() | {
                    "do_sample": True,
                    "min_p": decoding.min_p or None,
                }
            with torch.inference_mode():
                completions = generate(
                    self._loaded.model, self.stop, prompts, on_step=self.on_step, **settings
                )
        return [to_completion(self.stop, ids) for ids in completions]


def max_rows(model: Any, decoder: Any, prompt: int, completion: int) -> int:
    """Return the rows of *prompt* tokens and up to *completion* more that fit a batch of *decoder*, or of ``generate``.

    A batch may use three quarters of a GPU without the weights, or a quarter of the main memory up to
    :data:`MAX_BATCH_BYTES`. These are shares of all memory, not of what is free, so every run has the same batches.
    """
    import torch

    if gpu := model.device.type == "cuda":
        most, width = MAX_GPU_ROWS, model.dtype.itemsize
        total = torch.cuda.get_device_properties(model.device).total_memory
        weights = sum(weight.nbytes for weight in model.parameters())
        memory = max(0, total - weights) * 3 // 4
    else:
        most, width = MAX_ROWS, 4 if decoder is None else decoder.cache_dtype.itemsize
        memory = min(MAX_BATCH_BYTES, main_memory() // 4)
    shape = ModelShape.of(model.config)
    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width
    # A block has its input, the normed one, gate, its activation, up and their product, and for LoRA fp32 copies.
    block = shape.intermediate_size * (4 * width + 4) + shape.hidden_size * (2 * width + 4)
    logits = (LOGIT_BYTES + (width if gpu and width < 4 else 0)) * shape.vocab_size
    # The cache is there half again while finished rows are removed.
    decoding = cache * 3 // 2 * (prompt + completion) + logits
    return max(1, min(most, memory // max(decoding, prompt * (cache + block))))


def decoder_of(model: Any, dtype: Any) -> cpu_decoder.Decoder | None:
    """The decoder of this package for *model*, with products in *dtype*; None if it has none."""
    return cpu_decoder.Decoder(model, dtype) if cpu_decoder.supports(model) else None


def generate(
    model: Any,
    stop: Stop,
    prompts: Sequence[Sequence[int]],
    *,
    on_step: Callable[[list[int]], None] | None = None,
    **settings: Any,
) -> list[list[int]]:
    """Complete each of *prompts* (token ids) by ``generate`` of transformers with *settings*."""
    tokenizer = stop.tokenizer
    batch = tokenizer.pad({"input_ids": [list(ids) for ids in prompts]}, return_tensors="pt").to(
        model.device
    )
    start = batch["input_ids"].shape[1]
    sequences = model.generate(
        **batch,
        eos_token_id=sorted(stop.ids),
        pad_token_id=tokenizer.pad_token_id,
        stopping_criteria=stopping_criteria(stop, start, on_step),
        **settings,
    )
    return [stop.cut(ids) for ids in sequences[:, start:].tolist()]


def ask(
    loaded: Loaded, row: Row, options: AskOptions, on_text: Callable[[str], None] | None = None
) -> Completion:
    """Complete *row* as an evaluation does, and call *on_text* with each piece of text as soon as it can be decoded.
    Raises ModelError if the prompt fills the context."""
    prompt = chat_template.Rendered(
        chat_template.render(loaded.tokenizer, row.messages()), row.prompt().prefill
    )
    (ids,) = chat_template.token_ids(loaded.tokenizer, [prompt.text])
    context = ModelShape.of(loaded.model.config).context_length
    limit = min(
        options.max_new_tokens, options.max_new_tokens if context is None else context - len(ids)
    )
    if limit <= 0:
        raise ModelError(
            f"the model reads {context} tokens, and the prompt alone has {len(ids)}; shorten the prompt."
        )
    generator = Generator(loaded, replace(Decoding.of(options), max_new_tokens=limit))
    opening, written = row.style.joined(prompt.answer, ""), ""

    def write(text: str) -> None:
        nonlocal written
        if on_text and len(text) > len(written):
            on_text(text[len(written) :] if written else opening + text)
            written = text

    def on_step(tokens: list[int]) -> None:
        text = generator.stop.decode(tokens)
        if not text.endswith("\ufffd"):  # the first tokens of a character
            write(text)

    generator.on_step = on_step if on_text else None
    (completion,) = generator.complete([ids])
    write(completion.text)
    return completion.after(row, prompt.text)

"""Completions in bulk, in batches of similar length, whatever holds the model."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.models.load import Loaded
from countdown_rl.tasks.response_format import ANSWER_CLOSE

#: Rows a batch has at most, and the main memory that it takes at most beside the weights.
MAX_ROWS = 256
BATCH_BYTES = 2 << 30

#: A completion that has given its answer has nothing more to say.
STOP = ANSWER_CLOSE


@dataclass(frozen=True)
class Decoding:
    """How completions are drawn; temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """What a model wrote: its text, how many tokens that took, and whether it came to an end by itself."""

    text: str
    tokens: int
    ended: bool


def batches(lengths: Sequence[int], fits: Callable[[int], int]) -> Iterator[list[int]]:
    """Row numbers in batches, rows of similar length together; a function of its arguments alone.

    *fits* says how many rows fit one batch whose longest has so many tokens.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        if batch and len(batch) >= fits(lengths[row]):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def fitting(loaded: Loaded, length: int) -> int:
    """How many rows of *length* tokens fit one batch: the same each time on one machine, for the same bytes.

    A row takes its key-value cache, half of that again while finished rows leave it, one layer's activations
    while the prompt is read, and a few copies of its logits; all in fp32, but for a cache in bf16.
    """
    config = loaded.model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    cache = 2 * config.num_hidden_layers * heads * width * length
    row = 4 * ((2 * inner + 4 * config.hidden_size) * length + 4 * config.vocab_size)
    row += (2 if _in_bf16(loaded.model) else 4) * (cache + cache // 2)
    return max(1, min(MAX_ROWS, memory(loaded) // row))


def memory(loaded: Loaded) -> int:
    """Bytes that a batch may take beside the weights.

    Not what happens to be free, which is never the same twice, but a share of what the machine has: half
    of a GPU that the weights leave; a quarter of the main memory, up to what still makes a batch faster.
    """
    import torch

    if str(loaded.device).startswith("cuda"):
        weights = sum(one.numel() * one.element_size() for one in loaded.model.parameters())
        return int(max(0, torch.cuda.get_device_properties(loaded.device).total_memory - weights) // 2)
    return min(BATCH_BYTES, _main_memory() // 4)


def _main_memory() -> int:
    """Bytes of main memory that this process may use, by the machine and by the group it runs in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # there is none, or it says "max"
            found.append(int(Path(limit).read_text()))
    return min(found, default=4 * BATCH_BYTES)


def row_seed(seed: int, number: int, at: int) -> int:
    """A seed for row *at* of batch *number*, for engines that seed each row.

    The number's upper half, where a batch was halved, is how many of its rows came before.
    """
    return seed * 1_000_003 + (number % 2**32) * 4096 + (number >> 32) + at


def room(loaded: Loaded) -> int | None:
    """How many tokens the model can read, prompt and completion together, where its configuration says so."""
    found: int | None = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    return found


def release() -> None:
    """Hand unused memory back to the machine and its GPU."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _decoder(model: Any) -> Any:
    """A decoder of our own for *model*, where there is one."""
    from countdown_rl.inference.cpu_decoder import Decoder, supports

    if not supports(model):
        return None
    if _in_bf16(model):
        from countdown_rl.inference.cpu_decoder_bf16 import Bf16Decoder

        return Bf16Decoder(model)
    return Decoder(model, model.dtype)


def _in_bf16(model: Any) -> bool:
    """Whether *model* is decoded with a key-value cache in bf16."""
    import torch

    from countdown_rl.inference.cpu_decoder import supports

    if model.dtype != torch.bfloat16 or not supports(model):
        return False
    from countdown_rl.inference.cpu_decoder_bf16 import supported

    return supported()


class Generator:
    """Writes completions with one loaded model."""

    def __init__(self, loaded: Loaded, decoding: Decoding) -> None:
        from transformers import GenerationConfig

        from countdown_rl.inference.cpu_decoder import Stop

        self._loaded = loaded
        self._decoding = decoding
        self._stop = Stop(loaded.tokenizer, loaded.model, STOP)
        self._decoder = _decoder(loaded.model)
        # A checkpoint's own ways (penalties, beams, top-k) are not what was asked for.
        ends = loaded.model.generation_config.eos_token_id
        loaded.model.generation_config = GenerationConfig(eos_token_id=ends)

    def complete(
        self, prompts: Sequence[Sequence[int]], number: int = 0, *, on_token: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """Continue each of *prompts* (token ids). Batch *number* of a run draws from random numbers of its own.

        *on_token* is called with each token as it comes; it is for one prompt.
        """
        import torch

        seed = (self._decoding.seed * 1_000_003 + number) % 2**63
        if self._decoder is not None:
            written = self._decoder.decode(
                prompts,
                max_new_tokens=self._decoding.max_new_tokens,
                stop=self._stop,
                temperature=self._decoding.temperature,
                top_p=self._decoding.top_p,
                generator=torch.Generator().manual_seed(seed),
                on_token=on_token,
            )
        else:
            torch.manual_seed(seed)
            written = self._generate(prompts, on_token)
        return [self._completion(ids) for ids in written]

    def _generate(self, prompts: Sequence[Sequence[int]], on_token: Callable[[int], None] | None) -> list[list[int]]:
        import torch
        from transformers import StoppingCriteriaList

        loaded, decoding = self._loaded, self._decoding
        batch = loaded.tokenizer.pad({"input_ids": [list(ids) for ids in prompts]}, return_tensors="pt")
        start = batch["input_ids"].shape[1]

        def over(ids: Any, scores: Any, **kwargs: Any) -> Any:  # (B, S) ids: which rows are done, (B,)
            if on_token is not None:
                on_token(int(ids[0, -1]))
            ends = self._stop.may_end[ids[:, -1].cpu()].tolist()
            done = [end and self._stop(row[start:].tolist()) for end, row in zip(ends, ids, strict=True)]
            return torch.tensor(done, device=ids.device)

        sampling: dict[str, Any] = {"do_sample": False}
        if decoding.temperature > 0:
            sampling = {"do_sample": True, "temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
        with torch.inference_mode():
            whole = loaded.model.generate(
                input_ids=batch["input_ids"].to(loaded.device),
                attention_mask=batch["attention_mask"].to(loaded.device),
                max_new_tokens=decoding.max_new_tokens,
                eos_token_id=sorted(self._stop.ids),
                pad_token_id=loaded.tokenizer.pad_token_id,
                stopping_criteria=StoppingCriteriaList([over]),
                **sampling,
            )
        return [self._stop.cut(ids) for ids in whole[:, start:].tolist()]

    def _completion(self, ids: list[int]) -> Completion:
        text = self._loaded.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(text, len(ids), bool(ids) and self._stop(ids))

"""What writes completions, behind one small interface, each where it is installed.

``transformers`` is this package's own decoder where it fits the model, and ``generate`` elsewhere; it holds
whatever can be loaded. ``llama-cpp`` runs a GGUF file in its own quantized arithmetic, ``vllm`` whole
checkpoints on a GPU. Greedy answers of different engines differ as far as their arithmetic does;
:func:`agreement` measures it.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

from countdown_rl.errors import ModelError, UsageError
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load as models
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks.task import Row

#: The package that each engine needs, as Python imports it and as pip installs it.
PACKAGES = {"llama-cpp": ("xllamacpp", "xllamacpp"), "vllm": ("vllm", "vllm")}


class Engine(Protocol):
    """A model that is held somewhere.

    Attributes:
        name: as ``--engine`` has it.
        tokenizer: what turns its prompts into tokens.
        precision: what its weights are held in.
        path: how they are held.
        device: where.
        note: what a person should know about that.
        libraries: the distributions that decide what it writes.
    """

    name: str
    tokenizer: Any
    precision: str
    path: str
    device: str
    note: str
    libraries: tuple[str, ...]

    def prepare(self, length: int) -> int | None:
        """Make ready for prompts and completions of *length* tokens together.

        Returns:
            How many it can read, where that is known.
        """

    def rows(self, length: int) -> int:
        """How many rows of *length* tokens it takes at once."""

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        """Continue each of *prompts* (token ids); batch *number* of a run has random numbers of its own."""

    def close(self) -> None:
        """Give back the memory; nothing more is asked of it."""


class Transformers:
    """A model in this process; see :mod:`countdown_rl.inference.generate`."""

    name = "transformers"
    libraries: tuple[str, ...] = ("peft", "torch", "transformers")

    def __init__(self, loaded: models.Loaded, decoding: Decoding) -> None:
        self._loaded, self._decoding = loaded, decoding
        self._generator: generate.Generator | None = None
        self.tokenizer = loaded.tokenizer
        self.precision, self.path, self.device, self.note = loaded.precision, loaded.path, loaded.device, loaded.note

    def prepare(self, length: int) -> int | None:
        return generate.room(self._loaded)

    def rows(self, length: int) -> int:
        return generate.fitting(self._loaded, length)

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        if self._generator is None:
            self._generator = generate.Generator(self._loaded, self._decoding)
        return self._generator.complete(prompts, number)

    def close(self) -> None:
        del self._loaded, self._generator
        generate.release()


def settle(name: str, ref: ModelRef, *, precision: str, device: str) -> str:
    """The engine that *name* means for *ref*: "auto" takes vLLM where it is installed beside a GPU and holds
    the weights as they are, else transformers.

    Raises:
        UsageError: that engine does not hold such weights.
        ModelError: it is not installed.
    """
    if name == "transformers":
        return name
    reason = _refusal(name if name != "auto" else "vllm", ref, precision, device)
    if name == "auto":
        return "vllm" if reason is None and installed("vllm") and _has_gpu() else "transformers"
    if reason is not None:
        raise UsageError(reason)
    if not installed(name):
        raise ModelError(
            f"--engine {name} needs {PACKAGES[name][1]}: `pip install 'countdown-rl[{name}]'`, or leave --engine out."
        )
    return name


def load(
    name: str,
    ref: ModelRef,
    decoding: Decoding,
    *,
    precision: str = "auto",
    device: str = "auto",
    threads: int = 0,
    trust_remote_code: bool = False,
) -> Engine:
    """The engine *name* (one that :func:`settle` gave) with *ref* in it.

    Raises:
        CountdownError: the weights cannot be loaded.
    """
    if name == "llama-cpp":
        from countdown_rl.inference.llama_cpp import LlamaCpp

        return LlamaCpp(ref, decoding, threads=threads, device=device)
    if name == "vllm":
        from countdown_rl.inference.vllm import Vllm

        return Vllm(ref, decoding, precision=precision, trust_remote_code=trust_remote_code)
    loaded = models.load(ref, precision=precision, device=device, trust_remote_code=trust_remote_code)
    return Transformers(loaded, decoding)


def complete(engine: Engine, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
    """What *engine* writes for a batch, which is halved as often as it does not fit the memory.

    Raises:
        ModelError: one row alone does not fit.
    """
    try:
        return engine.complete(prompts, number)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        if len(prompts) == 1:
            raise ModelError(
                "the memory does not hold the model and one completion; give a smaller --max-new-tokens."
            ) from error
    generate.release()
    half = (len(prompts) + 1) // 2
    # Halves draw from random numbers of their own, too; no run has as many batches.
    return complete(engine, prompts[:half], number) + complete(engine, prompts[half:], number + (half << 32))


def out_of_memory(error: Exception) -> bool:
    """Whether *error* is what torch (of a GPU or the processor) or Python say when memory runs out."""
    return isinstance(error, MemoryError) or any(
        words in str(error).lower() for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def agreement(
    texts: Sequence[str], reference: Engine, prompts: Sequence[Sequence[int]], rows: Sequence[Row]
) -> dict[str, Any]:
    """On how many of *prompts* (of *rows*) a *reference* writes greedily what another engine did: the same text,
    answer and verdict as in *texts*."""
    same = dict.fromkeys(("same_text", "same_answer", "same_verdict"), 0)
    for row, text, other in zip(rows, texts, complete(reference, prompts), strict=True):
        first, second = (row.grade(said) for said in (text, other.text))
        same["same_text"] += text == other.text
        same["same_answer"] += first.answer == second.answer
        same["same_verdict"] += first.correct == second.correct
    return {"against": reference.name, "puzzles": len(prompts), **same}


def _refusal(name: str, ref: ModelRef, precision: str, device: str) -> str | None:
    """Why engine *name* does not hold *ref*, as a sentence."""
    if name == "llama-cpp":
        if ref.kind != "gguf":
            return f"--engine llama-cpp runs GGUF files, and {ref.source} is none; leave --engine out."
        if precision != "auto":
            return "a GGUF file has its own precision; leave --precision out with --engine llama-cpp."
        return None
    if ref.kind in ("gguf", "adapter"):
        what = "an adapter; merge it first" if ref.kind == "adapter" else "a GGUF file; leave --engine out"
        return f"--engine vllm runs whole checkpoints, and {ref.source} is {what}."
    facts = ref.manifest.facts if ref.manifest is not None and ref.manifest.kind == "quantized" else None
    if precision == "nf4" or (facts is not None and facts.get("format", "nf4") == "nf4"):
        return "--engine vllm does not hold NF4 weights; leave --engine out."
    if device not in ("auto", "cuda"):
        return f"--engine vllm runs on a GPU; leave --device {device} out."
    return None


def installed(name: str) -> bool:
    """Whether the package that engine *name* needs is here."""
    module = PACKAGES[name][0]
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module put in place without a spec
        return True


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()

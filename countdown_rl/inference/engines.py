"""Inference engines behind one interface, each available where its package is installed.

``transformers`` runs every model that can be loaded, with this package's own decoders for those that they support.
``vllm`` runs checkpoints and adapters on GPUs. Greedy completions of different engines differ by their rounding.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from countdown_rl.core import packages
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load, model_files
from countdown_rl.models.reference import ModelRef, local_path, without_weights


class Engine(Protocol):
    """A model ready to complete prompts; the versions of the distributions *libraries* decide the completions."""

    name: str
    tokenizer: Any
    precision: str
    storage: str
    device: str
    libraries: tuple[str, ...]

    def prepare(self, length: int) -> int | None:
        """Prepare for prompts and completions of *length* tokens together; returns the context length if known."""

    def max_rows(self, prompt: int, completion: int) -> int:
        """Return the size of a batch of rows of *prompt* tokens and up to *completion* more."""

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        """Complete each of *prompts* (token ids); batch *number* of a run has its own random numbers."""


def choose_engine(name: str, ref: ModelRef, *, precision: str, device: str) -> str:
    """The engine to run *ref* with. "auto" is vLLM if it is installed, there is a GPU and it supports the weights.

    Raises:
        UsageError: the engine does not support these weights.
        ModelError: it is not installed.
    """
    if name == "transformers":
        return name
    if name == "auto":
        import torch

        usable = find_spec("vllm") is not None and torch.cuda.is_available()
        return "vllm" if usable and _unsupported(ref, precision, device) is None else "transformers"
    if reason := _unsupported(ref, precision, device):
        raise UsageError(f"--engine vllm {reason}.")
    check_installed(name)
    return name


def load_engine(
    name: str,
    ref: ModelRef,
    decoding: Decoding,
    *,
    precision: str = "auto",
    device: str = "auto",
    tensor_parallel: int = 1,
) -> Engine:
    """Load *ref* into the engine that :func:`choose_engine` chooses; *tensor_parallel* GPUs share it in vLLM."""
    name = choose_engine(name, ref, precision=precision, device=device)
    if tensor_parallel > 1 and name != "vllm":
        raise UsageError(f"--tensor-parallel is for --engine vllm, and this is {name}; leave it out.")
    load.silence_libraries()
    if name == "vllm":
        from countdown_rl.inference.vllm import Vllm

        return Vllm(ref, decoding, precision=precision, tensor_parallel=tensor_parallel)
    return generate.Generator(load.load_model(ref, precision=precision, device=device), decoding)


def _unsupported(ref: ModelRef, precision: str, device: str) -> str | None:
    """Return the reason why vLLM cannot run *ref*, as the end of a sentence; None if it can."""
    from countdown_rl.models import lora

    base = ref.base or ref
    if base.kind == "gguf":
        return f"does not run GGUF files, and {base.source} is one; leave --engine out"
    config = model_files.quantization_config(local_path(without_weights(base))) or {}
    if config.get("quant_method") == "bitsandbytes" or load.trained_precision(ref, precision) == "nf4":
        return "does not run NF4 weights; leave --engine out, or merge an adapter over them first"
    if ref.base is not None and not lora.is_uniform(model_files.adapter_config(local_path(ref))):
        return f"supports LoRA of one rank and scale, without variants and biases; merge {ref.source} first"
    if device not in ("auto", "cuda"):
        return f"runs on a GPU; leave --device {device} out"
    return None


def check_installed(name: str) -> None:
    """Raise ModelError if the package of the engine *name*, which has the same name, is not installed."""
    if find_spec(name) is None:
        raise ModelError(f"--engine {name} needs {name}: {packages.pip_install(name)}, or leave --engine out.")

"""Inference engines behind one interface, each available where its package is installed.

``transformers`` runs every model that can be loaded, with this package's own decoder where that supports it.
``vllm`` runs checkpoints and adapters on GPUs. Greedy completions of different engines differ by their rounding.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from countdown_rl.core import packages
from countdown_rl.core.errors import ModelError, UsageError, out_of_memory
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load, model_files
from countdown_rl.models.reference import ModelRef, local_path, without_weights

#: Fields of a LoraConfig that vLLM refuses or does not read.
_NOT_IN_VLLM = ("alpha_pattern", "lora_bias", "modules_to_save", "rank_pattern", "use_dora")


class Engine(Protocol):
    """A model ready to complete prompts.

    Attributes:
        name: the value of ``--engine``.
        precision: of the weights; *storage* is how they are held.
        libraries: the distributions whose versions decide the completions.
    """

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
    """The engine to run *ref* with. "auto" is vLLM if it is installed, there is a GPU and it supports the weights;
    else transformers.

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
    if (reason := _unsupported(ref, precision, device)) is not None:
        raise UsageError(reason)
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
    """Load *ref* into the engine *name*, as :func:`choose_engine` returned it.

    Args:
        tensor_parallel: GPUs that share the model, in vLLM.

    Raises:
        UsageError: *tensor_parallel* is for another engine.
    """
    if tensor_parallel > 1 and name != "vllm":
        raise UsageError(f"--tensor-parallel is for --engine vllm, and this is {name}; leave it out.")
    load.silence_libraries()
    if name == "vllm":
        from countdown_rl.inference.vllm import Vllm

        return Vllm(ref, decoding, precision=precision, tensor_parallel=tensor_parallel)
    return generate.Generator(load.load_model(ref, precision=precision, device=device), decoding)


def complete(engine: Engine, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
    """Complete a batch with *engine*, halving it as often as it does not fit in memory.

    Raises:
        ModelError: one row alone does not fit.
    """
    try:
        return engine.complete(prompts, number)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        if len(prompts) == 1:
            sentence = "the model and one completion do not fit in memory; give a smaller --max-new-tokens."
            raise ModelError(sentence) from error
    generate.free_memory()
    half = (len(prompts) + 1) // 2
    # The upper half of the number keeps the random numbers of the halves apart; no run has that many batches.
    return complete(engine, prompts[:half], number) + complete(engine, prompts[half:], number + (half << 32))


def _unsupported(ref: ModelRef, precision: str, device: str) -> str | None:
    """Return the reason why vLLM cannot run *ref*, as a sentence; None where it can."""
    base = ref.base or ref
    if base.kind == "gguf":
        return f"--engine vllm does not run GGUF files, and {base.source} is one; leave --engine out."
    config = model_files.quantization_config(local_path(without_weights(base))) or {}
    nf4 = load.trained_precision(ref, precision) == "nf4"
    if config.get("quant_method") == "bitsandbytes" or (nf4 and (config or not _quantizes())):
        return (
            "--engine vllm supports NF4 weights on a CUDA GPU alone, of an unquantized checkpoint and with the package "
            "vllm-bnb-plugin; leave --engine out, or merge an adapter over them first."
        )
    if ref.base is not None:
        adapter = model_files.adapter_config(local_path(ref))
        if unsupported := [name for name in _NOT_IN_VLLM if adapter.get(name)]:
            return f"--engine vllm does not support {unsupported[0]}, which {ref.source} has; merge it first."
    if device not in ("auto", "cuda"):
        return f"--engine vllm runs on a GPU; leave --device {device} out."
    return None


def _quantizes() -> bool:
    """Return True if vLLM can quantize weights to NF4 here."""
    import torch

    return torch.cuda.is_available() and find_spec("vllm_bnb_plugin") is not None


def check_installed(name: str) -> None:
    """Raise ModelError if the package of the engine *name*, which has the same name, is not installed."""
    if find_spec(name) is None:
        raise ModelError(f"--engine {name} needs {name}: {packages.pip_install(name)}, or leave --engine out.")

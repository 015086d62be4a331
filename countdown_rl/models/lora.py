"""LoRA adapters: checked, put on a model by PEFT, and written in bytes of the weights alone.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds ``s B A`` to a weight, with ``s`` = alpha / r, or
alpha / sqrt(r) if rank-stabilised (arXiv:2312.03732).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from countdown_rl.core.errors import ModelError
from countdown_rl.core.types import Record
from countdown_rl.models import model_files
from countdown_rl.models.checkpoint import Checkpoint, check_finite
from countdown_rl.models.protocols import CausalLM

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

#: Initializations that leave the base as it is; the others (PiSSA, OLoRA, LoftQ, ...) modify it.
_INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")
#: Fields of a LoraConfig for prompts with given tokens, and for layers that share their weights.
_UNSUPPORTED = ("alora_invocation_tokens", "layer_replication")
#: Fields of a LoraConfig beyond LoRA of one rank and scale on linear layers.
_EXTENSIONS = (
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
)


def save(
    model: "PeftModel",
    directory: Path,
    *,
    base: str,
    revision: str | None = None,
    weights: Mapping[str, "torch.Tensor"] | None = None,
) -> None:
    """Write the adapter of *model* to *directory*.

    Args:
        model: has one adapter.
        directory: gets the weights and their configuration.
        base: the base model to record.
        revision: its commit on the Hub.
        weights: the state of the whole model, if *model* is sharded.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Not save_pretrained: it writes a card, asks the Hub about the vocabulary, and orders modules
    # by Python's hashes.
    state = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False)
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    for name, tensor in tensors.items():
        check_finite(name, tensor)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})

    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "revision": revision, "inference_mode": True}
    for key, value in config.items():
        if isinstance(value, set):
            config[key] = sorted(value)
    text = json.dumps(config, indent=2, sort_keys=True, default=str)
    (directory / CONFIG).write_text(text + "\n")


def attach(model: CausalLM, directory: Path, *, trainable: bool = False) -> "PeftModel":
    """Put the adapter in *directory* on *model*, which may be a skeleton.

    Raises ModelError if the adapter is not LoRA over the base as it is, or does not fit *model*.
    """
    from peft import PeftModel, get_peft_model_state_dict

    check_config(directory)
    stored = Checkpoint(directory / WEIGHTS)
    for name in stored.specs:
        check_finite(f"{directory}: {name}", stored.read(name))
    is_skeleton = model.device.type == "meta"
    with model_files.failures_of_libraries(f"{directory} does not fit its base"):
        adapted = PeftModel.from_pretrained(
            model,
            directory,
            is_trainable=trainable,
            low_cpu_mem_usage=is_skeleton,
            ignore_mismatched_sizes=True,  # they are refused by name
        )
    if is_skeleton:
        adapted.to("meta")

    # PEFT ignores tensors that the model does not have, and only warns of missing ones.
    expected = _shapes(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    shapes = _shapes(stored.specs)
    differing = sorted(expected.items() ^ shapes.items())
    if differing:
        name, _ = differing[0]
        raise ModelError(
            f"{directory} does not fit its base: {name} should be {expected.get(name, 'absent')} "
            f"and is {shapes.get(name, 'absent')}; merge it with the program that wrote it."
        )
    return adapted.eval()


def _shapes(tensors: Mapping[str, "torch.Tensor"]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_config(directory: Path) -> None:
    """Raise ModelError unless the adapter in *directory* is LoRA over the base as it is."""
    from peft import LoraConfig

    config = model_files.adapter_config(directory)
    kind = config.get("peft_type")
    start = config.get("init_lora_weights", True)
    if kind != "LORA":
        raise ModelError(f"{directory} is an adapter of type {kind}; only LoRA is supported.")
    if start not in _INITIALIZATIONS:
        raise ModelError(
            f"{directory} uses init_lora_weights={start}, which changes the base; convert it to "
            "plain LoRA by PEFT's save_pretrained(path_initial_model_for_weight_conversion=...)."
        )
    known = {field.name for field in fields(LoraConfig)}
    for name, value in config.items():
        if value and (name not in known or name in _UNSUPPORTED):
            raise ModelError(f"{directory} sets {name}, which is not supported; give plain LoRA.")


def is_uniform(config: Record) -> bool:
    """Return True if an adapter of *config* is LoRA of one rank and scale, and nothing else."""
    bias = config.get("bias") or "none"
    return bias == "none" and not any(config.get(name) for name in _EXTENSIONS)


def is_special(module: "torch.nn.Module") -> bool:
    """Return True if *module* has LoRA with a bias, or a variant of LoRA such as DoRA."""
    biases = getattr(module, "lora_bias", {})
    return bool(getattr(module, "lora_variant", None)) or any(biases.values())


def adapted_modules(directory: Path) -> int:
    """Return the number of modules that have LoRA in the adapter in *directory*."""
    names = Checkpoint(directory / WEIGHTS).specs
    return len({name.partition(".lora_")[0] for name in names if ".lora_" in name})


def changes_nothing(directory: Path) -> bool:
    """Return True if the adapter in *directory* has no effect: all but the matrices A are zero."""
    stored = Checkpoint(directory / WEIGHTS)
    others = [name for name in stored.specs if not re.search(r"\.lora_(embedding_)?A\b", name)]
    return not any(stored.read(name).any() for name in others)

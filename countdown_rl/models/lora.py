"""LoRA adapters: written as PEFT reads them, and plain ones merged into a checkpoint's tensors without a model.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds ``s B A`` to a weight, with ``s`` = alpha / r, or alpha / sqrt(r) when
rank-stabilised (arXiv:2312.03732). Merging is done in fp32, on the values that PEFT's layers compute with.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from countdown_rl.errors import ModelError
from countdown_rl.models import model_files, reference
from countdown_rl.models.checkpoint import Checkpoint, check_finite
from countdown_rl.models.reference import ModelRef

#: Fields of a LoraConfig that plain LoRA may set: read here, or without effect on the merged weights.
_PLAIN = {
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "bias"),
    *("inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights"),
    *("runtime_config", "megatron_core", "qalora_group_size", "eva_config"),
}
#: Initialisations that leave the base weights unchanged; the others (PiSSA, OLoRA, LoftQ, ...) modify them.
_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
#: PEFT's own modules, in the names of an adapter's tensors.
_PREFIX = "base_model.model."


def save(
    model: Any, directory: Path, *, base: str, revision: str | None = None, weights: dict[str, Any] | None = None
) -> None:
    """Write the adapter of the PEFT *model* to *directory*, with *base* as its base model.

    The bytes depend on the weights alone. *weights* is the state of the whole model, where *model* itself is sharded.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Not save_pretrained: it writes a card, asks the Hub about the vocabulary, and orders modules by Python's hashes.
    state = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False)
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    for name, tensor in tensors.items():
        check_finite(name, tensor)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "revision": revision, "inference_mode": True}
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")


def is_special(module: Any) -> bool:
    """Return True if *module* has LoRA with a bias, or a variant of LoRA such as DoRA."""
    return bool(getattr(module, "lora_variant", None)) or any(getattr(module, "lora_bias", {}).values())


def is_uniform(config: Mapping[str, Any]) -> bool:
    """Return True if an adapter of *config* is LoRA of one rank and scale over the base as it is, and nothing else."""
    patterns = config.get("rank_pattern") or config.get("alpha_pattern")
    start, bias = config.get("init_lora_weights", True), config.get("bias") or "none"
    return not (patterns or _unusual(config)) and start in _INITIALISATIONS and bias == "none"


def _unusual(config: Mapping[str, Any]) -> list[str]:
    """The fields of *config* that plain LoRA does not set."""
    return [name for name, value in config.items() if value and name not in _PLAIN]


def loading_code(directory: Path, base: ModelRef) -> str:
    """Return the Python expression that loads the adapter in *directory* with PEFT, from the working directory."""
    if base.kind in ("hub", "directory"):
        return f"AutoPeftModelForCausalLM.from_pretrained({str(directory)!r})"
    path = reference.local_path(base)
    words = repr(str(path)) if path.is_dir() else f"{str(path.parent)!r}, gguf_file={path.name!r}"
    return f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({words}), {str(directory)!r})"


class Adapter:
    """The adapter in a directory: *names* of its tensors, and *modules*, the names of those that have LoRA.

    If it *is_plain* LoRA, :meth:`merge` merges it; PEFT merges others.
    """

    def __init__(self, directory: Path) -> None:
        """Read its configuration and names. Raises ModelError if it cannot be merged."""
        self.directory = Path(directory)
        self.config = model_files.adapter_config(self.directory)
        self._check_config()
        self._tensors = Checkpoint(self.directory)
        self.names = self._tensors.specs.keys()
        self.modules = {name.partition(".lora_")[0].removeprefix(_PREFIX) for name in self.names if ".lora_" in name}
        plain_names = {self._name(module, part) for module in self.modules for part in "AB"}
        self.is_plain = self.names == plain_names and not _unusual(self.config)

    def _check_config(self) -> None:
        from peft import LoraConfig

        start = self.config.get("init_lora_weights", True)
        if (kind := self.config.get("peft_type")) != "LORA":
            unsupported = f"{kind} instead of LoRA"
        elif start not in _INITIALISATIONS:
            unsupported = f"init_lora_weights={start}, which changes the base itself"
        elif unknown := sorted(self.config.keys() - {field.name for field in fields(LoraConfig)}):
            unsupported = f"{unknown[0]}, which this version of PEFT does not know"
        else:
            return
        raise ModelError(f"{self.directory} uses {unsupported}, so it cannot be merged here.")

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return the merged value, in fp32, of parameter *name* if it has plain LoRA, else *weight*."""
        module = name.removesuffix(".weight")
        if module not in self.modules:
            return weight
        a, b = (self._tensors.read(self._name(module, part)).float() for part in "AB")  # (r, in), (out, r)
        if (len(b), a.shape[1]) != weight.shape or len(a) != b.shape[1]:
            raise ModelError(
                f"{self.directory} changes {module} by {(len(b), a.shape[1])}, where the base has "
                f"{tuple(weight.shape)}; this is not the base it was trained over."
            )
        # In place: allocating another tensor of this size takes longer than the sum.
        return (b @ a).mul_(self._scale(module, rank=len(a))).add_(weight)

    def _scale(self, module: str, rank: int) -> float:
        patterns = self.config.get("alpha_pattern") or {}
        default = self.config.get("lora_alpha", 8)
        # As PEFT matches them: a pattern is a module's name, or ends it.
        alpha = next((patterns[key] for key in patterns if re.match(rf"(.*\.)?({key})$", module)), default)
        return alpha / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def _name(self, module: str, part: str) -> str:
        return f"{_PREFIX}{module}.lora_{part}.weight"

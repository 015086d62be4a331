"""LoRA adapters: written as PEFT reads them, and merged into a checkpoint's tensors without a model.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds ``s B A`` to a weight, with ``s`` = alpha / r, or alpha / sqrt(r) when
rank-stabilised (arXiv:2312.03732). DoRA (arXiv:2402.09353) then scales each output row to a learnt length. Merging
is done in fp32, on the values that PEFT's layers compute with.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from countdown_rl.errors import ModelError
from countdown_rl.models import files, reference
from countdown_rl.models.checkpoint import Checkpoint, check_finite
from countdown_rl.models.reference import ModelRef

#: Fields of a LoraConfig that do not change the weights or are handled here. All others must be unset.
_SUPPORTED = {
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "r", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "use_dora"),
    *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "lora_bias", "ensure_weight_tying", "runtime_config", "init_lora_weights"),
    *("megatron_core", "qalora_group_size", "eva_config"),  # without effect while their switches are off
}
#: Initialisations that leave the base weights unchanged; the others (PiSSA, OLoRA, LoftQ, ...) modify them.
_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")

_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?P<bias>\.bias)?(?:\.weight)?"
)


def save(
    model: Any, directory: Path, *, base: str, revision: str | None = None, weights: dict[str, Any] | None = None
) -> None:
    """Write the adapter of the PEFT *model* to *directory*, with *base* as its base model.

    The bytes depend on the weights alone. *weights* is the state of the whole model, where *model* itself is sharded.

    Raises:
        ModelError: a weight is not finite.
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


def loading_code(directory: Path, base: ModelRef) -> str:
    """Return the Python expression that loads the adapter in *directory* with PEFT, from the working directory."""
    if base.kind in ("hub", "directory"):
        return f"AutoPeftModelForCausalLM.from_pretrained({str(directory)!r})"
    path = reference.files(base)
    words = repr(str(path)) if path.is_dir() else f"{str(path.parent)!r}, gguf_file={path.name!r}"
    return f"PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({words}), {str(directory)!r})"


@dataclass
class Layer:
    """The tensors of the adapter for one module. ``a`` is (r, in), ``b`` is (out, r)."""

    scale: float = 0.0
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    magnitude: torch.Tensor | None = None
    embedding: bool = False


class Adapter:
    """The adapter in a directory: ``layers`` by module name, and by parameter name the tensors ``saved`` whole."""

    def __init__(self, directory: Path) -> None:
        """Read it. Raises ModelError if it uses something beside LoRA and DoRA that cannot be merged here."""
        self.directory = Path(directory)
        self.config = files.adapter_config(self.directory)
        self._check_config()
        self.layers: dict[str, Layer] = {}
        self.saved: dict[str, torch.Tensor] = {}
        stored = Checkpoint(self.directory)
        for key in stored.specs:
            self._add(key, stored.read(key))
        for module, layer in self.layers.items():
            if layer.a is None or layer.b is None:
                raise ModelError(f"{self.directory} holds half of the LoRA pair of {module}; train it again.")
            if layer.embedding and layer.magnitude is not None:
                raise ModelError(f"{self.directory} uses DoRA on the embedding {module}, which cannot be merged here.")
            layer.scale = self._scale(module, rank=layer.a.shape[0])

    def _check_config(self) -> None:
        unsupported = [
            f"{name}={value}"
            for name, value in self.config.items()
            if name not in _SUPPORTED and value and (name, value) != ("bias", "none")
        ]
        if (kind := self.config.get("peft_type")) != "LORA":
            unsupported.insert(0, f"{kind} instead of LoRA")
        if (start := self.config.get("init_lora_weights", True)) not in _INITIALISATIONS:
            unsupported.insert(0, f"init_lora_weights={start}, which changes the base itself")
        if unsupported:
            raise ModelError(
                f"{self.directory} uses {unsupported[0]}, which cannot be merged here; merge it with PEFT."
            )

    def _add(self, key: str, tensor: torch.Tensor) -> None:
        name = key.removeprefix("base_model.model.")
        match = _PART.fullmatch(name)
        if match is None:
            # A module trained in full (modules_to_save), or an embedding saved along.
            if "lora_" in name or not name.endswith((".weight", ".bias")):
                raise ModelError(f"{self.directory} holds {key}, which cannot be merged here; merge it with PEFT.")
            self.saved[name.replace(".modules_to_save", "").replace(".base_layer", "")] = tensor
            return
        layer = self.layers.setdefault(match["module"], Layer())
        part = match["part"]
        layer.embedding |= "embedding" in part
        if match["bias"]:
            layer.bias = tensor
        elif part == "lora_magnitude_vector":
            layer.magnitude = tensor
        elif part.endswith("A"):
            layer.a = tensor
        else:
            layer.b = tensor

    def _scale(self, module: str, rank: int) -> float:
        from peft.utils.other import get_pattern_key

        patterns = self.config.get("alpha_pattern") or {}
        alpha = patterns.get(get_pattern_key(patterns.keys(), module), self.config.get("lora_alpha", 8))
        return alpha / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def parameters(self) -> Iterator[str]:
        """The names of the parameters that the adapter changes."""
        yield from self.saved
        for module, layer in self.layers.items():
            yield f"{module}.weight"
            if layer.bias is not None:
                yield f"{module}.bias"

    def merge(self, name: str, weight: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
        """The merged value of parameter *name*: fp32 where a layer changes it, else *weight* or its replacement.

        *transposed* means that the weight is stored as (in, out), as in GPT-2's Conv1D.

        Raises:
            ModelError: the shapes do not match.
        """
        if name in self.saved:
            if self.saved[name].shape != weight.shape:
                raise ModelError(
                    f"{self.directory} holds {name} as {tuple(self.saved[name].shape)}, where the base has "
                    f"{tuple(weight.shape)}; a resized vocabulary cannot be merged here."
                )
            weight = self.saved[name]
        module, _, kind = name.rpartition(".")
        layer = self.layers.get(module)
        if layer is None or layer.a is None or layer.b is None:
            return weight
        if kind == "bias":
            return weight if layer.bias is None else weight.float() + layer.scale * layer.bias.float()
        transposed = transposed or layer.embedding  # (vocabulary, hidden), and A is (r, vocabulary)
        delta = (layer.b.float() @ layer.a.float()).mul_(layer.scale)
        original = weight.float().T if transposed else weight.float()
        if delta.shape != original.shape:
            raise ModelError(
                f"{self.directory} changes {module} by {tuple(delta.shape)}, where the base has "
                f"{tuple(original.shape)}; this is not the base it was trained over."
            )
        merged = delta.add_(original)  # in place: allocating another tensor of this size takes longer than the sum
        if layer.magnitude is not None:
            merged *= (layer.magnitude.float() / torch.linalg.vector_norm(merged, dim=1)).view(-1, 1)
        return merged.T if transposed else merged

"""A LoRA adapter as arithmetic on a checkpoint's tensors, without a model.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds ``s B A`` to a weight, with ``s`` = alpha / r, or
alpha / sqrt(r) when rank-stabilised (arXiv:2312.03732). DoRA (arXiv:2402.09353) then scales each output
row to a learnt length. All of it is done in fp32, on the values that PEFT's layers compute with.
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
from countdown_rl.models.checkpoint import Checkpoint

#: What of a LoraConfig has no say in the weights, or is taken care of here. Anything else must be unset.
_UNDERSTOOD = {
    *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "r", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "use_dora"),
    *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "lora_bias", "ensure_weight_tying", "runtime_config"),
    *(
        "megatron_core",
        "qalora_group_size",
        "eva_config",
    ),  # these two say nothing while their switches are off
}
#: Ways to start an adapter that leave the base as it was; the others (PiSSA, OLoRA, LoftQ, ...) change it.
_PURE_STARTS = (True, False, "gaussian", "eva", "orthogonal")

_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?P<bias>\.bias)?(?:\.weight)?"
)


@dataclass
class Layer:
    """What the adapter holds for one module. ``a`` is (r, in), ``b`` is (out, r)."""

    scale: float = 0.0
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    magnitude: torch.Tensor | None = None
    embedding: bool = False


class Adapter:
    """The adapter in *directory*: ``layers`` by module name, ``whole`` tensors by parameter name."""

    def __init__(self, directory: Path) -> None:
        """Read it.

        Raises:
            ModelError: it is not plain LoRA as :mod:`countdown_rl.models.lora` knows it; the text names what is not.
        """
        self.directory = Path(directory)
        self.config: dict[str, Any] = json.loads((self.directory / "adapter_config.json").read_bytes())
        self._refuse_the_unknown()
        self.layers: dict[str, Layer] = {}
        self.whole: dict[str, torch.Tensor] = {}
        held = Checkpoint(self.directory)
        for key in held.slots:
            self._take(key, held.read(key))
        for module, layer in self.layers.items():
            if layer.a is None or layer.b is None:
                raise ModelError(f"{self.directory} holds half of the LoRA pair of {module}; train it again.")
            if layer.embedding and layer.magnitude is not None:
                raise ModelError(f"{self.directory} uses DoRA on the embedding {module}, which cannot be merged here.")
            layer.scale = self._scale(module, rank=layer.a.shape[0])

    def _refuse_the_unknown(self) -> None:
        def no(what: str) -> ModelError:
            return ModelError(f"{self.directory} uses {what}, which cannot be merged here; merge it with PEFT.")

        kind = self.config.get("peft_type")
        if kind != "LORA":
            raise no(f"{kind} instead of LoRA")
        start = self.config.get("init_lora_weights", True)
        if start not in _PURE_STARTS:
            raise no(f"init_lora_weights={start}, which changes the base itself")
        for name, value in self.config.items():
            if name in _UNDERSTOOD or name == "init_lora_weights" or not value or (name, value) == ("bias", "none"):
                continue
            raise no(f"{name}={value}")

    def _take(self, key: str, tensor: torch.Tensor) -> None:
        name = key.removeprefix("base_model.model.")
        match = _PART.fullmatch(name)
        if match is None:
            # A module trained whole (modules_to_save), or an embedding saved along.
            if "lora_" in name or not name.endswith((".weight", ".bias")):
                raise ModelError(f"{self.directory} holds {key}, which cannot be merged here; merge it with PEFT.")
            self.whole[name.replace(".modules_to_save", "").replace(".base_layer", "")] = tensor
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
        """The names of all parameters that this adapter changes."""
        yield from self.whole
        for module, layer in self.layers.items():
            yield f"{module}.weight"
            if layer.bias is not None:
                yield f"{module}.bias"

    def fold(self, name: str, weight: torch.Tensor, *, turned: bool = False) -> torch.Tensor:
        """The merged value of parameter *name*: fp32 where the adapter changes it, else *weight* itself.

        *turned* says that the weight is stored (in, out), as GPT-2's Conv1D does.

        Raises:
            ModelError: the shapes do not go together.
        """
        if name in self.whole:
            if self.whole[name].shape != weight.shape:
                raise ModelError(
                    f"{self.directory} holds {name} as {tuple(self.whole[name].shape)}, where the base has "
                    f"{tuple(weight.shape)}; a resized vocabulary cannot be merged here."
                )
            weight = self.whole[name]
        module, _, kind = name.rpartition(".")
        layer = self.layers.get(module)
        if layer is None or layer.a is None or layer.b is None:
            return weight
        if kind == "bias":
            return weight if layer.bias is None else weight.float() + layer.scale * layer.bias.float()
        turned = turned or layer.embedding  # (vocabulary, width), and A is (r, vocabulary)
        delta = (layer.b.float() @ layer.a.float()).mul_(layer.scale)
        before = weight.float().T if turned else weight.float()
        if delta.shape != before.shape:
            raise ModelError(
                f"{self.directory} changes {module} by {tuple(delta.shape)}, where the base has "
                f"{tuple(before.shape)}; this is not the base it was trained over."
            )
        merged = delta.add_(before)  # in place: the pages of one more such tensor take longer than the sum
        if layer.magnitude is not None:
            merged *= (layer.magnitude.float() / torch.linalg.vector_norm(merged, dim=1)).view(-1, 1)
        return merged.T if turned else merged

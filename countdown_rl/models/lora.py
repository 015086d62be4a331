"""LoRA adapters: written as PEFT reads them, and plain ones merged into a checkpoint's tensors without a model.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds ``s B A`` to a weight, with ``s`` = alpha / r, or alpha / sqrt(r) if
rank-stabilised (arXiv:2312.03732). Merging is done in fp32, on the values that PEFT's layers compute with.
"""

import json
import re
from collections.abc import Iterable, Mapping, Set
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from countdown_rl.core.errors import ModelError
from countdown_rl.core.formatting import plural
from countdown_rl.models import model_files
from countdown_rl.models.checkpoint import Checkpoint, check_finite

#: Fields of a LoraConfig that plain LoRA may set: read here, or without effect on the merged weights.
_PLAIN = {
    *(
        "task_type",
        "peft_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "bias",
    ),
    *(
        "inference_mode",
        "r",
        "lora_alpha",
        "lora_dropout",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
    ),
    *(
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "init_lora_weights",
    ),
    *("runtime_config", "megatron_core", "qalora_group_size", "eva_config"),
}
#: Initialisations that leave the base weights unchanged; the others (PiSSA, OLoRA, LoftQ, ...) modify them.
_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
#: PEFT's own modules, in the names of an adapter's tensors.
_PREFIX = "base_model.model."
#: Wrappers of a model that torch.compile, FSDP, checkpointing and DDP leave in the names of its tensors.
_WRAPPERS = re.compile(
    r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|^module\.|(?<=^base_model\.model\.)module\."
)


def save(
    model: Any,
    directory: Path,
    *,
    base: str,
    revision: str | None = None,
    weights: dict[str, Any] | None = None,
    further: Iterable[str] = (),
) -> None:
    """Write the adapter of the PEFT *model*, with *base* as its base model; the bytes depend on the weights alone.
    *weights* is the state of the whole model if *model* is sharded; *further* names embeddings to store as well."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Not save_pretrained: it writes a card, asks the Hub about the vocabulary, and orders modules by Python's hashes.
    state = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False)
    all_weights = weights or model.state_dict()
    state |= {
        name: all_weights[name].clone()
        for name in further
        if name in all_weights and name not in state
    }
    tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    for name, tensor in tensors.items():
        check_finite(name, tensor)
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "revision": revision, "inference_mode": True}
    config = {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }
    (directory / "adapter_config.json").write_text(
        json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
    )


def is_special(module: Any) -> bool:
    """Return True if *module* has LoRA with a bias, or a variant of LoRA such as DoRA."""
    return bool(getattr(module, "lora_variant", None)) or any(
        getattr(module, "lora_bias", {}).values()
    )


def is_uniform(config: Mapping[str, Any]) -> bool:
    """Return True if an adapter of *config* is LoRA of one rank and scale over the base as it is, and nothing else."""
    patterns = config.get("rank_pattern") or config.get("alpha_pattern")
    start, bias = config.get("init_lora_weights", True), config.get("bias") or "none"
    return not (patterns or _unusual(config)) and start in _INITIALISATIONS and bias == "none"


def _unusual(config: Mapping[str, Any]) -> list[str]:
    """Return the fields of *config* that plain LoRA does not set."""
    return [name for name, value in config.items() if value and name not in _PLAIN]


def _peft_name(name: str) -> str:
    """Return PEFT's name of the tensor *name*, without wrappers that were around the model when it was saved."""
    name = re.sub(r"(\.lora_\w+)\.default(?=\.|$)", r"\1", _WRAPPERS.sub("", name))
    return name if name.startswith("base_model.") else _PREFIX + name


def _located(name: str, modules: Set[str]) -> str:
    """Return *name* as a model with *modules* has it: of a vision model loaded as text alone, or the reverse."""
    module, dot, rest = name.removeprefix(_PREFIX).partition(".lora_")
    others = (
        module.replace("language_model.", "", 1),
        re.sub(r"^model\.", "model.language_model.", module),
    )
    if not dot or module in modules:
        return name
    return next((f"{_PREFIX}{other}{dot}{rest}" for other in others if other in modules), name)


class Adapter:
    """The adapter in a directory: *specs*, its tensors by PEFT's names, and *modules*, the names of those with LoRA. If
    it *is_plain* LoRA, :meth:`merge` merges it; PEFT merges others."""

    def __init__(self, directory: Path) -> None:
        """Read its configuration and names. Raises ModelError if it cannot be loaded."""
        self.directory = Path(directory)
        self.config = model_files.adapter_config(self.directory)
        if (kind := self.config.get("peft_type")) != "LORA":  # others may name files to load
            raise self._error(f"is an adapter of type {kind}; only LoRA adapters are supported.")
        if self.config.get("alora_invocation_tokens"):
            raise self._error(
                "is an activated LoRA, and no prompt has its invocation tokens; give plain LoRA."
            )
        self._tensors = Checkpoint(self.directory / "adapter_model.safetensors")
        self._stored = {_peft_name(name): name for name in self._tensors.specs}
        self.specs = {name: self._tensors.specs[stored] for name, stored in self._stored.items()}
        self.modules = {
            name.partition(".lora_")[0].removeprefix(_PREFIX)
            for name in self.specs
            if ".lora_" in name
        }
        plain_names = {self._name(module, part) for module in self.modules for part in "AB"}
        self.is_plain = self.specs.keys() == plain_names and not _unusual(self.config)

    def _error(self, fault: str) -> ModelError:
        return ModelError(f"{self.directory} {fault}")

    def check_unchanged_base(self) -> None:
        """Raise ModelError if the initialisation of the adapter changed its base."""
        start = self.config.get("init_lora_weights", True)
        if start not in _INITIALISATIONS:
            raise self._error(
                f"uses init_lora_weights={start}, which changes the base; convert it to plain LoRA by PEFT's "
                "save_pretrained(path_initial_model_for_weight_conversion=...)."
            )

    @property
    def changes_nothing(self) -> bool:
        """True if all tensors but the matrices A are zero, so that the adapter leaves its base as it is."""
        others = [name for name in self.specs if not re.search(r"\.lora_(embedding_)?A\b", name)]
        return not any(self.read(name).any() for name in others)

    def read(self, name: str) -> torch.Tensor:
        """Return the values of the tensor that PEFT calls *name*."""
        return self._tensors.read(self._stored[name])

    def attach(self, model: Any, *, trainable: bool = False) -> Any:
        """Put the adapter on *model*, and return the ``PeftModel``; of a skeleton only names and shapes are compared.
        Raises ModelError if the model lacks a tensor of the adapter, the adapter lacks one, or their shapes differ."""
        from peft import LoraConfig, PeftModel, set_peft_model_state_dict
        from peft.auto import MODEL_TYPE_TO_PEFT_MODEL_MAPPING

        if unknown := sorted(
            name for name in _unusual(self.config) if name not in LoraConfig.__dataclass_fields__
        ):
            raise self._error(
                f"sets {unknown[0]} in its configuration, which this version of PEFT does not know."
            )
        config: Any = LoraConfig.from_pretrained(str(self.directory))
        config.inference_mode = not trainable
        self._resize_embeddings(model)
        is_skeleton = model.device.type == "meta"
        kind = MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, PeftModel)
        with model_files.failures_of_libraries(f"{self.directory} does not fit its base"):
            model = kind(model, config, low_cpu_mem_usage=is_skeleton)
        if config.layer_replication and (
            types := getattr(model.config, "layer_types", None)
        ):  # PEFT repeats none
            model.config.layer_types = [
                kind for begin, end in config.layer_replication for kind in types[begin:end]
            ]
        tensors = self.specs if is_skeleton else {name: self.read(name) for name in self.specs}
        if not is_skeleton and not all(
            bool(tensor.isfinite().all()) for tensor in tensors.values()
        ):
            raise self._error("holds weights that are not finite; train it again.")
        modules = {name for name, _ in model.get_base_model().named_modules()}
        tensors = {_located(name, modules): tensor for name, tensor in tensors.items()}
        try:
            result = set_peft_model_state_dict(model, tensors, ignore_mismatched_sizes=True)
        except KeyError as error:  # of a module that is saved whole
            raise self._error(f"lacks {error.args[0]}, which its configuration names.") from error
        self._check_result(model, tensors, result)
        head = model.get_output_embeddings()
        if head is not None and not hasattr(
            head, "bias"
        ):  # PEFT's wrapper of trained tokens hides it from TRL
            head.bias = None
        return model.eval()

    def _check_result(self, model: Any, tensors: Mapping[str, torch.Tensor], result: Any) -> None:
        """Raise ModelError unless *tensors* are all those that *model* has for an adapter; *result* is PEFT's."""
        from peft import get_peft_model_state_dict

        state = model.state_dict()
        keys = {key: key for key in state}
        copies = get_peft_model_state_dict(
            model, state_dict=keys, save_embedding_layers=True
        )  # under two names
        advice = "it was trained over another base, or saved under other names."
        if unexpected := [
            key.replace(".default", "") for key in result.unexpected_keys if key not in copies
        ]:
            raise self._error(f"holds {unexpected[0]}, which its base does not take; {advice}")
        names = get_peft_model_state_dict(model, state_dict=keys, save_embedding_layers=False)
        for name, key in names.items():
            if key in result.missing_keys:
                stored = (
                    f"holds it as {tuple(tensors[name].shape)}" if name in tensors else "lacks it"
                )
                raise self._error(
                    f"should hold {name} as {tuple(state[key].shape)} and {stored}; {advice}"
                )

    def _resize_embeddings(self, model: Any) -> None:
        """Resize the embeddings of *model* to the rows that the adapter stores, whole or one by one."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        rows, stored = len(embedding.weight), self._stored_rows(model, embedding)
        tokens = self.config.get("trainable_token_indices") or []
        tokens = {
            token
            for part in (tokens.values() if isinstance(tokens, dict) else [tokens])
            for token in part
        }
        needed = max(tokens, default=-1) + 1
        if stored is None:
            stored = max(rows, needed) if tokens >= {*range(rows, needed)} else rows
        if needed > stored:
            raise self._error(
                f"trains token {needed - 1:,}, and the embeddings have {plural(stored, 'row')}."
            )
        # A copy of the embedding that is trained alone leaves a tied head as it was.
        alone = "embed_tokens" in (self.config.get("modules_to_save") or [])
        tied = model.config.get_text_config().tie_word_embeddings and not alone
        if (
            stored > rows
            and head is not None
            and not tied
            and self._stored_rows(model, head) != stored
        ):
            raise self._error(
                f"has {plural(stored, 'token')} and no output head for them; its base has {rows:,}."
            )
        if stored != rows:
            model.resize_token_embeddings(stored, mean_resizing=False)

    def _stored_rows(self, model: Any, part: Any) -> int | None:
        """Return the rows of the embedding or output head *part* of *model*, if the adapter holds it whole."""
        name = next(name for name, module in model.named_modules() if module is part)
        whole = (
            self.specs.get(f"{_PREFIX}{name}.{kind}") for kind in ("weight", "base_layer.weight")
        )
        return next((len(weight) for weight in whole if weight is not None), None)

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return the merged value, in fp32, of parameter *name* if it has plain LoRA, else *weight*."""
        module = name.removesuffix(".weight")
        if module not in self.modules:
            return weight
        a, b = (self.read(self._name(module, part)).float() for part in "AB")  # (r, in), (out, r)
        # In place: allocating another tensor of this size takes longer than the sum.
        return (b @ a).mul_(self._scale(module, rank=len(a))).add_(weight)

    def _scale(self, module: str, rank: int) -> float:
        patterns = self.config.get("alpha_pattern") or {}
        default = self.config.get("lora_alpha", 8)
        # As PEFT matches them: a pattern is a module's name, or ends it.
        alpha = next(
            (patterns[key] for key in patterns if re.match(rf"(.*\.)?({key})$", module)), default
        )
        return alpha / (sqrt(rank) if self.config.get("use_rslora") else rank)

    def _name(self, module: str, part: str) -> str:
        return f"{_PREFIX}{module}.lora_{part}.weight"

"""LoRA adapters as PEFT reads them, in bytes that depend on their weights alone."""

import json
from pathlib import Path
from typing import Any


def save(
    model: Any, directory: Path, *, base: str, revision: str | None = None, weights: dict[str, Any] | None = None
) -> None:
    """Write the PEFT *model*'s adapter into *directory*, naming *base* as the model that it belongs to.

    *weights* are those of the whole model by name, where *model* itself holds a part of them.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # By hand: save_pretrained writes a card, asks the Hub about the vocabulary, and lists modules in the
    # order of Python's hashes.
    found = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False)
    tensors = {name: found[name].detach().cpu().contiguous() for name in sorted(found)}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "revision": revision, "inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    (directory / "adapter_config.json").write_text(json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n")

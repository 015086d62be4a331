"""Whether a training run can begin: options, model, data, prompts and memory, without a weight or a step."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.models import load, reference, shape
from countdown_rl.training import memory, rewards, train
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.memory import Estimate


@dataclass(frozen=True)
class Checked:
    """What a run would be. ``estimates`` are for this machine's device and, where that is none, for CUDA;
    ``room`` is the bytes of memory of this machine's device, if it says."""

    model: str
    architecture: str
    parameters: int
    trainable: int
    rows: int
    longest_prompt: int
    estimates: list[Estimate]
    room: int | None

    @property
    def fits(self) -> bool | None:
        """Whether this machine has room for the run; None where it does not say how much it has."""
        return None if self.room is None else self.estimates[0].peak <= self.room

    def as_dict(self) -> dict[str, Any]:
        """Everything, for ``--json``."""
        plain = {name: value for name, value in vars(self).items() if name != "estimates"}
        return plain | {"fits": self.fits, "memory": [one.as_dict() for one in self.estimates]}


def check(
    options: TrainOptions,
    *,
    model: str,
    data: Path,
    out: Path,
    checkpoints: Path,
    revision: str | None = None,
    processes: int = 1,
    trust_remote_code: bool = False,
) -> Checked:
    """Check what :func:`countdown_rl.training.train.train` would be given; nothing is trained or written.

    Of a model on the Hub everything but the weights is fetched.

    Raises:
        CountdownError: the run could not begin; the text says why.
    """
    weights = rewards.parse(options.reward)
    artifacts.check_writable(out, "adapter")
    rows, _ = train.read(data)
    load.silence_libraries()
    ref = reference.without_weights(reference.resolve(model, revision=revision))
    base = ref.base or ref
    config = _config(base, trust_remote_code)
    device = load.device_name("auto").partition(":")[0]
    quantized = _quantized(base)
    tokenizer = load.load_tokenizer(ref)
    skeleton = memory.skeleton(config)
    precision = "nf4" if options.precision == "auto" and quantized else options.precision
    loaded = load.Loaded(skeleton, tokenizer, ref, precision, device, "skeleton")
    longest = train.check_prompts(loaded, rows, options)
    train.config(
        options, loaded, list(weights.values()), Checkpoints(checkpoints, {})
    )  # TRL has its own say on some options
    rank = _rank(ref) or options.lora_r
    estimates = [
        memory.estimate(
            skeleton,
            options,
            device=kind,
            nf4=kind == "cuda" and precision == "nf4",
            width=_width(precision, kind, skeleton),
            prompt=longest,
            rank=rank,
            processes=processes,
        )
        for kind in dict.fromkeys((device, "cuda"))
    ]
    trained = memory.lora_parameters(skeleton, rank)
    return Checked(
        model=ref.reference,
        architecture=type(skeleton).__name__,
        parameters=skeleton.num_parameters() + trained,
        trainable=trained,
        rows=len(rows),
        longest_prompt=longest,
        estimates=estimates,
        room=_room(device),
    )


def _config(ref: reference.ModelRef, trust_remote_code: bool) -> Any:
    return shape.read_config(reference.files(ref), trust_remote_code=trust_remote_code)


def _quantized(ref: reference.ModelRef) -> bool:
    return load.stored_format(ref) == "bitsandbytes-4bit"


def _rank(ref: reference.ModelRef) -> int | None:
    """The rank of the adapter that would be trained on, or None where a new one would be made."""
    if ref.base is None:
        return None
    from peft import LoraConfig

    return int(LoraConfig.from_pretrained(str(reference.files(ref))).r)


def _width(precision: str, device: str, skeleton: Any) -> int:
    """Bytes of a number that *device* would compute with; a GPU that is not here can do bf16."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return 4 if precision == "fp32" else 2
    return int(load.compute_dtype(precision, torch.device(device), skeleton).itemsize)


def _room(device: str) -> int | None:
    """Bytes of memory that *device* has in all."""
    import torch

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None

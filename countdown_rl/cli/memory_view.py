"""Output of ``train --check``: the run in one line, and the memory it needs as a table."""

from typing import TYPE_CHECKING

from countdown_rl.cli import console

if TYPE_CHECKING:
    from countdown_rl.training.prepare import Prepared

_PARTS = {
    "weights": "weights",
    "adapter": "LoRA adapter",
    "gradients": "gradients",
    "optimiser": "optimiser states",
    "generation": "during generation",
    "loss": "during the loss",
    "peak": "peak",
}
_DEVICES = {"cuda": "CUDA GPU", "mps": "Apple GPU", "cpu": "CPU"}


def show(prepared: "Prepared", *, as_json: bool) -> None:
    """Print the result of a check; warn if this machine has too little memory."""
    console.note(
        f"{prepared.ref.portable_source}: {prepared.architecture}, {prepared.trainable:,} of {prepared.parameters:,} "
        f"parameters trained; {len(prepared.rows):,} rows, prompts of up to {prepared.longest_prompt} tokens."
    )
    if prepared.fits is False:
        needed, available = size(prepared.estimates[0].peak), size(prepared.device_memory or 0)
        console.warn(
            f"the run needs about {needed} and a margin, and this machine has {available}; lower --micro-batch, "
            "--prompts or --max-completion-length, or add --gradient-checkpointing."
        )
    table = console.table("memory", *(_DEVICES[estimate.device] for estimate in prepared.estimates))
    for name, text in _PARTS.items():
        cells = (size(getattr(estimate, name)) for estimate in prepared.estimates)
        table.add_row(text, *cells, style="bold" if name == "peak" else "")
    if prepared.fits is not None:
        needs = f"about {size(prepared.estimates[0].peak)} of {size(prepared.device_memory or 0)}"
        table.caption = f"fits this machine: {'yes' if prepared.fits else 'no'} ({needs})"
    console.result(prepared.as_dict(), as_json=as_json, view=table)


def size(count: int) -> str:
    """Return a number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

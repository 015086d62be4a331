"""Output of ``train --check``: the run in one line, and the memory it needs as a table."""

from typing import TYPE_CHECKING

from countdown_rl.cli import console

if TYPE_CHECKING:
    from countdown_rl.training.preflight import Preflight

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


def show(checked: "Preflight", *, as_json: bool) -> None:
    """Print the result of a check; warn if this machine has too little memory."""
    console.note(
        f"{checked.model}: {checked.architecture}, {checked.trainable:,} of {checked.parameters:,} parameters trained; "
        f"{checked.rows:,} rows, prompts of up to {checked.longest_prompt} tokens."
    )
    if checked.fits is False:
        needed, available = size(checked.estimates[0].peak), size(checked.device_memory or 0)
        console.warn(
            f"the run needs about {needed} and a margin, and this machine has {available}; lower --micro-batch, "
            "--prompts or --max-completion-length, or add --gradient-checkpointing."
        )
    table = console.table("memory", *(_DEVICES[estimate.device] for estimate in checked.estimates))
    for name, text in _PARTS.items():
        cells = (size(getattr(estimate, name)) for estimate in checked.estimates)
        table.add_row(text, *cells, style="bold" if name == "peak" else "")
    if checked.fits is not None:
        needs = f"about {size(checked.estimates[0].peak)} of {size(checked.device_memory or 0)}"
        table.caption = f"fits this machine: {'yes' if checked.fits else 'no'} ({needs})"
    console.result(checked.as_dict(), as_json=as_json, view=table)


def size(count: int) -> str:
    """Return a number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

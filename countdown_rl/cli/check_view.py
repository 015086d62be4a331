"""What ``train --check`` tells a person: the run in a line, and the memory it needs as a small table."""

from typing import TYPE_CHECKING

from rich.table import Table

from countdown_rl.cli import console

if TYPE_CHECKING:
    from countdown_rl.training.preflight import Preflight

_PARTS = {
    "weights": "weights",
    "adapter": "LoRA adapter",
    "gradients": "its gradients",
    "optimiser": "optimiser",
    "generation": "while completions are drawn",
    "loss": "while they are learnt from",
    "peak": "all, at its highest",
}
_DEVICES = {"cuda": "CUDA GPU", "mps": "Apple GPU", "cpu": "processor"}


def show(checked: "Preflight", *, as_json: bool) -> None:
    """Say what a run would be; warn where this machine has no room for it."""
    console.note(
        f"{checked.model}: {checked.architecture}, {checked.trainable:,} of {checked.parameters:,} parameters trained; "
        f"{checked.rows:,} rows, prompts of up to {checked.longest_prompt} tokens."
    )
    here = checked.estimates[0]
    if checked.fits is False:
        console.warn(
            f"the run needs about {size(here.peak)} and this machine has {size(checked.device_memory or 0)}; lower "
            "--micro-batch, --prompts or --max-completion-length, or add --gradient-checkpointing."
        )
    console.result(checked.as_dict(), as_json=as_json, view=_table(checked))


def _table(checked: "Preflight") -> Table:
    table = Table("memory", title_justify="left", box=None, pad_edge=False)
    for one in checked.estimates:
        table.add_column(_DEVICES[one.device], justify="right")
    for name, text in _PARTS.items():
        if name == "peak":
            table.add_section()
        cells = (size(getattr(one, name)) for one in checked.estimates)
        table.add_row(text, *cells, style="bold" if name == "peak" else "")
    return table


def size(count: int) -> str:
    """*count* bytes for people, in binary units."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

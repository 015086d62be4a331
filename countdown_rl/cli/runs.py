"""What ``train`` and ``sft`` share: the output of a run or of a check."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from countdown_rl.cli import console
from countdown_rl.core import processes
from countdown_rl.core.formatting import flag, plural, printable
from countdown_rl.core.options import option
from countdown_rl.training.options import RUN

if TYPE_CHECKING:
    from countdown_rl.training.run import Arguments, Prepare, Prepared, Reporter, Settings

Check = Annotated[
    bool, option("Only check the options, data, model and memory.", RUN, name="--check")
]

#: Parts of the memory estimate, in words.
_PARTS = {
    "weights": "weights",
    "adapter": "LoRA adapter",
    "gradients": "gradients",
    "optimiser": "optimizer states",
}
_PARTS |= {
    "engine": "vLLM",
    "generation": "during generation",
    "loss": "during the loss",
    "peak": "peak",
}


def reporter(update: Any) -> "Reporter":
    """Print notes and warnings of a run, that of a GPU that torch does not see first; show its progress by *update*."""
    from countdown_rl.models import load
    from countdown_rl.training.run import Reporter

    if text := load.unused_gpu():
        console.warn(text)
    return Reporter(progress=update, note=console.note, warning=console.warn)


def perform(
    prepare: "Prepare[Arguments, Settings]",
    arguments: "Arguments",
    options: "Settings",
    *,
    check: bool,
    overwrite: bool,
) -> None:
    """Check or run a training, and print its result."""
    from countdown_rl.training.run import execute

    processes.keep_freed_memory()
    with console.progress("step") as update:
        if not check:
            result = execute(prepare, arguments, options, reporter(update), overwrite=overwrite)
        else:
            run = prepare(arguments, options, reporter(update))
    if check:
        _show_check(run)
        return
    about: dict[str, Any] = {"out": str(result.out), "log": str(result.log)}
    if result.rows:
        about |= {"resumed": result.resumed, "warnings": result.warnings, "memory": result.memory}
    else:
        console.note(f"{result.out} is up to date (use --overwrite to rebuild).")
    console.result({**about, **result.facts})
    console.done(f"Log: {result.log}.", f"countdown-rl eval --model {result.out}")


def _show_check(run: "Prepared[Settings]") -> None:
    """Print what was checked, as JSON or as a table of memory; warn if memory or disk are too small."""
    memory, values, place = run.memory, run.check_result(), run.checkpoints.directory.absolute()
    noun = "demonstration" if run.options.method == "sft" else "prompt"
    console.note(
        f"{values['model']}: {values['architecture']}, {memory.trainable:,} of "
        f"{plural(values['parameters'], 'parameter')} trained; the longest {noun} has {run.longest} tokens."
    )
    needed, available = _size(memory.estimates[0].peak), _size(memory.available or 0)
    if memory.fits is False:
        console.warn(
            f"the run needs about {needed} and a margin, and this machine has {available}; lower "
            f"{' or '.join(map(flag, run.less_memory))}, or add --gradient-checkpointing."
        )
    if memory.free is not None and memory.available and memory.free < 0.95 * memory.available:
        console.warn(f"other processes use this GPU: {_size(memory.free)} of {available} are free.")
    place = next(path for path in (place, *place.parents) if path.is_dir())
    twice, free = 2 * memory.checkpoint, shutil.disk_usage(place).free
    if twice > free:
        console.warn(
            f"two checkpoints need {_size(twice)}, and {place} has {_size(free)} free; give --checkpoints a directory "
            "on another disk, or --tune lora."
        )
    devices = {"cuda": "CUDA GPU", "mps": "Apple GPU", "cpu": "CPU"}
    table = console.table(
        "estimated memory", *(devices[estimate.device] for estimate in memory.estimates)
    )
    for name, text in _PARTS.items():
        sizes: Sequence[int] = [getattr(estimate, name) for estimate in memory.estimates]
        if any(sizes):
            table.add_row(text, *map(_size, sizes), style="bold" if name == "peak" else "")
    table.add_row(
        "a checkpoint on disk (two at a save)",
        *(_size(memory.checkpoint) for _ in memory.estimates),
    )
    if memory.fits is not None:
        table.caption = (
            f"fits this machine: {'yes' if memory.fits else 'no'} (about {needed} of {available})"
        )
    if not console.as_json:
        console.data(
            f"first {noun}, as the model reads it{', learned from ▶ on' if run.learned else ''}:"
        )
        console.data(printable(run.first + (f"▶{run.learned}" if run.learned else "")))
    console.result(values, table)


def _size(count: int) -> str:
    """A number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

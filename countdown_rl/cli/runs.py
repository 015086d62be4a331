"""What ``train`` and ``sft`` share: options of a run, its processes, and the output of a check."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from countdown_rl.cli import console, parameters
from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Options, option
from countdown_rl.core.processes import LAUNCHES

if TYPE_CHECKING:
    from countdown_rl.training.run import Run, RunArguments

RUN = "Run"

#: Parts of the memory estimate, in words.
_PARTS = {
    "weights": "weights",
    "adapter": "LoRA adapter",
    "gradients": "gradients",
    "optimiser": "optimiser states",
    "engine": "vLLM",
    "generation": "during generation",
    "loss": "during the loss",
    "peak": "peak",
}


@dataclass(frozen=True)
class RunOptions(Options):
    """Log, checkpoints and processes of a run of ``train`` or ``sft``."""

    log: Annotated[Path | None, option("CSV log.", RUN, show_default="OUT-run/log.csv with --out OUT")] = None
    checkpoints: Annotated[
        Path | None, option("Directory of the checkpoints of an unfinished run.", RUN, show_default="beside the log")
    ] = None
    restart: Annotated[bool, option("Ignore checkpoints and start again.", RUN, name="--restart")] = False
    processes: Annotated[int, option("Processes on this machine, one per GPU.", RUN, min=1)] = 1
    launch: Annotated[
        str | None,
        option(
            f"How processes share the work: {', '.join(LAUNCHES)} or an Accelerate configuration.",
            RUN,
            metavar="NAME|FILE",
            show_default="ddp",
        ),
    ] = None
    check: Annotated[bool, option("Only check the options, data, model and memory.", RUN, name="--check")] = False

    def start_processes(self, *, alone: bool = False) -> None:
        """Run this command in several processes where that was asked for, and end with their status.

        Args:
            alone: one process is enough, as for ``--check``.

        Raises:
            UsageError: a launcher has started another number of processes.
        """
        if processes.launched():
            if self.processes not in (1, processes.world_size()):
                raise UsageError(
                    f"--processes {self.processes}: by WORLD_SIZE, RANK and LOCAL_RANK a launcher has started "
                    f"{processes.world_size()}; leave --processes out, or unset these variables."
                )
            return
        if self.launch is not None:
            processes.launch_configuration(self.launch)
        if not (alone or self.check) and (self.processes > 1 or self.launch is not None):
            configuration = self.launch or "ddp"
            raise typer.Exit(processes.launch(sys.argv[1:], processes=self.processes, configuration=configuration))

    def arguments(self, log: Path, **inputs: Any) -> "RunArguments":
        """The arguments of a run on *inputs*; its default *log* is in a directory of its own."""
        from countdown_rl.training.run import RunArguments

        log = self.log or log
        return RunArguments(
            log=log,
            checkpoints=self.checkpoints or log.with_name("checkpoints"),
            restart=self.restart,
            processes=max(self.processes, processes.world_size()),
            sharded=processes.shards_weights(self.launch),
            zero=processes.zero_stage(self.launch),
            **inputs,
        )


def perform(
    kind: type["Run"], arguments: "RunArguments", options: Any, *, check: bool, overwrite: bool, as_json: bool
) -> None:
    """Check or run a training, and print its result."""
    from countdown_rl.training.run import Reporter

    parameters.warn_of_unused_gpu()
    with console.progress("step") as update:
        reporter = Reporter(progress=update, note=console.note, warning=console.warn)
        if check:
            run = kind.prepare(arguments, options, reporter)
        else:
            result = kind.execute(arguments, options, reporter, overwrite=overwrite)
    if check:
        _show_check(run, as_json=as_json)
        return
    about: dict[str, Any] = {"out": str(result.out), "log": str(arguments.log)}
    if result.rows:
        about |= {"resumed": result.resumed, "warnings": result.warnings, "memory": result.memory}
    else:
        parameters.note_finished(result.out)
    console.result(about | result.facts, as_json=as_json)


def _show_check(run: "Run", *, as_json: bool) -> None:
    """Print what was checked, as JSON or as a table of memory; warn if memory or disk are too small."""
    memory, values, place = run.memory, run.check_result(), run.arguments.checkpoints.absolute()
    console.note(
        f"{values['model']}: {values['architecture']}, {memory.trainable:,} of {values['parameters']:,} parameters "
        f"trained; the longest {'example' if run.command == 'sft' else 'prompt'} has {run.longest} tokens."
    )
    needed, available = _size(memory.estimates[0].peak), _size(memory.available or 0)
    if memory.fits is False:
        console.warn(
            f"the run needs about {needed} and a margin, and this machine has {available}; lower {run.less_memory}, or "
            "add --gradient-checkpointing."
        )
    place = next(path for path in (place, *place.parents) if path.is_dir())
    twice, free = 2 * memory.checkpoint, shutil.disk_usage(place).free
    if twice > free:
        console.warn(
            f"two checkpoints take {_size(twice)}, and {place} has {_size(free)} free; give --checkpoints a directory "
            "on another disk, or --tune lora."
        )
    devices = {"cuda": "CUDA GPU", "mps": "Apple GPU", "cpu": "CPU"}
    table = console.table("estimated memory", *(devices[estimate.device] for estimate in memory.estimates))
    for name, text in _PARTS.items():
        sizes: Sequence[int] = [getattr(estimate, name) for estimate in memory.estimates]
        if any(sizes):
            table.add_row(text, *map(_size, sizes), style="bold" if name == "peak" else "")
    table.add_row("a checkpoint on disk (two at a save)", *(_size(memory.checkpoint) for _ in memory.estimates))
    if memory.fits is not None:
        table.caption = (
            f"an estimate; fits this machine: {'yes' if memory.fits else 'no'} (about {needed} of {available})"
        )
    console.result(values, as_json=as_json, view=table)


def _size(count: int) -> str:
    """A number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

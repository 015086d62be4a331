"""Parameters of the commands: those that several commands have, and the flags that come from an options dataclass."""

import functools
import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from countdown_rl.cli import console
from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Option, Options, choices, field_hints, option
from countdown_rl.core.processes import LAUNCHES

if TYPE_CHECKING:
    from countdown_rl.training.log import SftRow, StepRow
    from countdown_rl.training.memory import Memory
    from countdown_rl.training.tuning import Run

RUN = "Run"

AsJson = Annotated[bool, option("Print one JSON object.", name="--json")]
BaseModel = Annotated[str | None, option("Base of an adapter, in place of the one that it records.", metavar="MODEL")]
Data = Annotated[Path, option("Data directory of gen-data, or one JSONL, JSON, CSV or Parquet file.")]
Model = Annotated[str, option("Name of the shipped model, directory of a stage, GGUF file or Hub id.")]
Out = Annotated[Path, option("Directory to write.")]
Overwrite = Annotated[bool, option("Replace a finished artifact at --out.", name="--overwrite")]
Revision = Annotated[str | None, option("Revision of a Hub model.")]
TrustRemoteCode = Annotated[bool, option("Run code that comes with a model.")]

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
            if processes.arguments is None:
                raise UsageError("--processes and --launch start `countdown-rl` again; use them on its command line.")
            configuration = self.launch or "ddp"
            status = processes.launch(processes.arguments, processes=self.processes, configuration=configuration)
            raise typer.Exit(status)

    def settings(self, log: Path) -> dict[str, Any]:
        """Return the fields of a ``Run`` that these options decide; its default *log* is in a directory of its own."""
        log = self.log or log
        return {
            "log": log,
            "checkpoints": self.checkpoints or log.with_name("checkpoints"),
            "restart": self.restart,
            "processes": max(self.processes, processes.world_size()),
            "sharded": processes.shards_weights(self.launch),
            "zero": processes.zero_stage(self.launch),
        }


def note_finished(out: Path) -> None:
    """Tell that the artifact at *out* is the one that the command would write."""
    console.note(f"{out} is there, made by the same options from the same inputs; --overwrite makes it again.")


def show_finished(run: "Run", facts: dict[str, Any], *, as_json: bool) -> None:
    """Print the result of *run*, which has written its artifact already."""
    note_finished(run.out)
    console.result({"out": str(run.out), "log": str(run.log)} | facts, as_json=as_json)


def note_validation(row: "StepRow | SftRow") -> None:
    """Tell what the evaluation at a step found, where there was one."""
    if row.eval_correct is not None:
        console.note(f"Step {row.step}: {row.eval_correct:.1%} of the validation puzzles solved.")


def note_kept_step(facts: Mapping[str, Any]) -> None:
    """Tell which step's weights a run wrote, where it evaluated them."""
    if "kept_step" in facts:
        step = f"step {facts['kept_step']}" if facts["kept_step"] else "the start"
        console.note(f"Its weights are those of {step}: {facts['eval_correct']:.1%} of the validation puzzles solved.")


def warn_of_unused_gpu() -> None:
    """Warn where torch does not see the GPU of this machine."""
    from countdown_rl.models import load

    if text := load.unused_gpu():
        console.warn(text)


def show_check(values: Mapping[str, Any], memory: "Memory", checkpoints: Path, fewer: str, *, as_json: bool) -> None:
    """Print the result of a check, *values* or the table of *memory*; warn if memory or disk are too small.

    Args:
        checkpoints: their directory.
        fewer: options of which lower values need less memory.
    """
    needed, available = _size(memory.estimates[0].peak), _size(memory.available or 0)
    if memory.fits is False:
        console.warn(
            f"the run needs about {needed} and a margin, and this machine has {available}; lower {fewer}, or add "
            "--gradient-checkpointing."
        )
    place = next(path for path in (checkpoints.absolute(), *checkpoints.absolute().parents) if path.is_dir())
    twice, free = 2 * memory.checkpoint, shutil.disk_usage(place).free
    if twice > free:
        console.warn(
            f"two checkpoints take {_size(twice)}, and {place} has {_size(free)} free; give --checkpoints a directory "
            "on another disk, or --tune lora."
        )
    devices = {"cuda": "CUDA GPU", "mps": "Apple GPU", "cpu": "CPU"}
    table = console.table("estimated memory", *(devices[estimate.device] for estimate in memory.estimates))
    for name, text in _PARTS.items():
        sizes = [getattr(estimate, name) for estimate in memory.estimates]
        if any(sizes):
            table.add_row(text, *map(_size, sizes), style="bold" if name == "peak" else "")
    table.add_row("a checkpoint on disk (two at a save)", *(_size(memory.checkpoint) for _ in memory.estimates))
    if memory.fits is not None:
        table.caption = (
            f"an estimate; fits this machine: {'yes' if memory.fits else 'no'} (about {needed} of {available})"
        )
    console.result(values, as_json=as_json, view=table)


def _size(count: int) -> str:
    """Return a number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of *command* that is annotated with an options dataclass by one flag per field.

    The command is called with one, checked instance of that dataclass. Declarations become those of Typer.
    """
    groups: dict[str, type[Options]] = {}
    parameters: list[inspect.Parameter] = []
    for name, declared in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(declared.annotation, type) and issubclass(declared.annotation, Options):
            groups[name], hints = declared.annotation, field_hints(declared.annotation)
            defaults = {field.name: field.default for field in fields(groups[name])}
            own = declared.annotation.__annotations__  # listed before those that several stages share
            parameters += [_parameter(key, hints[key], defaults[key]) for key in dict.fromkeys([*own, *hints])]
        else:
            parameters.append(declared.replace(annotation=_declared(declared.annotation)))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, options_type in groups.items():
            given = {field.name: values.pop(field.name) for field in fields(options_type)}
            lists = {key: tuple(map(str, value)) for key, value in given.items() if isinstance(value, list)}
            values[name] = options_type(**given | lists)
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Return the command's parameter for a field; a tuple becomes a list, which Typer takes as a repeatable flag."""
    kind, *extras = get_args(hint)
    if get_origin(kind) is tuple:
        allowed = choices(kind)  # Typer knows no list of a Literal
        item = StrEnum(name, {choice: choice for choice in allowed}) if allowed else get_args(kind)[0]
        hint, default = Annotated[list[item], *extras], list(default)  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_declared(hint))


def _declared(hint: Any) -> Any:
    """Return *hint* with Typer's declaration of a flag in place of the package's own."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *extras = get_args(hint)
    return Annotated[kind, *(_typer_option(extra) if isinstance(extra, Option) else extra for extra in extras)]


def _typer_option(declared: Option) -> Any:
    settings = asdict(declared)
    name, parse = settings.pop("name"), settings.pop("parser")

    def parser(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error

    return typer.Option(*([name] if name else []), parser=parser if parse else None, **settings)

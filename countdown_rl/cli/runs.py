"""What ``train`` and ``sft`` share: the output of a run or of a check."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from countdown_rl.cli import console
from countdown_rl.core import artifacts, processes
from countdown_rl.core.formatting import plural, printable
from countdown_rl.core.options import option
from countdown_rl.core.types import JsonObject
from countdown_rl.training.options import RUN, RunArguments, TuningOptions
from countdown_rl.training.state import Places

if TYPE_CHECKING:
    from countdown_rl.training.prepared import Prepared, Reporter, Settings
    from countdown_rl.training.run import Arguments, Prepare

Check = Annotated[
    bool, option("Only check the options, data, model and memory.", RUN, name="--check")
]


def check_paths(arguments: RunArguments, options: TuningOptions) -> None:
    """Check the paths of a run, and say whether its artifact is there, before torch is imported."""
    places = Places.of(arguments, options)
    if artifacts.peek(places.out) == places.kind:
        console.note(f"{places.out} is finished; comparing it with this command.")


def reporter(update: Callable[..., None]) -> "Reporter":
    """Return the callbacks that print notes and warnings, and show progress by *update*."""
    from countdown_rl.models import load
    from countdown_rl.training.prepared import Reporter

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
    """Check or run a training, and print its result.

    Args:
        prepare: of ``train`` or ``sft``.
        arguments: inputs and outputs.
        options: how to train.
        check: only check, and print what the run needs.
        overwrite: replace a finished artifact.
    """
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
    about: JsonObject = {"out": str(result.out), "log": str(result.log)}
    text = f"{result.out} is up to date (use --overwrite to rebuild)."
    if result.rows:
        about |= {"resumed": result.resumed, "warnings": result.warnings}
        about["peak_memory"] = result.peak_memory
        text = f"Logged the run in {result.log}."
    console.result({**about, **result.facts})
    console.done(text, f"countdown-rl eval --model {result.out}")


def _show_check(run: "Prepared[Settings]") -> None:
    """Print what was checked, as JSON or with a table of memory; warn if memory is small."""
    memory = run.memory
    values = run.check_result()
    noun = "demonstration" if run.options.method == "sft" else "prompt"
    console.note(
        f"{values['model']}: {values['architecture']}, {memory.trainable:,} of "
        f"{plural(values['parameters'], 'parameter')} trained; the longest {noun} has "
        f"{run.longest} tokens."
    )
    if memory.total > memory.device_memory:
        completions = ", or fewer or shorter completions" if memory.cache else ""
        console.warn(
            f"the run needs {_size(memory.total)} before the loss, and this machine has "
            f"{_size(memory.device_memory)}; take a smaller model{completions}."
        )
    parts = {
        "weights": memory.weights,
        "trained weights, gradients, optimizer states": memory.states,
        "key-value cache of a round": memory.cache,
        "sum, without the loss": memory.total,
        "memory of this device": memory.device_memory,
        "a checkpoint on disk": memory.checkpoint,
    }
    table = console.table("memory", "")
    for name, size in parts.items():
        table.add_row(name, _size(size))
    if not console.as_json:
        heading, text = f"first {noun}, as the model reads it", run.first
        if run.learned:
            heading += ", learned from ▶ on"
            text += f"▶{run.learned}"
        console.data(f"{heading}:")
        console.data(printable(text))
    console.result(values, table)


def _size(count: int) -> str:
    """A number of bytes in MiB or GiB."""
    mebi = count / 2**20
    return f"{mebi:.1f} MiB" if mebi < 1000 else f"{mebi / 1024:.1f} GiB"

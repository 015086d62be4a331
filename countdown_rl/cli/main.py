"""Entry point: the table of commands, their lazy loading, and the exit status of every failure.

A command is the function of its name in the module of its name, which is imported when the command
runs or shows its help, and torch only while it runs, so help and completion are fast.
"""

import io
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from countdown_rl.cli.help import HELP_OPTIONS, Command, CommandGroup, as_command
from countdown_rl.cli.quiet import silence_libraries
from countdown_rl.core import errors, packages, processes
from countdown_rl.core.formatting import flag

COMMANDS = {
    "Stages, in order": {
        "gen-data": "Generate or import puzzles, split for training and testing.",
        "train": "Train a LoRA adapter, or all weights, with GRPO.",
        "eval": "Evaluate a model on held-out puzzles.",
        "merge": "Merge a LoRA adapter into its base, as ordinary safetensors.",
        "quantize": "Write a model's weights in fewer bits.",
        "publish": "Build the release folder of a model, and upload it with --push.",
    },
    "Other commands": {
        "sft": "Fine-tune a model on demonstrations.",
        "collect": "Make demonstrations from a model's answers.",
        "compare": "Compare evaluations on the same puzzles.",
        "samples": "Show completions with their grades, or the causes of errors.",
        "report": "Write one self-contained HTML page about a run.",
        "verify": "Re-measure the accuracy a release claims.",
        "ask": "Ask a model one puzzle, and stream its reasoning.",
        "solve": "Count the solutions of a puzzle exactly, and print a short one.",
        "grade": "Grade completions exactly, one line of output per completion.",
        "init": "Write the pipeline into a directory: dvc.yaml, stages/ and the settings of DVC.",
        "export-task": "Write the task for another evaluator or training engine.",
    },
}

app = typer.Typer(
    name="countdown-rl",
    cls=CommandGroup,
    context_settings=HELP_OPTIONS,
    help="Post-train a language model with GRPO on the Countdown numbers puzzle, from data to a published model.",
    epilog="Each stage reads the paths given as options and writes one directory.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
BUG = "this is a bug in countdown-rl; please report it with the lines above."
_shows_traceback = False


def command(name: str) -> Command:
    from countdown_rl.cli.parameters import with_options

    function = name.replace("-", "_")
    module = import_module(f"countdown_rl.cli.{function}")
    configured = name in COMMANDS["Stages, in order"] or name == "sft"
    return as_command(name, with_options(getattr(module, function), configured))


class _Lazy(Command):
    """An entry of the list of commands; it loads the command when it is called."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return command(str(self.name)).make_context(*args, **extra)


for _panel, _commands in COMMANDS.items():
    for _name, _help in _commands.items():
        app.command(_name, cls=_Lazy, help=_help, rich_help_panel=_panel)(lambda: None)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"countdown-rl {packages.version()}")  # noqa: T201 - the printer imports Rich, which is slow
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print a failure's traceback; goes first.")
    ] = False,
) -> None:
    global _shows_traceback
    _shows_traceback = traceback


def main(run: Callable[[], object] = app) -> None:
    """Run a command. A failure becomes one sentence on stderr and an exit status.

    The status is 0 for done, 1 for failed, 2 for wrong usage, and 128 plus its number for a signal.
    An error of user code adds the frames of that code; an unexpected exception prints its
    traceback.
    """
    global _shows_traceback
    _shows_traceback = False
    processes.begin()
    silence_libraries()
    if not processes.is_main():
        from countdown_rl.cli import console

        console.silence()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests and notebooks have others
            stream.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    try:
        with processes.signals_as_exceptions():
            run()
    except (KeyboardInterrupt, processes.Terminated, Exception) as error:
        _fail(error)


def _fail(error: BaseException) -> NoReturn:
    from countdown_rl.cli import console

    status, sentence = _outcome(error)
    full = _shows_traceback or sentence == BUG
    if not processes.is_main() and not isinstance(
        error, errors.CountdownError
    ):  # rank 0 may not have failed
        console.people.quiet = False
        sentence = f"process {processes.rank()}: {sentence}"
    if full:
        console.note("".join(traceback.format_exception(error)).rstrip())
    if status < 128:
        console.failure(sentence)
    else:
        console.note(sentence)
    if not full and (frames := errors.user_frames(error)):
        console.note(frames)
    sys.exit(status)


def _outcome(error: BaseException) -> tuple[int, str]:
    """Return the exit status and the sentence for a failure."""
    if isinstance(error, KeyboardInterrupt | processes.Terminated):
        number = getattr(error, "number", signal.SIGINT)
        return 128 + number, processes.ended_by(number)
    if isinstance(error, errors.CountdownError):
        sentence = error.sentence
        if error.option:
            sentence = f"{flag(error.option)} {sentence}"
        return 2 if isinstance(error, errors.UsageError) else 1, sentence
    if isinstance(error, ModuleNotFoundError) and (command := packages.install(error.name or "")):
        return 1, f"{error.name} is not installed: {command}."
    if failure := errors.machine_failure(error):
        return 1, failure
    if errors.user_frames(error):
        return 1, f"{type(error).__name__}: {errors.first_line(error)}."
    return 1, BUG

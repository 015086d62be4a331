"""Entry point: the table of commands, their lazy loading, and the exit status of every failure.

A command lives in the module and function of its name. The module is imported only when the command runs or shows
its own help, and torch only while it runs, so that help and completion answer at once.
"""

import io
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from countdown_rl.cli.help import Command, CommandGroup, as_command
from countdown_rl.core import packages, processes
from countdown_rl.core.errors import (
    CountdownError,
    UsageError,
    first_line,
    machine_failure,
    raised_by_user,
    user_frames,
)

COMMANDS = {
    "Stages, in order": {
        "gen-data": "Generate or import puzzles, as splits for training and testing.",
        "train": "Train a LoRA adapter, or all weights, with GRPO.",
        "eval": "Evaluate a model on held-out puzzles.",
        "merge": "Merge a LoRA adapter into its base, as ordinary safetensors.",
        "quantize": "Write a model's weights in fewer bits.",
        "publish": "Build the release folder of a model or data set, and upload it with --push.",
    },
    "Other commands": {
        "sft": "Fine-tune a model on demonstrations.",
        "collect": "Make demonstrations or preference pairs of a model's own answers.",
        "compare": "Compare evaluations on the same puzzles.",
        "diagnose": "Show what costs an evaluation its points.",
        "samples": "Show completions with their grades.",
        "report": "Write one self-contained HTML page about a run.",
        "verify": "Measure whether a release does what its card claims.",
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
    help="Post-train a language model with GRPO on the Countdown numbers puzzle, from data to a published model.",
    epilog="Each stage reads the paths given as options and writes one directory.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_shows_traceback = False


def command(name: str) -> Command:
    from countdown_rl.cli.parameters import with_options

    function = name.replace("-", "_")
    module = import_module(f"countdown_rl.cli.{function}")
    return as_command(name, with_options(getattr(module, function)))


class _Lazy(Command):
    """Entry of the list of commands, which becomes the command itself where it gets arguments."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return command(str(self.name)).make_context(*args, **extra)


for _panel, _commands in COMMANDS.items():
    for _name, _help in _commands.items():
        app.command(_name, cls=_Lazy, help=_help, rich_help_panel=_panel)(lambda: None)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"countdown-rl {packages.version()}")  # noqa: T201 - without the printer, which costs the import of Rich
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the full traceback of a failure; goes before the command.")
    ] = False,
) -> None:
    global _shows_traceback
    _shows_traceback = traceback


def main(run: Callable[[], Any] = app) -> None:
    """Run a command; a failure becomes one sentence on stderr and an exit status.

    0 done, 1 failed (the sentence says what to do), 2 wrong usage, 128 and its number: ended by a signal. Errors of a
    user's own code add the frames of that code. An unexpected exception prints its traceback, and the status is 1.
    """
    global _shows_traceback
    _shows_traceback = False
    processes.end_with_launcher()
    if not processes.is_main():
        from countdown_rl.cli import console

        console.silence()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - open until the end
    if sys.stdout is None:
        _exit("stdout is closed; redirect it to a file, or to /dev/null.", 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests and notebooks have others
            stream.reconfigure(errors="backslashreplace")  # characters that its encoding lacks
    processes.spin_briefly()
    try:
        with processes.signals_as_exceptions():
            run()
    except (KeyboardInterrupt, processes.Terminated) as error:
        _exit(
            f"ended by {str(error) or 'SIGINT'}; run the same command again.", 128 + getattr(error, "number", 2), error
        )
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (sentence := packages.missing(error.name or "")):
            _exit(sentence, 1, error)
        if sentence := machine_failure(error):
            _exit(sentence, 1, error)
        if isinstance(error, CountdownError):
            _exit(str(error), 2 if isinstance(error, UsageError) else 1, error, everywhere=False)
        if raised_by_user(error):
            _exit(f"{type(error).__name__}: {first_line(error)}", 1, error)
        _shows_traceback = True
        _exit("this is a bug in countdown-rl; please report it with the lines above.", 1, error)


def _exit(sentence: str, status: int, error: BaseException | None = None, *, everywhere: bool = True) -> NoReturn:
    """End with *status* after a sentence, and the frames of a user's code in the traceback of *error*.

    Args:
        everywhere: not only in the main process, since the others do not fail in the same way.
    """
    from countdown_rl.cli import console

    if everywhere and not processes.is_main():
        console.people.quiet = False
        sentence = f"process {processes.rank()}: {sentence}"
    if error is not None and _shows_traceback:
        console.note("".join(traceback.format_exception(error)).rstrip())
    console.failure(sentence)
    if error is not None and not _shows_traceback and (frames := user_frames(error)):
        console.note(frames)
    sys.exit(status)

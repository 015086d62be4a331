"""The command line: one file a command, and the only place that parses options or prints.

Nothing here imports torch at import time, so that help and completion answer at once.
"""

import errno
import os
import sys
from typing import Annotated

import typer

from countdown_rl import __version__, processes
from countdown_rl.cli import (
    ask,
    compare,
    console,
    eval,
    gen_data,
    grade,
    merge,
    publish,
    quantize,
    report,
    samples,
    sft,
    solve,
    train,
)
from countdown_rl.errors import CountdownError, UsageError

app = typer.Typer(
    name="countdown-rl",
    help="Post-train a language model with GRPO on the Countdown numbers puzzle, and carry the result all the way.",
    epilog="Each stage reads the paths it is given and writes one directory.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        console.data(f"countdown-rl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


STAGES = "The stages, in order"
BESIDE = "Beside the stages"

app.command("gen-data", rich_help_panel=STAGES)(gen_data.gen_data)
app.command("train", rich_help_panel=STAGES)(train.train)
app.command("eval", rich_help_panel=STAGES)(eval.eval_)
app.command("merge", rich_help_panel=STAGES)(merge.merge)
app.command("quantize", rich_help_panel=STAGES)(quantize.quantize)
app.command("publish", rich_help_panel=STAGES)(publish.publish)
app.command("compare", rich_help_panel=BESIDE)(compare.compare)
app.command("report", rich_help_panel=BESIDE)(report.report)
app.command("ask", rich_help_panel=BESIDE)(ask.ask)
app.command("samples", rich_help_panel=BESIDE)(samples.samples)
app.command("sft", rich_help_panel=BESIDE)(sft.sft)
app.command("solve", rich_help_panel=BESIDE)(solve.solve)
app.command("grade", rich_help_panel=BESIDE)(grade.grade)


def main() -> None:
    """Run the command; turn every failure into one sentence and an exit status.

    0 done, 1 could not (the sentence says what to do), 2 wrong usage, 130 interrupted. With
    ``COUNTDOWN_RL_DEBUG=1`` a failure shows its traceback as well.
    """
    if not processes.first():
        console.hush()
    try:
        app(standalone_mode=True)
    except UsageError as error:
        _fail(error, str(error), 2)
    except CountdownError as error:
        _fail(error, str(error), 1)
    except KeyboardInterrupt as error:
        _fail(error, "interrupted; run the same command again.", 130)
    except BrokenPipeError:  # the reader of our output went away: not a failure of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(error, _os_sentence(error), 1)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        _fail(error, f"{type(error).__name__}: {text} (COUNTDOWN_RL_DEBUG=1 shows where).", 1)


def _os_sentence(error: OSError) -> str:
    where = error.filename or "the output"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk while writing {where}; free some and run the same command again."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where} cannot be opened: permission denied."
    if error.errno == errno.ENOENT:
        return f"{where} does not exist."
    return f"{where}: {error.strerror or error}."


def _fail(error: BaseException, sentence: str, status: int) -> None:
    if os.environ.get("COUNTDOWN_RL_DEBUG"):
        raise error
    if not processes.first() and not isinstance(error, CountdownError):
        console.people.quiet = False  # a CountdownError meets all processes, and the first has told of it
        sentence = f"process {processes.number()}: {sentence}"
    console.failure(sentence)
    sys.exit(status)

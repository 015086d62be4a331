"""Exceptions whose text is one sentence for the user: what is wrong, where, what to do.

Others are bugs, except failures of the machine (:func:`machine_failure`) and of a user's code (:func:`user_frames`).
"""

import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class CountdownError(Exception):
    """Base of the errors below; the command exits with status 1.

    Args:
        sentence: what is wrong, where, and what to do.
        option: the option that the sentence is about, as a keyword of Python; the sentence goes on after its name.
    """

    def __init__(self, sentence: str, *, option: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.option = option.rstrip("_")

    def __str__(self) -> str:
        return f"{self.option} {self.sentence}".lstrip()


class UsageError(CountdownError, ValueError):
    """The options are invalid or contradict each other; the command exits with status 2."""


class InputError(CountdownError, ValueError):
    """Invalid input: a row, an expression, a file."""


class ArtifactError(CountdownError):
    """An artifact is missing, damaged, of the wrong kind, or being written by another process."""


class ModelError(CountdownError):
    """A model cannot be found, or cannot be loaded on this machine."""


class HubError(CountdownError):
    """The Hub cannot be reached, or refuses a request."""


@contextmanager
def input_as_usage(option: str = "") -> Iterator[None]:
    """Report invalid input in an option, such as a puzzle, as wrong usage of *option*."""
    try:
        yield
    except InputError as error:
        raise UsageError(
            f"{option}: {str(error).rstrip('.')}." if option else str(error)
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message without a period, or the error's type if it has none."""
    text = str(error.strerror if isinstance(error, OSError) and error.filename else error).strip()
    text = " ".join((text or type(error).__name__).split("\n")[0].split())
    return re.sub(r"\[Errno -?\d+\] | ?\(os error \d+\)", "", text).rstrip(".")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and the exceptions that it was raised from or during, newest first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


#: Loaded plug-ins, as ``module:name``; their code counts as a user's own.
PLUGINS: set[str] = set()
_PACKAGE = str(Path(__file__).parents[1])
_STDLIB = re.escape(sysconfig.get_path("stdlib"))
#: Files of libraries; Jinja calls those of a template ``<template>``.
_LIBRARY = re.compile(rf"[/\\](site|dist)-packages[/\\]|^{_STDLIB}|^<(?!template>|unknown>)")


def user_frames(error: BaseException) -> str:
    """Return the frames of a user's code in *error* or its causes; "" if that code raised a CountdownError itself."""
    for cause in reversed([*causes(error)]):
        frames = list(traceback.walk_tb(cause.__traceback__))
        frames_of_user = [frame for frame in frames if _owner(frame[0]) == "user"]
        if frames_of_user and not (
            isinstance(cause, CountdownError) and frames[-1] == frames_of_user[-1]
        ):
            return "".join(traceback.StackSummary.extract(iter(frames_of_user)).format()).rstrip()
    return ""


def raised_by_user(error: BaseException) -> bool:
    """Return True if the last frame of *error* outside of libraries belongs to a user's code, not to this package."""
    owners = [_owner(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [owner for owner in owners if owner != "library"][-1:] == ["user"]


def _owner(frame: FrameType) -> str:
    return owner(frame.f_code.co_filename, str(frame.f_globals.get("__name__")))


def owner(file: str, module: str) -> str:
    """Return the owner of the code of *module* in *file*: "package", "library" or "user"."""
    plugins = {re.split("[.:]", name)[0] for name in PLUGINS}
    if file.startswith(_PACKAGE):
        return "package"
    return (
        "library" if _LIBRARY.search(file) and module.partition(".")[0] not in plugins else "user"
    )


#: Advice for exhausted resources, by error number. These count anywhere in a chain of exceptions.
_RESOURCES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise `ulimit -f`",
    errno.EMFILE: "raise the limit (`ulimit -n 1024`)",
    errno.ENOMEM: "close programs, or ask for less work at a time",
    errno.EAGAIN: "raise `ulimit -u`, or close programs",
    errno.EIO: "check the disk",
}
#: Messages of libraries that give no number.
_MESSAGES = {
    r"iostream error|PytorchStreamWriter failed|enforce fail at inline_container|requested and \d+ written"
    r"|No space left": errno.ENOSPC,
    r"can't start new thread": errno.EAGAIN,
    r"Too many open files": errno.EMFILE,
    r"(?i)out of memory|(cannot|can't) allocate memory|not enough memory|_STATUS_ALLOC_FAILED": errno.ENOMEM,
}


def machine_failure(error: BaseException) -> str | None:
    """Return the sentence for an *error* that the machine caused, such as a full disk; None for others."""
    for cause in causes(error):
        number = _number(cause)
        if number == errno.ENOMEM and isinstance(
            error, CountdownError
        ):  # which names the option to lower
            return None
        if number in _RESOURCES:
            file, fault = getattr(cause, "filename", None), os.strerror(number)
            place = f" ({file})" if file else ""
            return f"{fault[0].lower()}{fault[1:]}{place}; {_RESOURCES[number]} and run the same command again."
    if loop := re.match("Symlink loop from '(.*)'", str(error)):
        return f"{loop[1]} is a link that leads to itself; give another path."
    if isinstance(error, OSError) and error.filename and not isinstance(error, FileNotFoundError):
        return f"{error.filename!s:.60} cannot be used: {str(error.strerror).lower()}; give another path."
    return None


def out_of_memory(error: BaseException) -> bool:
    """Return True if *error* means that the memory of a GPU or of the machine is exhausted."""
    return _number(error) == errno.ENOMEM


def _number(error: BaseException) -> int | None:
    if isinstance(error, CountdownError):  # whose text may quote a file
        return None
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if match := re.search(
        r"\(os error (\d+)\)", str(error)
    ):  # Rust's, as in safetensors and tokenizers
        return int(match[1])
    return next(
        (number for pattern, number in _MESSAGES.items() if re.search(pattern, str(error))), None
    )

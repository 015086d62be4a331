"""Exceptions whose text is one sentence for the user: what is wrong, where, what to do.

Others that escape are bugs, except for failures of the machine (:func:`machine_failure`) and of the user's own code
(:func:`user_frames`).
"""

import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


class CountdownError(Exception):
    """Base of the errors below; the command exits with status 1."""


class UsageError(CountdownError, ValueError):
    """The options are invalid or contradict each other; the command exits with status 2."""


class InputError(CountdownError, ValueError):
    """Invalid input: a row, an expression, a file."""


class ArtifactError(CountdownError):
    """An artifact is missing, damaged or of the wrong kind, or its directory is in use."""


class ModelError(CountdownError):
    """A model cannot be found, or cannot be loaded on this machine."""


class HubError(CountdownError):
    """The Hub cannot be reached, or refuses a request."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error message as a sentence, or the error's type where it has none."""
    text = " ".join((str(error).strip() or type(error).__name__).split("\n")[0].split())
    return text if text.endswith(".") else text + "."


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and those that it was raised from or during; the last is what happened first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


#: Top-level modules of installed plug-ins; their frames are shown as those of a user's own code are.
PLUGINS: set[str] = set()
_PACKAGE = str(Path(__file__).parents[1])
_STDLIB = re.escape(sysconfig.get_path("stdlib"))
#: Files of libraries; Jinja calls those of a template ``<template>``.
_LIBRARY = re.compile(rf"[/\\](site|dist)-packages[/\\]|^{_STDLIB}|^<(?!template>|unknown>)")


def user_frames(error: BaseException) -> str:
    """Return the frames of a user's reward, task or template in the traceback of *error* or of its cause, formatted.

    Frames of this package, of Python and of installed libraries are left out; "" where there are no others, or where a
    user's code raised one of the errors above itself.
    """
    for cause in reversed([*causes(error)]):
        frames = list(traceback.walk_tb(cause.__traceback__))
        frames_of_user = [frame for frame in frames if _owner(frame[0]) == "user"]
        if frames_of_user and not (isinstance(cause, CountdownError) and frames[-1] == frames_of_user[-1]):
            return "".join(traceback.StackSummary.extract(iter(frames_of_user)).format()).rstrip()
    return ""


def raised_by_user(error: BaseException) -> bool:
    """Return True if the last frame of *error* that is not a library's is of a user's code, not of this package."""
    owners = [_owner(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [owner for owner in owners if owner != "library"][-1:] == ["user"]


def _owner(frame: FrameType) -> str:
    """Return whose code *frame* is: "package", "library" or "user"."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    if file.startswith(_PACKAGE):
        return "package"
    return "library" if _LIBRARY.search(file) and module.partition(".")[0] not in PLUGINS else "user"


#: What is exhausted or broken, by the error number, and what to do. These count wherever they stand in a chain of
#: exceptions, and as the text of a library's error, which often has no number.
_RESOURCES = {
    errno.ENOSPC: "no space left on the disk while writing {path}; free some and run the same command again.",
    errno.EDQUOT: "the disk quota is exhausted while writing {path}; free some space and run the same command again.",
    errno.EFBIG: "{path} grew beyond the largest allowed file; raise `ulimit -f`, or use another file system.",
    errno.EMFILE: "too many open files; raise the limit (`ulimit -n 1024`) and run the same command again.",
    errno.ENFILE: "too many open files on this machine; close programs and run the same command again.",
    errno.ENOMEM: "the memory of this machine is exhausted; close programs, or ask for less work at a time.",
    errno.EAGAIN: "no more processes or threads can be started; raise `ulimit -u`, or close programs.",
    errno.EIO: "the disk failed while {path} was read or written; check the disk and run the same command again.",
}
#: Numbers of the errors of a path. These count only as the exception itself: they are often handled.
_PATHS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.ELOOP, errno.EBUSY),
)
#: Messages without a number. PyTorch writes none into that of a failed write.
_MESSAGES = {
    r"iostream error|PytorchStreamWriter failed|enforce fail at inline_container.*unexpected pos": errno.ENOSPC,
    r"requested and \d+ written": errno.ENOSPC,  # NumPy's tofile
    r"can't start new thread": errno.EAGAIN,
    r"(?i)out of memory|can't allocate memory|not enough memory": errno.ENOMEM,  # PyTorch's, also of a GPU
    **{os.strerror(number): number for number in _RESOURCES if number != errno.EAGAIN},
}


def machine_failure(error: BaseException) -> str | None:
    """Return the sentence for an *error* that the machine caused, such as a full disk; None for others."""
    if isinstance(error, OSError) and error.errno in _PATHS:
        return f"{error.filename or 'the output'} cannot be used: {str(error.strerror).lower()}; give another path."
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "there is no directory for temporary files that can be written; set TMPDIR to one."
    for cause in causes(error):
        number = _number(cause)
        if number == errno.ENOMEM and isinstance(error, CountdownError):  # which names the option to lower
            return None
        if number in _RESOURCES:
            return _RESOURCES[number].format(path=getattr(cause, "filename", None) or "the output")
    return None


def out_of_memory(error: BaseException) -> bool:
    """Return True if *error* means that the memory of a GPU or of the machine is exhausted."""
    return _number(error) == errno.ENOMEM


def _number(error: BaseException) -> int | None:
    if isinstance(error, CountdownError):  # whose text may hold that of a file
        return None
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if match := re.search(r"\(os error (\d+)\)", text):  # Rust's, as in safetensors and tokenizers
        return int(match[1])
    return next((number for pattern, number in _MESSAGES.items() if re.search(pattern, text)), None)

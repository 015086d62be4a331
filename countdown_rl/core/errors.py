"""Exceptions whose text is one sentence for the user: what is wrong, where, what to do.

Others are bugs, except failures of the machine (:func:`machine_failure`) and of a user's code
(:func:`user_frames`).
"""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CountdownError(Exception):
    """Base of the errors below; the command exits with status 1.

    Args:
        sentence: what is wrong, where, and what to do.
        option: the option that the sentence is about, as a keyword of Python; the sentence goes on
            after its name.
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
        sentence = str(error).rstrip(".")
        if option:
            sentence = f"{option}: {sentence}"
        raise UsageError(f"{sentence}.") from error


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message without a period, or the error's type if
    it has none.
    """
    text = str(error.strerror if isinstance(error, OSError) and error.filename else error).strip()
    text = " ".join((text or type(error).__name__).split("\n")[0].split())
    return re.sub(r"\[Errno -?\d+\] | ?\(os error \d+\)", "", text).rstrip(".")


_PACKAGE = str(Path(__file__).parents[1])
_STDLIB = re.escape(sysconfig.get_path("stdlib"))
#: Files of libraries; Jinja calls those of a template ``<template>``.
_LIBRARY = re.compile(rf"[/\\](site|dist)-packages[/\\]|^{_STDLIB}|^<(?!template>|unknown>)")


def user_frames(error: BaseException | None) -> str:
    """Return the frames of a user's code in the first exception, of *error* and those that it was
    raised from or during, that has some; "" if there is none, or that code raised a CountdownError
    itself.
    """
    if error is None:
        return ""
    frames = list(traceback.walk_tb(error.__traceback__))
    of_user = [frame for frame in frames if is_users(frame[0].f_code.co_filename)]
    if isinstance(error, CountdownError) and frames[-1:] == of_user[-1:]:
        of_user = []
    earlier = user_frames(error.__cause__ or error.__context__)
    return earlier or "".join(traceback.StackSummary.extract(iter(of_user)).format()).rstrip()


def is_users(file: str) -> bool:
    """Return True if the code in *file* is neither this package's nor a library's."""
    return not file.startswith(_PACKAGE) and not _LIBRARY.search(file)


#: Texts of torch and safetensors, which give no error number.
_DISK = re.compile(
    r"No space left|os error \d+|iostream error|PytorchStreamWriter failed|inline_container"
)
_MEMORY = re.compile(
    r"(?i)out of memory|(cannot|can't) allocate memory|not enough memory|_STATUS_ALLOC_FAILED"
)


def machine_failure(error: BaseException) -> str | None:
    """Return the sentence for an *error* that the machine caused, such as a full disk; None for
    others.
    """
    if out_of_memory(error):
        return "out of memory; close programs, or ask for less work at a time."
    cause = first_line(error)
    if _DISK.search(str(error)):
        return f"writing failed ({cause}); free some space, and run the same command again."
    if isinstance(error, FileNotFoundError) or not isinstance(error, OSError) or not error.errno:
        return None
    place = f" ({error.filename!s:.60})" if error.filename else ""
    return f"{cause[:1].lower()}{cause[1:]}{place}; mend that, and run the same command again."


def out_of_memory(error: BaseException) -> bool:
    """Return True if *error* means that the memory of a GPU or of the machine is exhausted."""
    if isinstance(error, CountdownError):  # whose text may quote a file
        return False
    return isinstance(error, MemoryError) or bool(_MEMORY.search(str(error)))

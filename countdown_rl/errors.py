"""Exceptions whose text is one sentence for the user: what is wrong, where, what to do. Others that escape are bugs."""


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

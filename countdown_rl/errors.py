"""What can go wrong, each as one sentence that says what to do. Anything else that escapes is a bug."""


class CountdownError(Exception):
    """Something could not be done. Its text is one sentence for a person; the command exits with 1."""


class UsageError(CountdownError, ValueError):
    """The options make no sense together. The command exits with 2."""


class InputError(CountdownError, ValueError):
    """What was read is not what it should be: a row, an expression, a file."""


class ArtifactError(CountdownError):
    """An artifact is missing, damaged, of the wrong kind, or in the way."""


class ModelError(CountdownError):
    """A model reference that leads nowhere, or to something that cannot be loaded here."""


class HubError(CountdownError):
    """The Hub cannot be reached, or will not do what was asked."""

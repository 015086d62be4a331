"""Data sets of the Hub."""

from collections.abc import Iterator

from countdown_rl.core import hub
from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.tasks import files


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[files.PlacedRecord]]:
    """The commit of the Hub data set *name*, ``NAME[:CONFIG]``, at *revision*, and its rows.

    Its files are downloaded to the Hub's cache, or read there offline. Held-out splits come first.
    """
    repository, _, configuration = name.partition(":")
    try:
        directory = hub.download(repository, revision, repo_type="dataset")
    except ModelError as error:
        text = str(error).rstrip(".")
        raise InputError(f"{text}; or give a downloaded file with --from.") from error
    return directory.name, files.data_set(directory, name, configuration or None)

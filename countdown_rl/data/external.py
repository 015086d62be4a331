"""Data sets of the Hub."""

import re
from collections.abc import Iterator
from pathlib import Path

from countdown_rl.core import hub
from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.tasks import files

#: A path that may lead out of its directory on some system.
_OUTSIDE = re.compile(r"[~/\\]|.*:|(?:.*[/\\])?\.\.(?:[/\\]|$)", re.DOTALL)


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
    _check_card(directory, repository)
    return directory.name, files.data_set(directory, name, configuration or None)


def _check_card(directory: Path, name: str) -> None:
    """Raise InputError if the card of the data set in *directory* names files outside of it."""
    from huggingface_hub import DatasetCard

    card = directory / "README.md"
    if not card.is_file():
        return
    with files.library_errors(f"the card of {name}"):
        configurations = DatasetCard.load(card).data.get("configs") or []
    for configuration in configurations:
        for path in _texts([configuration.get("data_files"), configuration.get("data_dir")]):
            if _OUTSIDE.match(path):
                raise InputError(
                    f"the card of {name} names {path}, which is no file of the data set; do not use it."
                )


def _texts(value: object) -> Iterator[str]:
    """The texts in lists and mappings."""
    if isinstance(value, dict):
        value = [part for key, part in value.items() if key != "split"]
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)

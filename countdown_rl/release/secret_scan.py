"""Scan of a release for tokens of the Hub."""

from pathlib import Path

from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.hub_requests import TOKEN

#: Bytes that are read of a file of weights: more than its metadata, which come first.
_METADATA = 1 << 24


def check_no_token(folder: Path, *, manifest: str = "", token: str | None = None) -> None:
    """Check that no file in *folder*, and no text in *manifest*, has *token* or anything in the format of a token."""
    _check("the manifest", manifest, token)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            data = stream.read(_METADATA if file.suffix in (".safetensors", ".gguf") else -1)
        _check(file.name, data.decode("latin-1"), token)


def _check(name: str, text: str, token: str | None) -> None:
    if TOKEN.search(text) or (token and token in text):
        raise ArtifactError(f"{name} contains what looks like a token for the Hub; remove it before publishing.")

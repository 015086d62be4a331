"""End of ``publish`` and ``publish-data``: the upload of the release, if it was asked for, and the result."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.cli import console
from countdown_rl.hub.config import UploadOptions

if TYPE_CHECKING:
    from countdown_rl.artifacts import Manifest


def finish(out: Path, manifest: "Manifest", options: UploadOptions, *, summary: str, as_json: bool) -> None:
    """Upload the release at *out*, which was just built, if *options* say so, and print the result."""
    size = sum(entry["size"] for entry in manifest.files.values())
    values: dict[str, Any] = {"out": str(out), "digest": manifest.digest, **manifest.facts}
    values |= {"files": len(manifest.files) + 1, "bytes": size}
    view = f"{out}: {len(manifest.files) + 1} files, {size / 1e6:,.1f} MB, {summary}"
    if options.repo_id is not None:
        from countdown_rl.hub import upload

        result = upload.push(out, manifest, options)
        values["upload"] = asdict(result)
        view = f"{result.url} ({'private' if result.private else 'public'}, {result.tag})"
    console.result(values, as_json=as_json, view=view)

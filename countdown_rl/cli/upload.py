"""End of ``publish`` and ``publish-data``: the upload of the release, if it was asked for, and the result."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.cli import console
from countdown_rl.hub.config import UploadOptions

if TYPE_CHECKING:
    from countdown_rl.artifacts import Manifest


def finish(
    out: Path, manifest: "Manifest", options: UploadOptions, *, built: bool, summary: str, as_json: bool
) -> None:
    """Upload the release at *out*, whose files were just checked, if *options* say so, and print the result."""
    size = sum(entry["size"] for entry in manifest.files.values())
    values: dict[str, Any] = {"out": str(out), "built": built, "digest": manifest.digest, **manifest.facts}
    values |= {"files": len(manifest.files) + 1, "bytes": size}
    view = f"{out}: {len(manifest.files) + 1} files, {size / 1e6:,.1f} MB, {summary}"
    if options.repo_id is not None:
        from countdown_rl.hub import upload

        if not built:
            console.note(f"{out} is up to date and is uploaded as it is")
        result = upload.push(out, manifest, options, log=console.note)
        values["upload"] = asdict(result)
        sent = f"{console.plural(len(result.uploaded), 'file')} sent" if result.uploaded else "nothing to send"
        removed = f", {len(result.removed)} removed" if result.removed else ""
        where = f"{result.url} ({'private' if result.private else 'public'}, {result.tag})"
        view = f"{where}: {sent}, {result.unchanged} unchanged{removed}"
    console.result(values, as_json=as_json, view=view)

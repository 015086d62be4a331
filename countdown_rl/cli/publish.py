from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.formatting import interval, percent, plural
from countdown_rl.core.types import JsonObject
from countdown_rl.release.config import PublishOptions, UploadOptions


def publish(
    *,
    options: PublishOptions,
    out: Annotated[Path, option("Directory to write.")] = Path("artifacts/release"),
    upload: UploadOptions,
) -> None:
    """Build the release folder of a model, and upload it with --push.

    The folder holds weights, tokenizer, a model card with results and training curves, the
    evaluation, and the provenance from the data to the weights. The same artifacts and options give
    the same bytes.

    With --push NAME/MODEL the folder goes to the Hub as one commit, private unless --public. Other
    files in the repository are removed. The token comes from `hf auth login` or HF_TOKEN.

    Examples:
        countdown-rl publish --push me/countdown-tiny-nf4
    """
    from countdown_rl.release import folder

    manifest, result = folder.publish(options, out, upload, console.warn)
    facts, count = manifest.facts, len(manifest.files) + 1
    size = sum(entry["size"] for entry in manifest.files.values())
    summary = "not evaluated"
    if "accuracy" in facts:
        summary = f"accuracy {percent(facts['accuracy'])} ({interval(facts['interval'])}, n {facts['n']:,})"
    values: JsonObject = {
        "out": str(out),
        "digest": manifest.digest,
        **facts,
        "files": count,
        "bytes": size,
    }
    if result:
        values["upload"] = asdict(result)
    console.result(values, f"{plural(count, 'file')}, {size / 1e6:,.1f} MB, {summary}")
    if result:
        visibility = "private" if result.private else "public"
        verification = f"countdown-rl verify {upload.repo_id}" if "accuracy" in facts else ""
        console.done(f"Uploaded {out} to {result.url} ({visibility}, {result.tag}).", verification)
    else:
        console.done(f"Wrote {out}.", "countdown-rl publish --push NAME/MODEL")

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
    out: Annotated[
        Path | None, option("Directory to write.", show_default="artifacts/release, data-release")
    ] = None,
    upload: UploadOptions,
) -> None:
    """Build the release folder of a model or data set, and upload it with --push.

    The folder of a model holds weights, tokenizer, a model card with results and training curves,
    the evaluation, and the provenance from the data to the weights. The folder of a data set
    (--data) holds its splits, and a card from which `load_dataset` reads them. The same artifacts
    and options give the same bytes.

    With --push NAME/MODEL the folder goes to the Hub as one commit, private unless --public. Other
    files in the repository are removed. The token comes from `hf auth login` or HF_TOKEN.

    Examples:
        countdown-rl publish --push me/countdown-tiny-nf4
        countdown-rl publish --data artifacts/data --license cc0-1.0
    """
    from countdown_rl.release import folder

    out = out or Path("artifacts/release" if options.data is None else "artifacts/data-release")
    manifest, result = folder.publish(options, out, upload, console.warn)
    facts, count = manifest.facts, len(manifest.files) + 1
    size = sum(entry["size"] for entry in manifest.files.values())
    if options.data is not None:
        summary = plural(sum(facts["rows"].values()), "row")
    elif "accuracy" in facts:
        summary = f"accuracy {percent(facts['accuracy'])} ({interval(facts['interval'])}, n {facts['n']:,})"
    else:
        summary = "not evaluated"
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

"""``countdown-rl publish``: the release folder, and its way to the Hub."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from countdown_rl.cli import console
from countdown_rl.errors import UsageError
from countdown_rl.options import PublishOptions

DEFAULT = PublishOptions()
CARD = "What the card says"
HUB = "To the Hub"


def publish(
    model: Annotated[str, typer.Option(help="What quantize, merge, train or warmup wrote.")] = "artifacts/quantized",
    out: Annotated[Path, typer.Option(help="The release folder.")] = Path("artifacts/release"),
    measured: Annotated[
        Path | None,
        typer.Option("--eval", help="What eval wrote for these weights. Default: eval/ beside them, if it is there."),
    ] = None,
    comparison: Annotated[
        Path | None, typer.Option(help="What compare wrote, for its table. Default: as for --eval.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(rich_help_panel=CARD, help="The model's name. Default: from what it was made of.")
    ] = DEFAULT.name,
    base_model: Annotated[
        str | None,
        typer.Option(rich_help_panel=CARD, help="Its base on the Hub, as NAME/MODEL, where the manifests do not say."),
    ] = DEFAULT.base_model,
    base_relation: Annotated[
        Literal["adapter", "finetune", "quantized", "merge"] | None,
        typer.Option(
            rich_help_panel=CARD,
            help="What it is to that base; `quantized` where --base-model names the merged weights.",
        ),
    ] = DEFAULT.base_relation,  # type: ignore[assignment]
    license: Annotated[
        str | None, typer.Option(rich_help_panel=CARD, help="As the Hub spells it, such as apache-2.0.")
    ] = DEFAULT.license,
    trained_on: Annotated[
        list[str] | None, typer.Option(rich_help_panel=CARD, help="A data set on the Hub it learnt from; repeatable.")
    ] = None,
    min_accuracy: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Refuse weights that solve a smaller share of the puzzles.")
    ] = DEFAULT.min_accuracy,
    push: Annotated[bool, typer.Option(rich_help_panel=HUB, help="Upload the release.")] = False,
    repo_id: Annotated[str | None, typer.Option(rich_help_panel=HUB, help="Where to, as NAME/MODEL.")] = None,
    public: Annotated[bool, typer.Option("--public/--private", rich_help_panel=HUB, help="Who may see it.")] = False,
    tag: Annotated[
        str | None, typer.Option(rich_help_panel=HUB, help="Name of this version. Default: the next of v1, v2, ...")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", rich_help_panel=HUB, help="Replace what another tool put in that repository.")
    ] = False,
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", rich_help_panel=HUB, help="Upload even what was never evaluated.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Build the release folder, and upload it with --push.

    The folder holds the weights, the tokenizer, a model card with the measured results, checksums, and the
    chain of manifests from the data to the weights. The same artifacts give the same bytes. With --push it
    goes to the Hub as one commit, private unless --public, and each file is then checked there by size and
    hash. A release that stands as asked for goes up as it was built; only what changed is sent. The token
    is the one of `hf auth login`, or HF_TOKEN.

    **Examples**

    `countdown-rl publish --model artifacts/quantized --eval artifacts/eval/quantized`

    `countdown-rl publish --push --repo-id me/countdown-tiny-nf4`

    `countdown-rl publish --model artifacts/merged --out artifacts/release-bf16 --push --repo-id me/countdown --public`
    """
    if push and repo_id is None:
        raise UsageError("--push needs to know where to; give --repo-id NAME/MODEL.")
    if not push and (repo_id is not None or public or force or tag is not None or unmeasured):
        raise UsageError("--repo-id, --public, --tag, --force and --unmeasured go with --push; add it.")
    from countdown_rl import publishing

    options = PublishOptions(name, base_model, base_relation, license, tuple(trained_on or ()), min_accuracy)
    manifest = None
    if push:
        manifest = publishing.standing(out, options, model=model, measured=measured, comparison=comparison)
    built = manifest is None
    if manifest is None:
        measured = measured or publishing.beside(model, "eval")
        comparison = comparison or publishing.beside(model, "comparison")
        manifest = publishing.build(model, out, options, measured=measured, comparison=comparison)
    result: dict[str, Any] = {"out": str(out), "built": built, "digest": manifest.digest, **manifest.facts}
    result |= {"files": len(manifest.files) + 1, "bytes": sum(entry["size"] for entry in manifest.files.values())}
    view = f"{out}: {result['files']} files, {result['bytes'] / 1e6:,.1f} MB, {_score(manifest.facts)}"
    if not push or repo_id is None:
        if "accuracy" not in manifest.facts:
            console.warn("these weights have not been measured, and the card says so; `countdown-rl eval` does it.")
        console.result(result, as_json=as_json, view=view)
        return
    if not unmeasured:
        publishing.check_measured(manifest)
    if not built:
        console.note(f"{out} goes up as it was built")
    from countdown_rl import uploading

    upload = uploading.push(
        out, repo_id, public=public, force=force, tag=tag, tell=console.note, bars=console.people.is_terminal
    )
    result |= {"upload": asdict(upload)}
    sent = f"{len(upload.uploaded)} files sent" if upload.uploaded else "nothing to send"
    removed = f", {len(upload.removed)} removed" if upload.removed else ""
    view = (
        f"{upload.url} ({'private' if upload.private else 'public'}, {upload.tag}): {sent}, {upload.unchanged} "
        f"unchanged{removed}; all {upload.verified} are there, by size and hash"
    )
    console.result(result, as_json=as_json, view=view)


def _score(facts: dict[str, Any]) -> str:
    if "accuracy" not in facts:
        return "not measured"
    low, high = facts["interval"]
    return f"{100 * facts['accuracy']:.1f}% solved ({100 * low:.1f} to {100 * high:.1f}%, n {facts['n']:,})"

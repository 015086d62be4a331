"""``countdown-rl publish``: the release folder, and its way to the Hub."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from countdown_rl.cli import console
from countdown_rl.errors import UsageError
from countdown_rl.hub.config import PublishOptions

if TYPE_CHECKING:
    from countdown_rl.artifacts import Manifest
    from countdown_rl.hub.sources import Sources
    from countdown_rl.hub.upload import Upload

DEFAULT = PublishOptions()
CARD = "What the card says"
HUB = "To the Hub"


def publish(
    model: Annotated[
        str | None,
        typer.Option(help="What quantize, merge, train or sft wrote.", show_default="artifacts/quantized"),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="The same model in another form, or its adapter, into a folder of that name; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The release folder.", show_default="artifacts/release, or artifacts/data-release"),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", help="What eval wrote for these weights; repeatable. Default: eval/ beside them, if it is there."
        ),
    ] = None,
    comparison: Annotated[
        Path | None, typer.Option(help="What compare wrote, for its table. Default: as for --eval.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="The training's log, for its curves. Default: train/log.csv beside the weights, if theirs."),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Publish these puzzles, which gen-data wrote, rather than weights.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(rich_help_panel=CARD, help="Its name. Default: from what it was made of.")
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
    ] = DEFAULT.base_relation,
    license: Annotated[
        str | None,
        typer.Option(rich_help_panel=CARD, help="As the Hub spells it, such as apache-2.0. Default: the base's."),
    ] = DEFAULT.license,
    license_file: Annotated[
        Path | None,
        typer.Option(rich_help_panel=CARD, help="Its text; apache-2.0 comes by itself, and some bases ask for theirs."),
    ] = None,
    trained_on: Annotated[
        list[str] | None, typer.Option(rich_help_panel=CARD, help="A data set on the Hub it learnt from; repeatable.")
    ] = None,
    measured_on: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=CARD,
            help="The data set on the Hub that the evaluation's puzzles are of; writes .eval_results/ too.",
        ),
    ] = DEFAULT.measured_on,
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

    The folder holds the weights, the tokenizer, the licence, a model card with the measured results and the
    training's curves, checksums, and the chain of manifests from the data to the weights. With --also it holds
    the same model in other forms, each in a folder of its own. The same artifacts give the same bytes. With
    --push it goes to the Hub as one commit, private unless --public, and each file is then checked there by
    size and hash. A release that stands as asked for goes up as it was built; only what changed is sent. The
    token is the one of `hf auth login`, or HF_TOKEN. With --dataset the puzzles go instead, as a data set that
    `load_dataset` reads.

    Examples:
        countdown-rl publish --model artifacts/quantized --eval artifacts/eval/quantized
        countdown-rl publish --push --repo-id me/countdown-tiny-nf4
        countdown-rl publish --model artifacts/merged --also artifacts/gguf \\
          --also artifacts/adapter --push --repo-id me/countdown
        countdown-rl publish --dataset artifacts/data --license cc0-1.0 \\
          --push --repo-id me/countdown-puzzles
    """
    if push and repo_id is None:
        raise UsageError("--push needs to know where to; give --repo-id NAME/MODEL.")
    if not push and (repo_id is not None or public or force or tag is not None or unmeasured):
        raise UsageError("--repo-id, --public, --tag, --force and --unmeasured go with --push; add it.")
    options = PublishOptions(
        name=name,
        base_model=base_model,
        base_relation=base_relation,
        license=license,
        license_file=None if license_file is None else str(license_file),
        trained_on=tuple(trained_on or ()),
        measured_on=measured_on,
        min_accuracy=min_accuracy,
    )
    if dataset is not None:
        of_weights = (model, also, measured, comparison, log, base_model, base_relation, license_file, trained_on)
        if any(of_weights) or measured_on or min_accuracy or unmeasured:
            raise UsageError(
                "--dataset publishes puzzles; of the options on weights only --name and --license go with it."
            )
        out = out or Path("artifacts/data-release")
        manifest, built = _puzzles(dataset, out, options, push=push)
        score = f"{sum(manifest.facts['rows'].values()):,} rows"
    else:
        from countdown_rl.hub.sources import Sources

        weights = model or "artifacts/quantized"
        sources = Sources(weights, tuple(also or ()), tuple(measured or ()), comparison, log)
        out = out or Path("artifacts/release")
        manifest, built = _weights(sources, out, options, push=push, unmeasured=unmeasured)
        score = _score(manifest.facts)
    result: dict[str, Any] = {"out": str(out), "built": built, "digest": manifest.digest, **manifest.facts}
    result |= {"files": len(manifest.files) + 1, "bytes": sum(entry["size"] for entry in manifest.files.values())}
    view = f"{out}: {result['files']} files, {result['bytes'] / 1e6:,.1f} MB, {score}"
    if repo_id is not None:
        if not built:
            console.note(f"{out} goes up as it was built")
        upload = _upload(out, repo_id, public=public, force=force, tag=tag)
        result |= {"upload": asdict(upload)}
        view = _uploaded(upload)
    console.result(result, as_json=as_json, view=view)


def _weights(
    sources: "Sources", out: Path, options: PublishOptions, *, push: bool, unmeasured: bool
) -> tuple["Manifest", bool]:
    from countdown_rl.hub import licenses, release
    from countdown_rl.hub.sources import completed

    standing = release.standing(out, options, sources) if push else None
    manifest = standing or release.build(completed(sources), out, options)
    if push:
        release.check_terms(manifest)
    elif (wanted := licenses.lacking(manifest)) is not None:
        console.warn(wanted)
    if push and not unmeasured:
        release.check_measured(manifest)
    elif "accuracy" not in manifest.facts:
        console.warn("these weights have not been measured, and the card says so; `countdown-rl eval` does it.")
    return manifest, standing is None


def _puzzles(data: Path, out: Path, options: PublishOptions, *, push: bool) -> tuple["Manifest", bool]:
    from countdown_rl.hub import dataset_card

    standing = dataset_card.standing(data, out, options) if push else None
    return standing or dataset_card.build(data, out, options), standing is None


def _upload(out: Path, repo_id: str, *, public: bool, force: bool, tag: str | None) -> "Upload":
    from countdown_rl.hub import upload as uploading

    bars = console.people.is_terminal
    return uploading.push(out, repo_id, public=public, force=force, tag=tag, tell=console.note, bars=bars)


def _uploaded(upload: "Upload") -> str:
    sent = f"{len(upload.uploaded)} files sent" if upload.uploaded else "nothing to send"
    removed = f", {len(upload.removed)} removed" if upload.removed else ""
    return (
        f"{upload.url} ({'private' if upload.private else 'public'}, {upload.tag}): {sent}, {upload.unchanged} "
        f"unchanged{removed}; all {upload.verified} are there, by size and hash"
    )


def _score(facts: dict[str, Any]) -> str:
    if "accuracy" not in facts:
        return "not measured"
    low, high = facts["interval"]
    return f"{100 * facts['accuracy']:.1f}% solved ({100 * low:.1f} to {100 * high:.1f}%, n {facts['n']:,})"

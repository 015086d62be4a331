"""Release folder of a model: weights in one or several formats, model card and the chain of manifests.

It is built from artifacts alone, so the same artifacts and options give the same bytes, and what was built is what
:mod:`countdown_rl.hub.upload` uploads.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

from countdown_rl import artifacts
from countdown_rl.artifacts import MANIFEST, Draft, Manifest, ProvenanceEntry
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.evaluation.results import Result, read
from countdown_rl.formatting import as_section
from countdown_rl.hub import formats, licenses, model_card, secret_scan
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.formats import Weights, evaluation_key, measures, training_data
from countdown_rl.hub.model_card import CARD, CURVES, LICENSE, Release
from countdown_rl.models.reference import SHIPPED
from countdown_rl.report import charts, demo
from countdown_rl.runlog import log as trainlog
from countdown_rl.tasks.probe import trained_on


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release at *out*.

    Raises:
        ArtifactError: an input is missing, damaged or about other weights, or contains a token.
    """
    artifacts.check_writable(out, "release")
    release = resolve(options)
    _check(release)
    with artifacts.writing(
        out, "release", options=asdict(options), inputs=release.inputs, libraries=("huggingface_hub",)
    ) as draft:
        for weights in release.weights:
            _copy(weights, draft, release.base_model)
            if evaluation := weights.evaluation:
                folder = evaluation_key(weights.location)
                for name, entry in evaluation.manifest.files.items():
                    draft.copy(evaluation.path / name, f"{folder}/{name}", entry)
                (draft.path / folder / MANIFEST).write_bytes(evaluation.manifest.to_bytes())
        if options.license_file:
            (draft.path / LICENSE).write_bytes(Path(options.license_file).read_bytes())
        if release.log:
            (draft.path / CURVES).write_text(charts.picture(trainlog.read(release.log)), "utf-8")
        if options.with_demo:
            (draft.path / demo.INDEX).write_text(_demo(release), "utf-8")
        (draft.path / CARD).write_text(model_card.render(release, with_demo=options.with_demo), "utf-8")
        secret_scan.check_no_token(draft.path, manifest=json.dumps(release.inputs))
        draft.facts.update(
            name=release.name,
            base_model=release.base_model,
            base_relation=release.base_relation,
            datasets=list(release.datasets),
            formats={weights.location: weights.format.name for weights in release.weights},
        )
        draft.facts |= release.license
        if release.evaluation:
            draft.facts |= {key: release.evaluation.metrics[key] for key in ("accuracy", "n", "interval")}
    return artifacts.read(out, "release", verify=False)


def resolve(options: PublishOptions) -> Release:
    """Find the inputs that *options* name, and those that the pipeline keeps beside the weights."""
    weights = _weights(options)
    inputs = {item.folder or "model": item.entry for item in weights}
    chain = artifacts.chain(*inputs.values())
    inputs |= {
        evaluation_key(item.location): item.evaluation.manifest.as_input() for item in weights if item.evaluation
    }
    comparison, log = _comparison(options, weights[0]), _log(options, weights[0], chain)
    table = None
    if comparison:
        table = as_section((comparison / "comparison.md").read_text("utf-8"))
        inputs["comparison"] = artifacts.read(comparison, "comparison").as_input()
    if log:
        inputs["log"] = artifacts.file_input(log)
    origin = artifacts.origin(chain)
    base_model, revision = options.base_model, None
    if base_model is None and origin.kind == "hub":
        base_model, revision = origin.name, origin.revision
    license = options.license
    if license is None and (origin.name in SHIPPED or (origin.kind == "model" and base_model is None)):
        license = "apache-2.0"  # that of this package, which made the base
    return Release(
        name=options.name or _name(origin, weights[0], chain),
        weights=weights,
        chain=chain,
        inputs=inputs,
        comparison=table,
        log=log,
        base_model=base_model,
        base_relation="adapter" if weights[0].format is formats.ADAPTER else "finetune",
        license=licenses.resolve(license, base_model, revision),
        datasets=options.trained_on,
    )


def check_uploadable(manifest: Manifest, *, unmeasured: bool) -> None:
    """Check that all weights of the release were evaluated, unless *unmeasured*."""
    for location in manifest.facts["formats"]:
        if evaluation_key(location) not in manifest.inputs and not unmeasured:
            raise HubError(
                f"the weights in {location} of the release have not been evaluated; run `countdown-rl eval` on them "
                "and give --eval, or give --unmeasured."
            )


def _weights(options: PublishOptions) -> list[Weights]:
    """Return the weights, each with its evaluation if there is one."""
    folders = ["", *map(formats.folder_of, options.also)]
    if len(set(folders)) < len(folders):
        raise UsageError("--also: two of the weights would have the same folder; rename one of the directories.")
    weights = [formats.read(*pair) for pair in zip((options.model, *options.also), folders, strict=True)]
    evaluated: dict[str, Result] = {}

    def read_evaluation(path: Path, candidates: list[Weights]) -> None:
        evaluation = read(path)
        measured = [item for item in candidates if measures(evaluation, item.manifest)]
        if not measured:
            source = next((item for item in candidates if item.path.name == path.name), candidates[0]).path
            raise ArtifactError(
                f"{path} is an evaluation of other weights than {source} holds now; run "
                f"`countdown-rl eval --model {source} --out {path}` again."
            )
        for item in measured:
            evaluated.setdefault(item.folder, evaluation)

    for path in options.evaluations:
        read_evaluation(Path(path), weights)
    for item in weights:  # where the pipeline keeps their evaluations
        beside = item.path.parent / "eval" / item.path.name
        if item.folder not in evaluated and artifacts.peek(beside) == "eval":
            read_evaluation(beside, [item])
    return [replace(item, evaluation=evaluated.get(item.folder)) for item in weights]


def _comparison(options: PublishOptions, weights: Weights) -> Path | None:
    path = Path(options.comparison) if options.comparison else weights.path.parent / "eval" / "comparison"
    manifest = weights.evaluation.manifest if weights.evaluation else weights.manifest
    if options.comparison or artifacts.peek(path) == "comparison":
        compared = artifacts.chain(*artifacts.read(path, "comparison").inputs.values())
        if manifest.digest in [link.digest for link in compared]:
            return path
    if options.comparison:
        raise ArtifactError(f"{path} does not compare {weights.path}; run `countdown-rl compare` on its evaluation.")
    return None


def _log(options: PublishOptions, weights: Weights, chain: list[ProvenanceEntry]) -> Path | None:
    path = Path(options.log) if options.log else weights.path.parent / "train" / "log.csv"
    if trainlog.is_log_of(path, chain):
        return path
    if options.log:
        raise ArtifactError(f"{path} is not the log of the training that made {weights.path}.")
    return None


def _demo(release: Release) -> str:
    for weights in release.weights:
        if weights.format is formats.GGUF:
            return demo.text(weights.path / weights.gguf, release.chain)
    raise UsageError(
        "--with-demo needs the model as GGUF: run `countdown-rl quantize --format gguf` and give its directory to "
        "--model or --also."
    )


def _check(release: Release) -> None:
    for key, entry in release.inputs.items():
        if (name := artifacts.altered(entry)) is not None:
            raise ArtifactError(
                f"the manifest of {name}, in the chain of {key}, was changed after it was written; make {name} and "
                "everything made from it again."
            )
    if release.weights[0].format is formats.ADAPTER and release.base_model is None:
        raise UsageError(
            f"an adapter needs its base to load, and {artifacts.origin(release.chain).name} is not on the Hub; merge "
            "it first, or give --base-model."
        )
    evaluation = release.evaluation
    if evaluation and evaluation.metrics["data"]["digest"] in training_data(release.chain):
        raise ArtifactError(
            f"{evaluation.path} is on puzzles that were used in training; run `countdown-rl eval` on the test split."
        )


def _name(origin: ProvenanceEntry, weights: Weights, chain: list[ProvenanceEntry]) -> str:
    stem = Path(origin.name).name.removesuffix(".gguf")
    suffix = {"full": "", "adapter": "lora"}.get(weights.format.name, weights.format.name)
    trained = any(link.by_grpo for link in chain)
    task = trained_on(chain).name
    parts = [stem, "" if task in stem else task, "grpo" if trained else "", suffix]
    return "-".join(part for part in parts if part)


def _copy(weights: Weights, draft: Draft, base_model: str | None) -> None:
    for name, entry in sorted(weights.manifest.files.items()):
        target = weights.place(name)
        if name == "adapter_config.json" and base_model is not None:
            config = json.loads((weights.path / name).read_bytes()) | {"base_model_name_or_path": base_model}
            (draft.path / target).parent.mkdir(parents=True, exist_ok=True)
            (draft.path / target).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        elif weights.format.files.fullmatch(name):
            draft.copy(weights.path / name, target, entry)

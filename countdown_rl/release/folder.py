"""Release folder of a model: weights, model card and the chain of manifests.

It is built from artifacts alone: the same artifacts and options give the same bytes.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, hub_requests
from countdown_rl.core.artifacts import MANIFEST, Draft, Manifest, ProvenanceEntry
from countdown_rl.core.errors import ArtifactError, HubError, UsageError
from countdown_rl.core.formatting import as_section
from countdown_rl.evaluation.results import Result, read, training_data
from countdown_rl.models import ends, model_files
from countdown_rl.models.model_files import GENERATION
from countdown_rl.models.reference import SHIPPED
from countdown_rl.release import charts, dataset_card, demo, formats, model_card, secret_scan
from countdown_rl.release.config import PublishOptions
from countdown_rl.release.formats import Weights, measures
from countdown_rl.release.model_card import CARD, CURVES, LICENSE, Release
from countdown_rl.tasks.probe import trained_on
from countdown_rl.training import log as trainlog


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release at *out*: of a model, or of the data set that *options* name.

    Raises:
        ArtifactError: an input is missing, damaged or about other weights, or contains a token.
    """
    if options.data is not None:
        return dataset_card.build(options, out)
    artifacts.check_writable(out, "release")
    release = resolve(options)
    _check(release, options)
    settings = {key: value for key, value in asdict(options).items() if key != "data"}
    with artifacts.writing(
        out, "release", options=settings, inputs=release.inputs, libraries=("huggingface_hub",)
    ) as draft:
        _copy(release.weights, draft, release.base_model)
        if evaluation := release.evaluation:
            for name, entry in evaluation.manifest.files.items():
                draft.copy(evaluation.path / name, f"eval/{name}", entry)
            (draft.path / "eval" / MANIFEST).write_bytes(evaluation.manifest.to_bytes())
        if options.license_file:
            (draft.path / LICENSE).write_bytes(Path(options.license_file).read_bytes())
        if release.log:
            curves = charts.curves({"": [trainlog.read(release.log)]}, trained_on(release.chain))
            (draft.path / CURVES).write_text(charts.picture(curves), "utf-8")
        if options.with_demo:
            page = demo.text(release.weights.path / release.weights.gguf, release.chain)
            (draft.path / demo.INDEX).write_text(page, "utf-8")
        (draft.path / CARD).write_text(model_card.render(release, with_demo=options.with_demo), "utf-8")
        secret_scan.check_no_token(draft.path, manifest=json.dumps(release.inputs))
        draft.facts.update(
            name=release.name,
            base_model=release.base_model,
            base_relation=release.base_relation,
            datasets=list(release.datasets),
            formats={".": release.weights.format.name},
            **release.license,
        )
        if evaluation:
            draft.facts |= {key: getattr(evaluation.metrics, key) for key in ("accuracy", "n", "interval")}
    return artifacts.read(out, "release", verify=False)


def resolve(options: PublishOptions) -> Release:
    """Find the inputs that *options* name, and those that the pipeline keeps beside the weights."""
    weights = formats.read(options.model)
    evaluation = _evaluation(options, weights)
    inputs, chain = {"model": weights.entry}, artifacts.chain(weights.entry)
    if evaluation:
        inputs["eval"] = evaluation.manifest.as_input()
    comparison, log = _comparison(options, weights, evaluation), _log(options, weights, chain)
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
        name=options.name or _name(origin, weights, chain),
        weights=weights,
        evaluation=evaluation,
        chain=chain,
        inputs=inputs,
        comparison=table,
        log=log,
        base_model=base_model,
        base_relation="adapter" if weights.format is formats.ADAPTER else "finetune",
        license=resolve_license(license, base_model, revision),
        datasets=options.trained_on,
    )


def resolve_license(license: str | None, base_model: str | None, revision: str | None) -> dict[str, str]:
    """Return the licence for the metadata of a card: *license*, else that on the card of *base_model* on the Hub."""
    if license is not None:
        return {"license": license}
    if base_model is None:
        return {}
    from huggingface_hub import HfApi

    try:
        data: Any = HfApi().model_info(base_model, revision=revision, timeout=20).card_data or {}
    except Exception as error:  # an answer that makes no sense raises any
        if hub_requests.is_absent(error):
            return {}
        raise HubError(
            f"the card of {base_model} cannot be read, as {hub_requests.reason(error, revision)}; or give --license."
        ) from error
    return {key: data[key] for key in ("license", "license_name", "license_link") if data.get(key)}


def _evaluation(options: PublishOptions, weights: Weights) -> Result | None:
    path = Path(options.evaluation) if options.evaluation else weights.path.parent / "eval" / weights.path.name
    if not options.evaluation and not (path / MANIFEST).exists():
        return None
    evaluation = read(path)
    if not measures(evaluation, weights.manifest):
        raise ArtifactError(
            f"{path} is an evaluation of other weights than {weights.path} holds now; run "
            f"`countdown-rl eval --model {weights.path} --out {path} --overwrite`."
        )
    return evaluation


def _comparison(options: PublishOptions, weights: Weights, evaluation: Result | None) -> Path | None:
    path = Path(options.comparison) if options.comparison else weights.path.parent / "eval" / "comparison"
    manifest = evaluation.manifest if evaluation else weights.manifest
    if options.comparison or (path / MANIFEST).exists():
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


def _check(release: Release, options: PublishOptions) -> None:
    if options.with_demo and release.weights.format is not formats.GGUF:
        raise UsageError(
            "--with-demo needs GGUF weights: run `countdown-rl quantize --format gguf` and give its directory to "
            "--model."
        )
    if release.weights.format is formats.ADAPTER and release.base_model is None:
        raise UsageError(
            f"an adapter needs its base to load, and {artifacts.origin(release.chain).name} is not on the Hub; merge "
            "it first, or give --base-model."
        )
    evaluation = release.evaluation
    if evaluation and evaluation.metrics.data["digest"] in training_data(release.chain):
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
        sampling = name == GENERATION and ends.change_decoding(model_files.generation_config(weights.path))
        changed = sampling or (name == "adapter_config.json" and base_model is not None)
        if changed and artifacts.entry(weights.path / name) != entry:
            raise ArtifactError(f"{weights.path / name} is damaged; make {weights.path} again.")
        if sampling:  # which an older version copied from the base
            config = model_files.generation_config(weights.path)
            ends.write(draft.path, config.get("eos_token_id"), config.get("pad_token_id"))
        elif changed:
            config = json.loads((weights.path / name).read_bytes()) | {"base_model_name_or_path": base_model}
            (draft.path / name).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        elif weights.format.files.fullmatch(name):
            draft.copy(weights.path / name, name, entry)

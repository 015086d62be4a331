"""Release folder of a model; the same inputs and options give the same bytes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from countdown_rl.core import artifacts, hub
from countdown_rl.core.errors import ArtifactError, HubError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import (
    MANIFEST,
    Manifest,
    ProvenanceEntry,
    file_input,
    provenance_chain,
)
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import results, training_log
from countdown_rl.evaluation.results import Result
from countdown_rl.models import model_files
from countdown_rl.models.reference import SHIPPED
from countdown_rl.release import model_card, upload
from countdown_rl.release.config import PublishOptions, UploadOptions
from countdown_rl.release.model_card import ADAPTER_CONFIG, FILES, Release, Weights
from countdown_rl.release.report import charts
from countdown_rl.release.upload import Upload
from countdown_rl.tasks.probe import initial_model


def publish(
    options: PublishOptions, out: Path, target: UploadOptions, on_warning: Callable[[str], None]
) -> tuple[Manifest, Upload | None]:
    """Build the release at *out*, and upload it if *target* names a repository."""
    manifest = build(options, out)
    if "accuracy" not in manifest.facts:
        on_warning(
            "these weights have not been evaluated, and the card says so; "
            "run `countdown-rl eval` on them."
        )
    if target.repo_id is None:
        return manifest, None
    return manifest, upload.push(out, manifest, target)


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release that *options* name at *out*.

    Raises:
        ArtifactError: an input is missing, damaged or about other weights, or contains a token.
    """
    artifacts.check_writable(out, "release")
    release = read_inputs(options)
    with artifacts.writing(
        out,
        "release",
        options=asdict(options),
        inputs=release.inputs,
        libraries=("huggingface_hub",),
    ) as draft:
        _write(release, draft)
        upload.check_no_token(draft.path, manifest=json.dumps(release.inputs, default=vars))
    return artifacts.read(out, "release", verify=False)


def read_inputs(options: PublishOptions) -> Release:
    """Read the inputs that *options* name, and those that the pipeline keeps beside the weights."""
    weights = Weights.read(options.model)
    chain = provenance_chain(weights.entry)
    root = weights.path.parent
    inputs: JsonObject = {"model": weights.entry}

    evaluation = _evaluation(options, weights)
    measured = weights.manifest
    if evaluation:
        measured = evaluation.manifest
        inputs["eval"] = measured.as_input()

    table = None
    comparison = root / "eval" / "comparison"
    if (comparison / MANIFEST).exists():
        compared = artifacts.read(comparison, "comparison")
        if measured.digest in [link.digest for link in compared.lineage]:
            table = (comparison / "comparison.md").read_text("utf-8").strip()
            inputs["comparison"] = compared.as_input()

    log = Path(options.log or root / "train" / "log.csv")
    is_own = training_log.is_log_of(log, chain)
    if is_own:
        inputs["log"] = file_input(log)
    elif options.log:
        raise ArtifactError(f"{log} is not of the run that made these weights; leave it out.")

    initial = initial_model(chain)
    base_model = options.base_model or (initial.name if initial.kind == "hub" else None)
    if weights.format.name == "adapter" and base_model is None:
        raise UsageError(
            f"an adapter needs its base, and {initial.name} is not on the Hub; "
            "merge it first, or give --base-model."
        )
    return Release(
        options=options,
        weights=weights,
        evaluation=evaluation,
        chain=chain,
        inputs=inputs,
        comparison=table,
        log=log if is_own else None,
        base_model=base_model,
        license=_license(options, initial, base_model),
    )


def _evaluation(options: PublishOptions, weights: Weights) -> Result | None:
    """Return the evaluation of *weights*, named or beside them; ArtifactError if of others."""
    path = Path(options.evaluation or weights.path.parent / "eval" / weights.path.name)
    if not options.evaluation and not (path / MANIFEST).exists():
        return None
    evaluation = results.read(path)
    if not weights.measured_by(evaluation):
        again = f"countdown-rl eval --model {weights.path} --out {path} --overwrite"
        raise ArtifactError(
            f"{path} is of other weights than {weights.path} holds now; run `{again}`."
        )
    overlap = evaluation.metrics.overlap
    if overlap and overlap.trained:
        raise ArtifactError(
            f"{path} has {plural(overlap.trained, 'row')} used in training; "
            "run `countdown-rl eval` on the test split."
        )
    return evaluation


def _license(
    options: PublishOptions, initial: ProvenanceEntry, base_model: str | None
) -> dict[str, str]:
    """Return the license as metadata of a card: the one given, else that of the *initial* model."""
    if options.license:
        return {"license": options.license}
    if base_model:
        return base_license(base_model, None if options.base_model else initial.revision)
    if initial.name in SHIPPED or initial.kind == "model":
        return {"license": "apache-2.0"}  # of this package, which made the base
    return {}


def base_license(base_model: str, revision: str | None) -> dict[str, str]:
    """Return the license on the card of *base_model* on the Hub, as the metadata of a card."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = HfApi().model_info(base_model, revision=revision, timeout=20)
    except RepositoryNotFoundError:
        return {}
    except Exception as error:  # an answer that makes no sense raises any
        raise HubError(
            f"the card of {base_model} cannot be read: {hub.reason(error)}; or give --license."
        ) from error
    card = info.card_data.to_dict() if info.card_data else {}
    return {key: card[key] for key in ("license", "license_name", "license_link") if card.get(key)}


def _write(release: Release, draft: artifacts.ArtifactWriter) -> None:
    _copy_weights(release, draft)
    evaluation = release.evaluation
    if evaluation:
        for name in evaluation.manifest.files:
            _copy(evaluation.path / name, draft.path / "eval" / name)
        (draft.path / "eval" / MANIFEST).write_bytes(evaluation.manifest.to_bytes())
        for key in ("accuracy", "n", "interval"):
            draft.facts[key] = getattr(evaluation.metrics, key)
    if release.curves:
        (draft.path / model_card.CURVES).write_text(charts.picture(release.curves), "utf-8")
    (draft.path / model_card.CARD).write_text(model_card.render(release), "utf-8")
    draft.facts |= {
        "name": release.name,
        "base_model": release.base_model,
        "base_relation": release.base_relation,
        "format": release.weights.format.name,
        **release.license,
    }


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _copy_weights(release: Release, draft: artifacts.ArtifactWriter) -> None:
    """Copy the files of the weights; an adapter's configuration names its base on the Hub."""
    weights = release.weights
    for name in weights.manifest.files:
        if FILES.fullmatch(name):
            _copy(weights.path / name, draft.path / name)
    if weights.format.name == "adapter":
        config = model_files.adapter_config(weights.path)
        config["base_model_name_or_path"] = release.base_model
        text = json.dumps(config, indent=2, sort_keys=True)
        (draft.path / ADAPTER_CONFIG).write_text(f"{text}\n")

"""Release folder of a model or a data set: the same artifacts and options give the same bytes."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, hub_requests
from countdown_rl.core.artifacts import ArtifactWriter
from countdown_rl.core.errors import ArtifactError, HubError, UsageError
from countdown_rl.core.formatting import as_section, flag
from countdown_rl.core.manifest import MANIFEST, Manifest, file_input, initial_model, provenance_chain
from countdown_rl.evaluation import results, training_log
from countdown_rl.models import ends, model_files
from countdown_rl.models.model_files import GENERATION
from countdown_rl.models.reference import SHIPPED
from countdown_rl.release import benchmarks, dataset_card, model_card
from countdown_rl.release.config import DATA_OPTIONS, PublishOptions, UploadOptions
from countdown_rl.release.demo import page as demo
from countdown_rl.release.formats import ADAPTER_CONFIG, FILES, Weights
from countdown_rl.release.model_card import Release
from countdown_rl.release.report import charts
from countdown_rl.release.upload import Upload, check_no_token, push
from countdown_rl.tasks.probe import model_name, trained_on


def publish(
    options: PublishOptions, out: Path, target: UploadOptions, on_warning: Callable[[str], None]
) -> tuple[Manifest, Upload | None]:
    """Build the release at *out*, and upload it if *target* asks for that."""
    manifest = build(options, out)
    if options.data is None and "accuracy" not in manifest.facts:
        on_warning("these weights have not been evaluated, and the card says so; run `countdown-rl eval` on them.")
    return manifest, push(out, manifest, target) if target.push else None


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release at *out*: of a model, or of the data set that *options* name.

    Raises:
        ArtifactError: an input is missing, damaged or about other weights, or contains a token.
    """
    kind = "release" if options.data is None else "data-release"
    artifacts.check_writable(out, kind)
    release = None
    if options.data is None:
        release = read_inputs(options)
        settings = {name: value for name, value in asdict(options).items() if name != "data"}
        inputs = release.inputs
    else:
        settings = {name: getattr(options, name) for name in DATA_OPTIONS}
        data = artifacts.read(Path(options.data), "data", verify=False)
        inputs = {"data": data.as_input() | {"source": options.data}}
    with artifacts.writing(out, kind, options=settings, inputs=inputs, libraries=("huggingface_hub",)) as draft:
        if release:
            _write_model(release, options, draft)
        else:
            dataset_card.write(options, draft)
        check_no_token(draft.path, manifest=json.dumps(inputs))
    return artifacts.read(out, kind, verify=False)


def read_inputs(options: PublishOptions) -> Release:
    """Read the inputs that *options* name, and those that the pipeline keeps beside the weights."""
    weights = Weights.read(options.model)
    chain, parent = provenance_chain(weights.entry), weights.path.parent
    inputs, evaluation, table = {"model": weights.entry}, None, None
    path = Path(options.evaluation or parent / "eval" / weights.path.name)
    if options.evaluation or (path / MANIFEST).exists():
        evaluation = results.read(path)
        if not weights.measured_by(evaluation):
            raise ArtifactError(
                f"{path} is an evaluation of other weights than {weights.path} holds now; run "
                f"`countdown-rl eval --model {weights.path} --out {path} --overwrite`."
            )
        if evaluation.metrics.data["digest"] in results.training_data(chain):
            raise ArtifactError(
                f"{path} is on puzzles that were used in training; run `countdown-rl eval` on the test split."
            )
        inputs["eval"] = evaluation.manifest.as_input()
    digest = (evaluation.manifest if evaluation else weights.manifest).digest

    def is_comparison(path: Path) -> bool:
        compared = artifacts.read(path, "comparison").inputs.values()
        return digest in [link.digest for link in provenance_chain(*compared)]

    default = parent / "eval" / "comparison"
    if comparison := _input(options.comparison, default if (default / MANIFEST).exists() else None, is_comparison):
        table = as_section((comparison / "comparison.md").read_text("utf-8"))
        inputs["comparison"] = artifacts.read(comparison, "comparison").as_input()
    if log := _input(options.log, parent / "train" / "log.csv", lambda path: training_log.is_log_of(path, chain)):
        inputs["log"] = file_input(log)
    initial = initial_model(chain)
    base_model = options.base_model or (initial.name if initial.kind == "hub" else None)
    license = options.license
    if license is None and (initial.name in SHIPPED or (initial.kind == "model" and base_model is None)):
        license = "apache-2.0"  # of this package, which made the base
    if options.with_demo and weights.gguf is None:
        raise UsageError(
            f"{flag('with_demo')} needs GGUF weights: run `countdown-rl quantize --format gguf` and give its "
            f"directory to {flag('model')}."
        )
    if weights.format.name == "adapter" and base_model is None:
        raise UsageError(
            f"an adapter needs its base to load, and {initial.name} is not on the Hub; merge it first, or give "
            f"{flag('base_model')}."
        )
    revision = initial.revision if options.base_model is None else None
    return Release(
        name=options.name or model_name(chain) + weights.format.suffix,
        weights=weights,
        evaluation=evaluation,
        chain=chain,
        inputs=inputs,
        comparison=table,
        log=log,
        base_model=base_model,
        license={"license": license} if license else base_license(base_model, revision),
        datasets=options.trained_on,
    )


def _input(named: str | None, default: Path | None, belongs: Callable[[Path], bool]) -> Path | None:
    """Return the input that the user *named*, or the *default* one if it *belongs* to the weights."""
    path = Path(named) if named else default
    if path and belongs(path):
        return path
    if named:
        raise ArtifactError(f"{path} is not about these weights; give one that is, or leave it out.")
    return None


def base_license(base_model: str | None, revision: str | None) -> dict[str, str]:
    """Return the license on the card of *base_model* on the Hub, as the metadata of a card."""
    if base_model is None:
        return {}
    from huggingface_hub import HfApi

    try:
        with hub_requests.paced():
            data: Any = HfApi().model_info(base_model, revision=revision, timeout=20).card_data or {}
    except Exception as error:  # an answer that makes no sense raises any
        if hub_requests.is_absent(error):
            return {}
        raise HubError(
            f"the card of {base_model} cannot be read, as {hub_requests.reason(error, revision)}; or give "
            f"{flag('license')}."
        ) from error
    return {key: data[key] for key in ("license", "license_name", "license_link") if data.get(key)}


def _write_model(release: Release, options: PublishOptions, draft: ArtifactWriter) -> None:
    _copy_weights(release.weights, draft, release.base_model)
    if evaluation := release.evaluation:
        for name, entry in evaluation.manifest.files.items():
            draft.copy(evaluation.path / name, f"eval/{name}", entry)
        (draft.path / "eval" / MANIFEST).write_bytes(evaluation.manifest.to_bytes())
        draft.facts |= {key: getattr(evaluation.metrics, key) for key in ("accuracy", "n", "interval")}
        for name, text in benchmarks.results(evaluation, release.name, options.benchmark).items():
            (draft.path / name).parent.mkdir(exist_ok=True)
            (draft.path / name).write_text(text, "utf-8")
    if options.license_file:
        (draft.path / model_card.LICENSE).write_bytes(Path(options.license_file).read_bytes())
    if release.log:
        curves = charts.curves({"": [training_log.read(release.log)]}, trained_on(release.chain))
        (draft.path / model_card.CURVES).write_text(charts.picture(curves), "utf-8")
    if options.with_demo:
        page = demo.text(release.weights.loadable, release.chain, release.evaluation)
        (draft.path / demo.INDEX).write_text(page, "utf-8")
    (draft.path / model_card.CARD).write_text(model_card.render(release, with_demo=options.with_demo), "utf-8")
    draft.facts |= {
        "name": release.name,
        "base_model": release.base_model,
        "base_relation": release.base_relation,
        "datasets": list(release.datasets),
        "formats": {".": release.weights.format.name},
        **release.license,
    }


def _copy_weights(weights: Weights, draft: ArtifactWriter, base_model: str | None) -> None:
    """Copy *weights*; their generation settings are reduced to the tokens that end a completion, as evaluated."""
    for name, entry in weights.manifest.files.items():
        if FILES.fullmatch(name):
            draft.copy(weights.path / name, name, entry)
    if GENERATION in weights.manifest.files:
        config = model_files.generation_config(weights.path)
        ends.write(draft.path, config.get("eos_token_id"), config.get("pad_token_id"))
    if weights.format.name == "adapter":
        config = model_files.adapter_config(weights.path)
        if config.get("base_model_name_or_path") != base_model:
            text = json.dumps(config | {"base_model_name_or_path": base_model}, indent=2, sort_keys=True)
            (draft.path / ADAPTER_CONFIG).write_text(f"{text}\n")

"""The release folder: weights in one form or several, model card and the manifest chain, exactly as they go up.

Built from artifacts alone, so that the same artifacts and options give the same bytes, and what was
built is what is uploaded (see :mod:`countdown_rl.hub.upload`).
"""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import Link, Manifest
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.hub import formats, frontmatter, licenses, model_card, results, secret_scan
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.formats import Form
from countdown_rl.hub.results import Measured
from countdown_rl.hub.sources import Sources, Weights, eval_key_of, key_of, path_of, weights_of
from countdown_rl.hub.story import Part, Story
from countdown_rl.models import reference
from countdown_rl.models.reference import ModelRef
from countdown_rl.runlog import plots

CARD = "README.md"
CURVES = "curves.png"

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


def build(sources: Sources, out: Path, options: PublishOptions) -> Manifest:
    """Write the release of *sources* at *out*.

    Raises:
        ArtifactError: something in the chain is missing or damaged, an evaluation is about other weights, or
            a file names a path of this machine or holds a token.
        UsageError: the options do not go with this model.
    """
    artifacts.check_writable(out, "release")
    weights = weights_of(sources)
    inputs: dict[str, Any] = {one.key: one.ref.as_input() for one in weights}
    evaluations = _evaluations(sources, weights)
    inputs |= {one.eval_key: manifest.as_input() for one, (manifest, _) in evaluations.items()}
    if sources.comparison is not None:
        evaluation, _ = evaluations.get(weights[0], (None, None))
        inputs["comparison"] = _comparison(sources.comparison, weights[0], evaluation).as_input()
    _check_chain(inputs)
    links = _chain(inputs[one.key] for one in weights)
    measured = {one: found for one, (_, found) in evaluations.items()}
    _check_measured(sources, measured.get(weights[0]), links, options)
    told = _told(weights[0], links, options)
    if sources.log is not None:
        if not results.of_run(sources.log, links):
            raise ArtifactError(f"{sources.log} is not the log of the training that made {sources.model}.")
        inputs["log"] = artifacts.file_input(sources.log)
    under = licenses.settle(options, told["base_model"], shipped=_is_ours(links, told["base_model"]))

    with artifacts.writing(out, "release", options={}, inputs=inputs, libraries=("huggingface_hub",)) as draft:
        parts = [_copy(one, draft.path, told["base_model"], measured.get(one)) for one in weights]
        licenses.write(under, options, draft.path)
        if sources.log is not None:
            plots.draw(sources.log, draft.path / CURVES)
        story = Story(
            parts=parts,
            chain=links,
            files={},
            comparison=(sources.comparison / "comparison.md").read_text("utf-8") if sources.comparison else None,
            curves=CURVES if sources.log else None,
            terms=under,
            **told,
        )
        if (found := frontmatter.scores(story)) is not None:
            name, text = found
            (draft.path / name).parent.mkdir(parents=True)
            (draft.path / name).write_text(text, "utf-8")
        page = model_card.text(replace(story, files=_listing(draft.path)))
        (draft.path / CARD).write_text(page, "utf-8")
        draft.facts.update(told, license=under.license, forms={part.path: part.form.name for part in parts})
        if (best := measured.get(weights[0])) is not None:
            draft.facts.update(accuracy=best.accuracy, n=best.n, interval=list(best.interval))
        if options.license_file is not None:
            draft.facts["license_text"] = artifacts.file_sha256(draft.path / licenses.LICENSE)
        frontmatter.check(page)
        secret_scan.check(draft.path, page, inputs)
    return artifacts.read(out, "release", verify=False)


def standing(out: Path, options: PublishOptions, sources: Sources) -> Manifest | None:
    """The release at *out* when it is what was asked for, so that it can go up as it was built; else None.

    What the sources and the options leave open counts as it was built. The weights it was made of need not
    be there any more: a release stands by itself.

    Raises:
        ArtifactError: the release at *out* is damaged.
    """
    if artifacts.peek(out) != "release":
        return None
    manifest = artifacts.read(out, "release")
    for key, source in (("model", sources.model), *((key_of(source), source) for source in sources.also)):
        recorded = manifest.inputs.get(key, {})
        digest = results.digest_at(path_of(source))
        if digest is None and ModelRef(source, "directory", None).reference != recorded.get("source"):
            return None
        if digest is not None and digest != recorded.get("digest"):
            return None
    digests = {entry.get("digest") for key, entry in manifest.inputs.items() if key.endswith("eval")}
    if any(results.digest_at(path) not in digests for path in sources.measured):
        return None
    if sources.comparison is not None:
        recorded = manifest.inputs.get("comparison", {})
        if recorded.get("digest") != results.digest_at(sources.comparison):
            return None
    if sources.log is not None and manifest.inputs.get("log") != artifacts.file_input(sources.log):
        return None
    if options.license_file is not None:
        path = Path(options.license_file)
        if not path.is_file() or manifest.facts.get("license_text") != artifacts.file_sha256(path):
            return None
    for name in ("name", "base_model", "base_relation", "license", "measured_on"):
        wanted = getattr(options, name)
        if wanted is not None and manifest.facts.get(name) != wanted:
            return None
    if options.trained_on and manifest.facts.get("datasets") != list(options.trained_on):
        return None
    if options.min_accuracy > manifest.facts.get("accuracy", 0.0):
        return None
    return manifest


def check_terms(manifest: Manifest) -> None:
    """Refuse to upload a release that lacks what the licence of its base asks of those who share it.

    Raises:
        HubError: the text says what.
    """
    if (wanted := licenses.lacking(manifest)) is not None:
        raise HubError(wanted)


def check_measured(manifest: Manifest) -> None:
    """Refuse to upload a release that says nothing of how good some of its weights are.

    Raises:
        HubError: the release was built without an evaluation of them.
    """
    for path in manifest.facts["forms"]:
        key = eval_key_of(path.removeprefix("./").removeprefix("."))
        if key not in manifest.inputs:
            what = "these weights have" if key == "eval" else f"the weights in {path} have"
            raise HubError(
                f"{what} not been measured; run `countdown-rl eval` on them and give --eval, or give --unmeasured to "
                "publish them all the same."
            )


def _evaluations(sources: Sources, weights: Sequence[Weights]) -> dict[Weights, tuple[Manifest, Measured]]:
    found: dict[Weights, tuple[Manifest, Measured]] = {}
    for path in sources.measured:
        manifest = artifacts.read(path, "eval")
        ours = next((one for one in weights if results.concerns(manifest, one.manifest)), None)
        if ours is None:
            # Named after the weights it was probably meant for, so that the sentence can be followed.
            meant = next((one for one in weights if one.folder.name == path.name), weights[0])
            raise results.other_weights(path, meant.ref.source)
        found[ours] = (manifest, results.measurement(path))
    return found


def _comparison(path: Path, first: Weights, evaluation: Manifest | None) -> Manifest:
    found = artifacts.read(path, "comparison")
    if not artifacts.mentions(found.inputs, evaluation.digest if evaluation else first.ref.digest):
        raise ArtifactError(
            f"{path} does not compare {first.ref.source}; run `countdown-rl compare` on its evaluation."
        )
    return found


def _check_chain(inputs: dict[str, Any]) -> None:
    for name, entry in inputs.items():
        if (link := artifacts.altered(entry)) is not None:
            raise ArtifactError(
                f"the manifest of {link}, in the chain that led to the {name}, was changed afterwards; make {link} and "
                "what follows it again."
            )


def _check_measured(
    sources: Sources, measured: Measured | None, links: Sequence[Link], options: PublishOptions
) -> None:
    if measured is None:
        if options.min_accuracy > 0:
            raise UsageError("--min-accuracy needs an evaluation; give --eval.")
        return
    if any(link.files.get("train.jsonl", {}).get("sha256") == measured.data["digest"] for link in links):
        raise ArtifactError(
            f"{sources.model} was measured on the puzzles it was trained on; run `countdown-rl eval` on the test split."
        )
    if measured.accuracy < options.min_accuracy:
        raise ArtifactError(
            f"{sources.model} solves {100 * measured.accuracy:.1f}% of the puzzles in {measured.data['file']}, less "
            f"than --min-accuracy {options.min_accuracy:g}; train it further, or ask for less."
        )


def _chain(entries: Iterable[Any]) -> list[Link]:
    links = {link.digest: link for entry in entries for link in artifacts.chain(entry)}
    return list(links.values())


def _is_ours(links: list[Link], base_model: str | None) -> bool:
    root = artifacts.origin(links)
    return root.name in reference.SHIPPED or (root.kind == "model" and base_model is None)


def _told(weights: Weights, links: list[Link], options: PublishOptions) -> dict[str, Any]:
    """What the card says of the model's name and origin: as given, or as the chain has it."""
    root = artifacts.origin(links)
    base_model = options.base_model or (root.name if root.kind == "hub" else None)
    for option, given in (("--base-model", base_model), ("--measured-on", options.measured_on)):
        if given is not None and not _HUB_ID.fullmatch(given):
            raise UsageError(f"{option} {given} is no id on the Hub; give NAME/MODEL.")
    if weights.form is formats.ADAPTER and base_model is None:
        raise UsageError(
            f"an adapter loads only over its base, and {root.name} is not on the Hub; merge it first, or give "
            "--base-model."
        )
    trained = any(link.kind == "adapter" for link in links)
    return {
        "name": options.name or _name(root, weights.form, trained),
        "base_model": base_model,
        "base_relation": options.base_relation or ("adapter" if weights.form is formats.ADAPTER else "finetune"),
        "datasets": list(options.trained_on),
        "measured_on": options.measured_on,
    }


def _name(root: Link, form: Form, trained: bool) -> str:
    stem = Path(root.name).name.removesuffix(".gguf")
    end = {formats.FULL: "", formats.ADAPTER: "lora"}.get(form, form.name)
    parts = [stem, "" if "countdown" in stem else "countdown", "grpo" if trained else "", end]
    return "-".join(part for part in parts if part)


def _copy(one: Weights, release: Path, base_model: str | None, measured: Measured | None) -> Part:
    names = [name for name in sorted(one.manifest.files) if Path(name).name != CARD]
    to = release / one.place
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one.folder / name, to / name)
    if one.form is formats.ADAPTER and base_model is not None:
        _point_at_base(to / "adapter_config.json", base_model)
    return Part(one.form, one.place, names, measured)


def _point_at_base(path: Path, base_model: str) -> None:
    config = json.loads(path.read_bytes())
    if config.get("base_model_name_or_path") != base_model:
        config["base_model_name_or_path"] = base_model
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _listing(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"sha256": artifacts.file_sha256(path), "size": path.stat().st_size}
        for path in files
    }

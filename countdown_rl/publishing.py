"""The release folder: weights, tokenizer, model card and the manifest chain, exactly as they go up.

Built from artifacts alone, so that the same artifacts and options give the same bytes, and what was
built is what is uploaded (see :mod:`countdown_rl.uploading`).
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, card, lineage, references
from countdown_rl.artifacts import Manifest
from countdown_rl.card import Measured, Story
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.hub import TOKEN
from countdown_rl.lineage import Link
from countdown_rl.options import PublishOptions
from countdown_rl.references import ModelRef

CARD = "README.md"
KINDS = ("quantized", "merged", "model", "adapter")

#: Groups of puzzles as a person would call them; the others are counts of numbers.
_GROUPS = {"add-sub": "solvable with + and − alone", "mul-div": "need × or ÷"}
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
_ABSOLUTE = re.compile(r"(?<![\w:/.~-])/(?:[\w.-]+/)+[\w.-]+")
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


def build(
    model: str, out: Path, options: PublishOptions, *, measured: Path | None = None, comparison: Path | None = None
) -> Manifest:
    """Write the release of *model* at *out*, with what the eval artifact *measured* says about it.

    Raises:
        ArtifactError: something in the chain is missing or damaged, *measured* is about other weights, or
            a file names a path of this machine or holds a token.
        UsageError: the options do not go with this model.
    """
    artifacts.check_writable(out, "release")
    ref, manifest = _weights(model)
    source = references.files(ref)
    inputs = {"model": ref.as_input()}
    results = evaluation = None
    if measured is not None:
        evaluation = evaluation_of(measured, ref)
        results = measurement(measured)
        inputs["eval"] = evaluation.as_input()
        if results.accuracy < options.min_accuracy:
            raise ArtifactError(
                f"{model} solves {100 * results.accuracy:.1f}% of the puzzles in {measured}, less than "
                f"--min-accuracy {options.min_accuracy:g}; train it further, or ask for less."
            )
    elif options.min_accuracy > 0:
        raise UsageError("--min-accuracy needs an evaluation; give --eval.")
    compared = None
    if comparison is not None:
        found = artifacts.read(comparison, "comparison")
        if not lineage.mentions(found.inputs, evaluation.digest if evaluation else ref.digest):
            raise ArtifactError(f"{comparison} does not compare {model}; run `countdown-rl compare` on its evaluation.")
        compared = (comparison / "comparison.md").read_text("utf-8")
        inputs["comparison"] = found.as_input()
    for name, entry in inputs.items():
        if (link := lineage.changed(entry)) is not None:
            raise ArtifactError(
                f"the manifest of {link}, in the chain that led to the {name}, was changed afterwards; make {link} and "
                "what follows it again."
            )
    links = lineage.chain(inputs["model"])
    told = _told(manifest.kind, links, options)
    with artifacts.writing(out, "release", options={}, inputs=inputs, libraries=("huggingface_hub",)) as draft:
        for name in manifest.files:
            if name != CARD:
                (draft.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, draft.path / name)
        if manifest.kind == "adapter":
            _point_at_base(draft.path / "adapter_config.json", told["base_model"])
        draft.facts.update(told, weights=manifest.kind)
        if results is not None:
            draft.facts.update(accuracy=results.accuracy, n=results.n, interval=list(results.interval))
        story = Story(
            kind=manifest.kind,
            chain=links,
            files={name: _entry(draft.path / name) for name in sorted(manifest.files) if name != CARD},
            measured=results,
            comparison=compared,
            **told,
        )
        (draft.path / CARD).write_text(card.text(story), "utf-8")
        _check(draft.path, inputs)
    return artifacts.read(out, "release", verify=False)


def standing(
    out: Path, options: PublishOptions, *, model: str, measured: Path | None = None, comparison: Path | None = None
) -> Manifest | None:
    """The release at *out* when it is what was asked for, so that it can go up as it was built; else None.

    *measured*, *comparison* and the options count only where they are given. The *model* it was made of
    need not be there any more: a release stands by itself.

    Raises:
        ArtifactError: the release at *out* is damaged.
    """
    if artifacts.peek(out) != "release":
        return None
    manifest = artifacts.read(out, "release")
    recorded = manifest.inputs.get("model", {})
    digest = _digest(references.SHIPPED.get(model, Path(model)))
    if digest is None and ModelRef(model, "directory", None).reference != recorded.get("source"):
        return None
    if digest is not None and digest != recorded.get("digest"):
        return None
    for key, path in (("eval", measured), ("comparison", comparison)):
        if path is not None and manifest.inputs.get(key, {}).get("digest") != _digest(path):
            return None
    for name in ("name", "base_model", "base_relation", "license"):
        wanted = getattr(options, name)
        if wanted is not None and manifest.facts.get(name) != wanted:
            return None
    if options.trained_on and manifest.facts.get("datasets") != list(options.trained_on):
        return None
    if options.min_accuracy > manifest.facts.get("accuracy", 0.0):
        return None
    return manifest


def check_measured(manifest: Manifest) -> None:
    """Refuse to upload a release that says nothing of how good it is.

    Raises:
        HubError: the release was built without an evaluation.
    """
    if "eval" not in manifest.inputs:
        raise HubError(
            "these weights have not been measured; run `countdown-rl eval` on them and give --eval, or give "
            "--unmeasured to publish them all the same."
        )


def evaluation_of(path: Path, ref: ModelRef) -> Manifest:
    """The manifest of the eval artifact at *path*, which must be of the very weights of *ref*."""
    manifest = artifacts.read(path, "eval")
    if manifest.inputs.get("model", {}).get("digest") != ref.digest:
        raise ArtifactError(
            f"{path} measured other weights than {ref.source} holds now; run "
            f"`countdown-rl eval --model {ref.source} --out {path}` again."
        )
    return manifest


def measurement(path: Path) -> Measured:
    """What the metrics of the eval artifact at *path* say."""
    try:
        metrics = json.loads((path / "metrics.json").read_bytes())
        groups = [
            (_GROUPS.get(key, f"{key} numbers"), group["accuracy"], group["n"], tuple(group["interval"]))
            for field in ("by_size", "by_needs")
            for key, group in sorted(metrics[field].items())
        ]
        return Measured(
            accuracy=metrics["accuracy"],
            n=metrics["n"],
            interval=(metrics["interval"][0], metrics["interval"][1]),
            format=metrics["format"],
            groups=groups,
            decoding=metrics["decoding"],
            data=metrics["data"],
            task=metrics["task"],
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ArtifactError(f"{path / 'metrics.json'} is damaged; run `countdown-rl eval` again.") from error


def beside(model: str, kind: str) -> Path | None:
    """Where the pipeline keeps the eval artifact of *model*, or a comparison that has it in, if there is one."""
    path = Path(model)
    place = path.parent / "eval" / (path.name if kind == "eval" else "comparison")
    if artifacts.peek(place) != kind:
        return None
    digest, found = _digest(path), _manifest(place)
    if kind == "comparison" and not (digest and found and lineage.mentions(found.inputs, digest)):
        return None
    return place


def _manifest(path: Path) -> Manifest | None:
    try:
        return Manifest(**json.loads((path / artifacts.MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _digest(path: Path) -> str | None:
    manifest = _manifest(path)
    return manifest.digest if manifest else None


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": artifacts.file_sha256(path), "size": path.stat().st_size}


def _weights(model: str) -> tuple[ModelRef, Manifest]:
    ref = references.resolve(model)
    if ref.manifest is None or ref.manifest.kind not in KINDS:
        raise ArtifactError(
            f"{model} has no manifest that says how it came to be; give --model what `countdown-rl quantize`, "
            "`merge`, `train` or `warmup` made."
        )
    return ref, ref.manifest


def _told(kind: str, links: list[Link], options: PublishOptions) -> dict[str, Any]:
    """What the card says of the model's name and origin: as given, or as the chain has it."""
    root = lineage.origin(links)
    base_model = options.base_model or (root.name if root.kind == "hub" else None)
    if base_model is not None and not _HUB_ID.fullmatch(base_model):
        raise UsageError(f"--base-model {base_model} is no id on the Hub; give NAME/MODEL.")
    if kind == "adapter" and base_model is None:
        raise UsageError(
            f"an adapter loads only over its base, and {root.name} is not on the Hub; merge it first, or give "
            "--base-model."
        )
    trained = any(link.kind == "adapter" for link in links)
    shipped = root.name in references.SHIPPED or (root.kind == "model" and base_model is None)
    return {
        "name": options.name or _name(root, kind, trained),
        "base_model": base_model,
        "base_relation": options.base_relation or ("adapter" if kind == "adapter" else "finetune"),
        "license": options.license or ("apache-2.0" if shipped else None),
        "datasets": list(options.trained_on),
    }


def _name(root: Link, kind: str, trained: bool) -> str:
    stem = Path(root.name).name.removesuffix(".gguf")
    parts = [stem, "" if "countdown" in stem else "countdown", "grpo" if trained else ""]
    return "-".join(part for part in [*parts, {"quantized": "nf4", "adapter": "lora"}.get(kind, "")] if part)


def _point_at_base(path: Path, base_model: str) -> None:
    config = json.loads(path.read_bytes()) | {"base_model_name_or_path": base_model}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _check(folder: Path, inputs: Mapping[str, Any]) -> None:
    """What must not leave this machine, and what the card must not promise in vain."""
    page = (folder / CARD).read_text("utf-8")
    for name in _LINK.findall(page):
        if not (folder / name).exists():
            raise ArtifactError(
                f"the card names {name}, which is not in the release; take it out of what it came from."
            )
    named = [
        (link.name, text)
        for entry in inputs.values()
        for link in lineage.chain(entry)
        for text in _strings(link.options)
    ]
    for file in sorted(folder.glob("*config.json")):
        named += [(file.name, text) for text in _strings(json.loads(file.read_bytes()))]
    named += [("the manifest", text) for text in _strings(inputs)]
    named = [(place, text) for place, text in named if _is_path(text)]
    named += [("the card", found) for found in _ABSOLUTE.findall(page)]
    if named:
        place, path = named[0]
        raise ArtifactError(
            f"{place} names {path}, a path of this machine; make {place} again with relative paths before publishing."
        )
    if TOKEN.search(page) or any(TOKEN.search(text) for text in _strings(inputs)):
        raise ArtifactError("the card or the manifest holds what looks like a token for the Hub; take it out first.")


def _is_path(text: str) -> bool:
    return os.path.isabs(text) and bool(_ABSOLUTE.fullmatch(text))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)

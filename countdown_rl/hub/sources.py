"""What a release is made of: weights in one form or several, and what was measured of them."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from countdown_rl import artifacts
from countdown_rl.artifacts import Manifest
from countdown_rl.errors import ArtifactError, UsageError
from countdown_rl.hub import formats, results
from countdown_rl.hub.formats import Form
from countdown_rl.models import reference
from countdown_rl.models.reference import ModelRef

KINDS = ("quantized", "merged", "model", "adapter")

_FOLDER = re.compile(r"[\w][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Sources:
    """What a release is made of. ``model`` lies in the release itself, each of ``also`` in a folder of its
    own; ``measured`` are eval artifacts of them, in any order; ``log`` is the training's."""

    model: str
    also: tuple[str, ...] = ()
    measured: tuple[Path, ...] = ()
    comparison: Path | None = None
    log: Path | None = None


def completed(sources: Sources) -> Sources:
    """*sources*, and where they leave it open the evaluations, comparison and log that the pipeline keeps
    beside the weights.

    An evaluation of one form leaves open that of the others. A log that is not of this training is left out.
    """
    model = results.manifest_at(path_of(sources.model))
    given = [artifacts.read(path, "eval", verify=False) for path in sources.measured]
    found = []
    for source in (sources.model, *sources.also):
        weights = results.manifest_at(path_of(source))
        if weights is None or not any(results.concerns(manifest, weights) for manifest in given):
            found.append(results.beside(source, "eval"))
    links = artifacts.chain(model.as_input()) if model else []
    return replace(
        sources,
        measured=(*sources.measured, *dict.fromkeys(path for path in found if path is not None)),
        comparison=sources.comparison or results.beside(sources.model, "comparison"),
        log=sources.log or results.log_beside(sources.model, links),
    )


@dataclass(frozen=True)
class Weights:
    """Weights on their way into a release: ``place`` is their folder there, "" for the release itself."""

    place: str
    ref: ModelRef
    manifest: Manifest
    folder: Path
    form: Form

    @property
    def key(self) -> str:
        return self.place or "model"

    @property
    def eval_key(self) -> str:
        return eval_key_of(self.place)

    def __hash__(self) -> int:
        return hash(self.place)


def key_of(source: str) -> str:
    """The folder in the release of weights that do not lie in the release itself: named as theirs is here."""
    name = Path(source).resolve().name
    if not _FOLDER.fullmatch(name) or name in ("model", "log", "comparison") or name.endswith("eval"):
        raise UsageError(f"--also {source} would lie in {name}, which cannot be; rename the directory.")
    return name


def eval_key_of(place: str) -> str:
    """Under which key a release's manifest has the evaluation of what lies in *place*."""
    return f"{place}-eval" if place else "eval"


def path_of(source: str) -> Path:
    """Where what *source* names lies, or would lie."""
    return reference.SHIPPED.get(source) or Path(source).expanduser()


def weights_of(sources: Sources) -> list[Weights]:
    """All weights of *sources*, whole, each with its place in the release.

    Raises:
        ModelError: there is nothing. ArtifactError: it is damaged, or says nothing of how it came to be.
        UsageError: two of them would lie in one place.
    """
    found: list[Weights] = []
    for place, source in (("", sources.model), *((key_of(source), source) for source in sources.also)):
        if place in [one.place for one in found]:
            raise UsageError(f"two of the weights would lie in {place}; rename one of the directories.")
        ref = _ref(source)
        if ref.manifest is None or ref.manifest.kind not in KINDS:
            raise ArtifactError(
                f"{source} has no manifest that says how it came to be; give --model what `countdown-rl quantize`, "
                "`merge`, `train` or `sft` made."
            )
        folder = reference.files(ref)
        found.append(Weights(place, ref, ref.manifest, folder, formats.form_of(folder)))
    return found


def _ref(source: str) -> ModelRef:
    path = path_of(source)
    if artifacts.peek(path) == "quantized":
        # By its manifest alone, since not every form of it is one that this tool's own loader takes.
        return ModelRef(source, "directory", path, manifest=artifacts.read(path, "quantized"))
    return reference.resolve(source)

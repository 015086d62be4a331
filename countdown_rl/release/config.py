"""Options of ``publish``: what a release is made from, and its upload."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag
from countdown_rl.core.options import Options, option
from countdown_rl.models.reference import HUB_ID

CARD, HUB = "Card", "Upload"
#: Options that apply to the release of a data set.
DATA_OPTIONS = ("data", "name", "license")


def _check_hub_id(flag: str, repo_id: str | None) -> None:
    if repo_id is not None and not HUB_ID.fullmatch(repo_id):
        raise UsageError(f"{flag} {repo_id} is not an id on the Hub; give NAME/MODEL.")


@dataclass(frozen=True)
class PublishOptions(Options):
    """Inputs of a release, and what its card says beside them."""

    model: Annotated[str, option("Weights of quantize, merge, train or sft.")] = (
        "artifacts/quantized"
    )
    data: Annotated[
        str | None, option("Data set of gen-data to publish instead of a model.", metavar="DIR")
    ] = None
    evaluation: Annotated[
        str | None,
        option("Evaluation of these weights.", name="--eval", show_default="eval/NAME beside them"),
    ] = None
    comparison: Annotated[
        str | None,
        option("Directory of compare, for its table.", show_default="eval/comparison beside them"),
    ] = None
    log: Annotated[
        str | None,
        option("Training log, for its curves.", show_default="train/log.csv beside them"),
    ] = None
    name: Annotated[
        str | None, option("Name on the card.", CARD, show_default="from the base or the task")
    ] = None
    base_model: Annotated[
        str | None, option("Base on the Hub, if in no manifest.", CARD, metavar="NAME/MODEL")
    ] = None
    license: Annotated[
        str | None, option("License id of the Hub: apache-2.0.", CARD, show_default="the base's")
    ] = None
    license_file: Annotated[
        str | None, option("License text to add as LICENSE.", CARD, metavar="FILE")
    ] = None
    trained_on: Annotated[
        tuple[str, ...], option("Hub data set of training; repeatable.", CARD, metavar="NAME")
    ] = ()
    benchmark: Annotated[
        str | None,
        option(
            "Hub data set evaluated on; adds files for its leaderboard.", CARD, metavar="NAME/DATA"
        ),
    ] = None
    with_demo: Annotated[
        bool, option("Add index.html, which runs GGUF in a browser.", name="--with-demo")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_hub_id("--base-model", self.base_model)
        _check_hub_id("--benchmark", self.benchmark)
        for name in ("name", "license", "trained_on"):
            if not (text := "".join(getattr(self, name) or "")).isprintable():
                raise UsageError(
                    f"should be one line of printable characters, not {text!r:.40}.", option=name
                )
        for field in fields(self) if self.data is not None else ():
            if field.name not in DATA_OPTIONS and getattr(self, field.name) != field.default:
                raise UsageError(
                    f"{flag(field.name)} is for the release of a model; leave it out with --data."
                )
        if self.license_file and not Path(self.license_file).is_file():
            raise UsageError(f"{self.license_file} is not a file.", option="license_file")


@dataclass(frozen=True)
class UploadOptions(Options):
    """Upload of a release to the Hub."""

    push: Annotated[bool, option("Upload the release.", HUB, name="--push")] = False
    repo_id: Annotated[str | None, option("Repository.", HUB, metavar="NAME/MODEL")] = None
    public: Annotated[
        bool, option("Visibility of the repository.", HUB, name="--public/--private")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_hub_id("--repo-id", self.repo_id)
        if self.push and self.repo_id is None:
            raise UsageError("needs a repository; give --repo-id NAME/MODEL.", option="push")
        if not self.push and (self.repo_id or self.public):
            raise UsageError("and --public go with --push; add it.", option="repo_id")

"""Options of ``publish``: what a release is made from, and its upload."""

from dataclasses import dataclass
from typing import Annotated

from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Options, option
from countdown_rl.models.reference import HUB_ID

HUB = "Upload"


@dataclass(frozen=True)
class PublishOptions(Options):
    """Inputs of a release, and its license."""

    model: Annotated[str, option("Weights of quantize, merge, train or sft.")] = (
        "artifacts/quantized"
    )
    evaluation: Annotated[
        str | None,
        option("Evaluation of these weights.", name="--eval", show_default="eval/NAME beside them"),
    ] = None
    log: Annotated[
        str | None,
        option("Training log, for its curves.", show_default="train/log.csv beside them"),
    ] = None
    base_model: Annotated[
        str | None, option("Base on the Hub, if in no manifest.", metavar="NAME/MODEL")
    ] = None
    license: Annotated[
        str | None, option("License id of the Hub: apache-2.0.", show_default="the base's")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_hub_id("base_model", self.base_model)


@dataclass(frozen=True)
class UploadOptions(Options):
    """Upload of a release to the Hub."""

    repo_id: Annotated[
        str | None,
        option("Upload the release to this repository.", HUB, name="--push", metavar="NAME/MODEL"),
    ] = None
    public: Annotated[
        bool, option("Visibility of the repository.", HUB, name="--public/--private")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_hub_id("repo_id", self.repo_id)
        if self.public and self.repo_id is None:
            raise UsageError("goes with --push; give --push NAME/MODEL.", option="public")


def _check_hub_id(name: str, repo_id: str | None) -> None:
    if repo_id is not None and not HUB_ID.fullmatch(repo_id):
        raise UsageError(f"{repo_id} is not an id on the Hub; give NAME/MODEL.", option=name)

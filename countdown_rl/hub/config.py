"""Options of ``publish`` and ``publish-data``: what a release is made from, and its upload."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.errors import UsageError
from countdown_rl.options import Options

CARD = "Model card"
HUB = "Upload"


def check_hub_id(flag: str, repo_id: str | None) -> None:
    """Check that the value of *flag*, if there is one, is an id on the Hub.

    Raises:
        UsageError: it is not NAME/MODEL.
    """
    if repo_id is not None and not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo_id, re.ASCII):
        raise UsageError(f"{flag} {repo_id} is not an id on the Hub; give NAME/MODEL, NAME being you or a team.")


@dataclass(frozen=True)
class PublishOptions(Options):
    """Inputs of a model release, and content of its card that the manifests and evaluations do not give."""

    model: Annotated[str, Option(help="Weights of quantize, merge, train or sft.")] = "artifacts/quantized"
    also: Annotated[
        tuple[str, ...], Option(help="Same model in another format, or its adapter, for a subfolder; repeatable.")
    ] = ()
    evaluations: Annotated[
        tuple[str, ...],
        Option("--eval", help="Evaluation of these weights; repeatable.", show_default="eval/NAME beside them"),
    ] = ()
    comparison: Annotated[
        str | None, Option(help="Directory of compare, for its table.", show_default="eval/comparison beside them")
    ] = None
    log: Annotated[
        str | None, Option(help="Training log, for its curves.", show_default="train/log.csv beside them")
    ] = None
    name: Annotated[str | None, Option(help="Model name.", show_default="from its base", rich_help_panel=CARD)] = None
    base_model: Annotated[
        str | None,
        Option(metavar="NAME/MODEL", help="Base model on the Hub, if no manifest names it.", rich_help_panel=CARD),
    ] = None
    base_relation: Annotated[
        Literal["adapter", "finetune", "quantized", "merge"] | None,
        Option(help="Relation to --base-model; quantized if that names the merged weights.", rich_help_panel=CARD),
    ] = None
    license: Annotated[
        str | None,
        Option(help="Licence id of the Hub, e.g. apache-2.0.", show_default="the base's", rich_help_panel=CARD),
    ] = None
    license_file: Annotated[
        str | None,
        Option(metavar="FILE", help="Licence text; that of apache-2.0 is included.", rich_help_panel=CARD),
    ] = None
    trained_on: Annotated[
        tuple[str, ...],
        Option(metavar="NAME", help="Hub data set used in training; repeatable.", rich_help_panel=CARD),
    ] = ()
    measured_on: Annotated[
        str | None,
        Option(metavar="NAME", help="Hub data set of the evaluation; adds .eval_results/.", rich_help_panel=CARD),
    ] = None
    min_accuracy: Annotated[float, Option(min=0, max=1, help="Refuse weights of a lower accuracy.")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hub_id("--base-model", self.base_model)
        check_hub_id("--measured-on", self.measured_on)


@dataclass(frozen=True)
class PublishDataOptions(Options):
    """Input of a data release, and content of its card."""

    data: Annotated[str, Option(help="Directory of gen-data.")] = "artifacts/data"
    name: Annotated[str | None, Option(help="Name of the data set.", show_default="from its task")] = None
    license: Annotated[str | None, Option(help="Licence id of the Hub, e.g. cc0-1.0.", show_default="none")] = None


@dataclass(frozen=True)
class UploadOptions(Options):
    """Upload of a release to the Hub."""

    push: Annotated[bool, Option("--push", help="Upload the release.", rich_help_panel=HUB)] = False
    repo_id: Annotated[str | None, Option(metavar="NAME/MODEL", help="Repository.", rich_help_panel=HUB)] = None
    public: Annotated[bool, Option("--public/--private", help="Visibility of the repository.", rich_help_panel=HUB)] = (
        False
    )
    tag: Annotated[
        str | None, Option(help="Tag of this version.", show_default="next of v1, v2, ...", rich_help_panel=HUB)
    ] = None
    force: Annotated[
        bool,
        Option("--force", help="Replace a repository that countdown-rl did not make.", rich_help_panel=HUB),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hub_id("--repo-id", self.repo_id)
        if self.push and self.repo_id is None:
            raise UsageError("--push needs a repository; give --repo-id NAME/MODEL.")
        if not self.push and (self.repo_id or self.public or self.tag or self.force):
            raise UsageError("--repo-id, --public, --tag and --force go with --push; add it.")

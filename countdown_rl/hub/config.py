"""Options of ``publish``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.options import Options

CARD = "Model card"


@dataclass(frozen=True)
class PublishOptions(Options):
    """Content of the model card that the manifests and evaluations do not give, or that overrides them."""

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

"""Options of ``publish``."""

from dataclasses import dataclass

from countdown_rl.options import check_choices

PUBLISH_CHOICES = {"base_relation": ("adapter", "finetune", "quantized", "merge")}


@dataclass(frozen=True)
class PublishOptions:
    """``publish``: what the card says beside what the manifests and measurements say.

    None takes what the chain of manifests gives. ``trained_on`` are data sets on the Hub to name, ``measured_on``
    the one there that the puzzles of the evaluation are of; ``license_file`` is the text that goes with the weights.
    """

    name: str | None = None
    base_model: str | None = None
    base_relation: str | None = None
    license: str | None = None
    license_file: str | None = None
    trained_on: tuple[str, ...] = ()
    measured_on: str | None = None
    min_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.base_relation is not None:
            check_choices(self, PUBLISH_CHOICES)

"""What a model card tells: everything in it is read from manifests and measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.artifacts import Link
from countdown_rl.hub.formats import Form
from countdown_rl.hub.licenses import Terms
from countdown_rl.hub.results import Measured


@dataclass(frozen=True)
class Part:
    """One form of the weights: the folder of the release it lies in ("" for the release itself), the names
    of its files there, and what was measured of it."""

    form: Form
    place: str
    files: Sequence[str]
    measured: Measured | None

    @property
    def path(self) -> str:
        """Where it lies, as a path from the release."""
        return f"./{self.place}" if self.place else "."


@dataclass(frozen=True)
class Story:
    """``parts`` begins with the weights that the card is about; ``chain`` runs from the data to all of them;
    ``files`` are the manifest's entries; ``curves`` names the picture of the training run."""

    name: str
    parts: Sequence[Part]
    chain: Sequence[Link]
    files: Mapping[str, Mapping[str, Any]]
    comparison: str | None
    curves: str | None
    base_model: str | None
    base_relation: str
    terms: Terms
    datasets: Sequence[str]
    measured_on: str | None

    @property
    def form(self) -> Form:
        return self.parts[0].form

    @property
    def measured(self) -> Measured | None:
        return self.parts[0].measured

    @property
    def task(self) -> str:
        return self.measured.task if self.measured else "countdown"

    def find(self, kind: str) -> Link | None:
        """The first thing of that kind in the chain."""
        return next((link for link in self.chain if link.kind == kind), None)

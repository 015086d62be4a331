"""Weights of a release, and its card: a template with values of manifests and the evaluation."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.manifest import Manifest, ProvenanceEntry
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.results import Result, breakdowns, split
from countdown_rl.models import chat_template, load
from countdown_rl.models.formats import WeightFormat, format_of
from countdown_rl.models.reference import SHIPPED, ModelRef
from countdown_rl.release import templates
from countdown_rl.release.config import PublishOptions
from countdown_rl.release.report import charts
from countdown_rl.tasks import registry
from countdown_rl.tasks.probe import initial_model, layout, model_name, trained_on
from countdown_rl.tasks.task import Task

CARD, CURVES = "README.md", "curves.svg"
ADAPTER_CONFIG = "adapter_config.json"
#: Names of the files of an artifact of weights that go into a release.
FILES = re.compile(r"[\w-][\w.-]*\.(safetensors|gguf|json|jinja|model|txt)|Modelfile", re.ASCII)


@dataclass(frozen=True)
class Weights:
    """Weights in the directory *path*; *entry* lists them among the inputs of a release."""

    path: Path
    manifest: Manifest
    entry: JsonObject

    @classmethod
    def read(cls, source: str) -> "Weights":
        """Return the weights that *source*, a shipped model or a directory, names."""
        path = SHIPPED.get(source) or Path(source).expanduser()
        manifest = artifacts.read(path, ("quantized", "merged", "model", "adapter"))
        kind = "shipped" if source in SHIPPED else "directory"
        ref = ModelRef(source, kind, path, manifest=manifest)
        return cls(path, manifest, ref.as_input())

    @property
    def format(self) -> WeightFormat:
        return format_of(self.path / (self.gguf or ""))

    @property
    def gguf(self) -> str | None:
        """Name of the GGUF file."""
        return next((name for name in self.manifest.files if name.endswith(".gguf")), None)

    def measured_by(self, evaluation: Result) -> bool:
        """Return True if *evaluation* is of these weights, or of the GGUF file in them."""
        measured = evaluation.manifest.inputs.get("model", {}).get("digest", "")
        digests = [self.entry["digest"]]
        if self.gguf:
            digests.append(self.manifest.files[self.gguf]["sha256"])
        return measured in digests


@dataclass(frozen=True)
class Release:
    """Inputs of a release: ``chain`` runs from the data to the weights, ``comparison`` is Markdown."""

    options: PublishOptions
    weights: Weights
    evaluation: Result | None
    chain: Sequence[ProvenanceEntry]
    inputs: JsonObject
    comparison: str | None
    log: Path | None
    base_model: str | None
    license: dict[str, str]

    @property
    def name(self) -> str:
        return model_name(self.chain) + self.weights.format.suffix

    @property
    def task(self) -> Task:
        """The task of the evaluation, else that of training."""
        if self.evaluation:
            return registry.task(self.evaluation.metrics.task)
        return trained_on(self.chain)

    @property
    def base_relation(self) -> str:
        """The relation of the weights to their base, as the Hub names it."""
        return "adapter" if self.weights.format.name == "adapter" else "finetune"

    @cached_property
    def curves(self) -> list[charts.Curve]:
        """The charts of the training log; none without a log."""
        if self.log is None:
            return []
        return charts.curves({"": [training_log.read(self.log)]}, trained_on(self.chain))


def render(release: Release) -> str:
    """Return the card of *release*."""
    adapters = [link for link in release.chain if link.kind == "adapter"]
    precisions = [link.facts.get("precision", link.options.get("precision")) for link in adapters]
    measured: dict[str, object] = {}
    if release.evaluation:
        metrics = release.evaluation.metrics
        measured = {
            "metrics": metrics,
            "decoding": typed_json.dump(metrics.decoding),
            "breakdowns": list(breakdowns(metrics)),
            "split": split(release.evaluation),
        }
    return fill(
        "model_card.md.jinja",
        release=release,
        over_nf4="nf4" in precisions,
        initial=initial_model(release.chain),
        curves=release.curves and CURVES,
        **measured,
        **_prompt(release),
    )


def fill(template: str, **variables: object) -> str:
    """Return the Markdown *template* of this package, filled in with *variables*."""
    import jinja2

    environment = templates.html_templates().overlay(
        undefined=jinja2.Undefined, autoescape=False, trim_blocks=False, lstrip_blocks=False
    )
    variables |= {
        "text": templates,
        "literal": partial(json.dumps, ensure_ascii=False),
        "quote": shlex.quote,
    }
    return environment.get_template(f"release/{template}").render(variables).strip() + "\n"


def _prompt(release: Release) -> dict[str, object]:
    """Return the messages of an example prompt, and how it begins the answer.

    ``prefill`` is the beginning that the row gives, ``opened`` that of the template. If the chat
    template adds the rest of the prompt (``completed``), the only message is the user turn.
    """
    task = release.task
    row = task.row({"task": task.name, **task.example, **layout(release.chain)})
    messages = list(row.messages())
    prefill = ""
    if messages[-1]["role"] == "assistant":
        prefill = messages.pop()["content"]
    template = ""
    file = release.weights.path / "chat_template.jinja"
    if file.is_file():
        template = file.read_text("utf-8")
    completed = chat_template.MARK in template
    opened = ""
    if completed:
        messages = [message for message in messages if message["role"] == "user"]
        prefill = ""
    elif "<think" in prefill and "<think" in template:
        ref = ModelRef(release.name, "directory", release.weights.path)
        tokenizer = load.load_tokenizer(ref)
        prompt = chat_template.render(tokenizer, messages, chat_template.CHAT_ARGUMENTS)
        opened = chat_template.Rendered(prompt).answer
    arguments = chat_template.CHAT_ARGUMENTS.items()
    return {
        "messages": messages,
        "prefill": prefill,
        "opened": opened,
        "completed": completed,
        "arguments": {key: text for key, text in arguments if key in template},
        "texts": {turn["role"]: turn["content"] for turn in messages},
    }

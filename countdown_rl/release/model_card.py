"""Weights of a release, and its card: ``model_card.md.jinja`` with values from manifests and the evaluation."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.manifest import Manifest, ProvenanceEntry
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.results import Result, breakdowns, split
from countdown_rl.models import chat_template, load, model_files
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
    """Weights in the directory *path* with their manifest; *entry* lists them among the inputs of a release."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]

    @classmethod
    def read(cls, source: str) -> "Weights":
        """Return the weights that *source*, a shipped model or a directory, names; files are compared by size alone."""
        path = SHIPPED.get(source) or Path(source).expanduser()
        manifest = artifacts.read(path, ("quantized", "merged", "model", "adapter"))
        ref = ModelRef(
            source, "shipped" if source in SHIPPED else "directory", path, manifest=manifest
        )
        return cls(path, manifest, ref.as_input())

    @property
    def format(self) -> WeightFormat:
        return format_of(self.loadable)

    @property
    def gguf(self) -> str | None:
        """Name of the GGUF file."""
        return next((name for name in self.manifest.files if name.endswith(".gguf")), None)

    @property
    def loadable(self) -> Path:
        """The GGUF file, or the directory of other weights."""
        return self.path / (self.gguf or "")

    def measured_by(self, evaluation: Result) -> bool:
        """Return True if *evaluation* is of these weights, or of the GGUF file in them."""
        measured = evaluation.manifest.inputs.get("model", {}).get("digest", "")
        file = self.manifest.files.get(self.gguf or "", {})
        return measured in (self.entry["digest"], file.get("sha256"))


@dataclass(frozen=True)
class Release:
    """Inputs of a model release: ``chain`` runs from the data to the weights, ``comparison`` is Markdown."""

    options: PublishOptions
    weights: Weights
    evaluation: Result | None
    chain: Sequence[ProvenanceEntry]
    inputs: dict[str, Any]
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
    evaluation = release.evaluation
    metrics = evaluation.metrics if evaluation else None
    kinds = []
    if metrics:
        kinds = [(kind, scores) for _, kind, scores in breakdowns(metrics)]
    policy = next((link for link in release.chain if link.by_grpo), None)
    merged = next((link for link in release.chain if link.kind == "merged"), None)
    adapters = [link for link in release.chain if link.kind == "adapter"]
    precisions = [link.facts.get("precision", link.options.get("precision")) for link in adapters]
    is_adapter = release.weights.format.name == "adapter"
    return fill(
        "model_card.md.jinja",
        release=release,
        policy=policy,
        over_nf4="nf4" in precisions,
        metrics=metrics,
        decoding=typed_json.dump(metrics.decoding) if metrics else {},
        kinds=kinds,
        initial=initial_model(release.chain),
        curves=CURVES if release.curves else None,
        agreement=merged.facts.get("agreement", {}).get("with_policy_as_trained")
        if merged
        else None,
        ends=is_adapter and model_files.GENERATION in release.weights.manifest.files,
        max_new_tokens=metrics.decoding.max_new_tokens if metrics else 256,
        split=split(evaluation) if evaluation else "",
        **_prompt(release),
    )


def fill(template: str, **values: Any) -> str:
    """Return the Markdown *template* of this package, filled in with *values*."""
    import jinja2

    settings: dict[str, Any] = {"autoescape": False, "trim_blocks": False, "lstrip_blocks": False}
    environment = templates.html_templates().overlay(undefined=jinja2.Undefined, **settings)
    values |= {
        "text": templates,
        "literal": partial(json.dumps, ensure_ascii=False),
        "quote": shlex.quote,
    }
    return environment.get_template(f"release/{template}").render(values).strip() + "\n"


def _prompt(release: Release) -> dict[str, Any]:
    """Return the messages of an example prompt, its ``prefill``, and the prefill of the template (``opened``).

    If the chat template adds the rest of the prompt (``completed``), the only message is the user turn.
    """
    row = release.task.row(
        {"task": release.task.name, **release.task.example, **layout(release.chain)}
    )
    messages = [dict(message) for message in row.messages()]
    prefill = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    file = release.weights.path / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else ""
    completed = chat_template.MARK in template
    opened = ""
    if completed:
        messages = [message for message in messages if message["role"] == "user"]
        prefill = ""
    elif "<think" in prefill and "<think" in template:
        ref = ModelRef(release.name, "directory", release.weights.path)
        prompt = chat_template.render(
            load.load_tokenizer(ref), messages, chat_template.CHAT_ARGUMENTS
        )
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

"""Weights of a release, and the files about them that others read.

They are the model card, ``model_card.md.jinja`` with values from manifests and the evaluation; the Hub's files of a
benchmark and of results on it, https://huggingface.co/docs/hub/eval-results; and the record of Every Eval Ever, by
schema 0.3.0 of https://github.com/evaleval/every_eval_ever.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, formatting, typed_json
from countdown_rl.core.manifest import Manifest, ProvenanceEntry, initial_model
from countdown_rl.evaluation.results import Result, breakdowns, split
from countdown_rl.evaluation.tables import decoding_text
from countdown_rl.models import chat_template, load, model_files
from countdown_rl.models.formats import WeightFormat, format_of
from countdown_rl.models.reference import SHIPPED, ModelRef
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks import registry
from countdown_rl.tasks.probe import layout, model_name
from countdown_rl.tasks.task import Task

CARD, CURVES, LICENSE, DEFINITION, RECORD = (
    "README.md",
    "curves.svg",
    "LICENSE",
    "eval.yaml",
    "every_eval_ever.json",
)
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
        manifest = artifacts.read(path, ("quantized", "merged", "model", "adapter"), verify=False)
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
        measured, file = (
            evaluation.manifest.inputs.get("model", {}),
            self.manifest.files.get(self.gguf or "", {}),
        )
        return measured.get("digest", "") in (self.entry["digest"], file.get("sha256"))


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
        return self.options.name or model_name(self.chain) + self.weights.format.suffix

    @property
    def task(self) -> Task:
        """The task of the evaluation, else of the data."""
        data = next((link.options for link in self.chain if link.kind == "data"), {})
        return (
            registry.task(self.evaluation.metrics.task)
            if self.evaluation
            else registry.task_of(data)
        )

    @property
    def base_relation(self) -> str:
        """The relation of the weights to their base, as the Hub names it."""
        return "adapter" if self.weights.format.name == "adapter" else "finetune"


def render(release: Release) -> str:
    """Return the card of *release*."""
    evaluation, weights, chain = release.evaluation, release.weights, release.chain
    metrics = evaluation.metrics if evaluation else None
    policy = next((link for link in chain if link.by_grpo), None)
    merged = next((link for link in chain if link.kind == "merged"), None)
    adapters = [link for link in chain if link.kind == "adapter"]
    return fill(
        "model_card.md.jinja",
        release=release,
        policy=policy,
        over_nf4=any(
            "nf4" in (link.facts.get("precision"), link.options.get("precision"))
            for link in adapters
        ),
        metrics=metrics,
        decoding=typed_json.dump(metrics.decoding) if metrics else {},
        kinds=[(kind, scores) for _, kind, scores in breakdowns(metrics)] if metrics else [],
        initial=initial_model(chain),
        curves=CURVES if release.log else None,
        agreement=merged.facts.get("agreement", {}).get("with_policy_as_trained")
        if merged
        else None,
        ends=weights.format.name == "adapter" and model_files.GENERATION in weights.manifest.files,
        **_prompt(release),
        max_new_tokens=metrics.decoding.max_new_tokens if metrics else 256,
        split=split(evaluation) if evaluation else "",
    )


def fill(template: str, **values: Any) -> str:
    """Return the Markdown *template* of this package, filled in with *values*."""
    import jinja2

    settings: dict[str, Any] = {"autoescape": False, "trim_blocks": False, "lstrip_blocks": False}
    environment = formatting.html_templates().overlay(undefined=jinja2.Undefined, **settings)
    values |= {
        "text": formatting,
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
    completed, opened = chat_template.MARK in template, ""
    if completed:
        messages, prefill = [message for message in messages if message["role"] == "user"], ""
    elif "<think" in prefill and "<think" in template:
        ref = ModelRef(release.name, "directory", release.weights.path)
        prompt = chat_template.render(
            load.load_tokenizer(ref), messages, chat_template.CHAT_ARGUMENTS
        )
        opened = chat_template.Rendered(prompt).answer
    values = {"messages": messages, "prefill": prefill, "opened": opened, "completed": completed}
    arguments = {key: text for key, text in chat_template.CHAT_ARGUMENTS.items() if key in template}
    return values | {
        "arguments": arguments,
        "texts": {turn["role"]: turn["content"] for turn in messages},
    }


def definition(task: Task) -> str:
    """The ``eval.yaml`` of a data set of *task*, whose test split is the benchmark."""
    from huggingface_hub.utils import yaml_dump

    grading = "Graded exactly by the Inspect task of countdown-rl: inspect eval countdown_rl/exact -T data=DIRECTORY."
    values: dict[str, Any] = {"name": task.title, "description": f"{task.purpose} {grading}"}
    values |= {
        "evaluation_framework": "inspect-ai",
        "tasks": [{"id": task.name, "config": "default", "split": "test"}],
    }
    return yaml_dump(values, sort_keys=False, width=120)


def result_files(evaluation: Result, name: str, dataset: str | None) -> dict[str, str]:
    """The files with the results of *evaluation*, of the model *name* on the Hub's data set *dataset*, by path.

    Of a benchmark suite that is no data set on the Hub, only the record.
    """
    metrics, suite = evaluation.metrics, evaluation.metrics.data.get("suite")
    if dataset is None and suite is None:
        return {}
    files = {RECORD: f"{json.dumps(_record(evaluation, name, dataset), indent=2)}\n"}
    if dataset is None:
        return files
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    noun = registry.task(metrics.task).noun
    decoding = decoding_text(typed_json.dump(metrics.decoding))
    notes = (
        f"{decoding}; {metrics.n:,} {noun}s, 95% interval {formatting.interval(metrics.interval)}"
    )
    notes += (
        f"; suite {suite}, sha256 {metrics.data['digest']}, grammar {metrics.grammar}"
        if suite
        else ""
    )
    notes += f"; the first {metrics.n:,} of {metrics.of:,} {noun}s alone" if metrics.of else ""
    entry = EvalResultEntry(dataset, metrics.task, round(100 * metrics.accuracy, 2), notes=notes)
    entries = yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
    return files | {f".eval_results/{metrics.task}.yaml": entries}


def _record(evaluation: Result, name: str, dataset: str | None) -> dict[str, Any]:
    """The record of Every Eval Ever. A release has no times, so whoever submits it sets ``retrieved_timestamp``."""
    metrics, manifest, decoding = (
        evaluation.metrics,
        evaluation.manifest,
        evaluation.metrics.decoding,
    )
    details = {"deployment_type": "self_deployed", "model_availability": "open_weights"}
    details |= {"digest": metrics.model.digest or "", "precision": metrics.precision or ""}
    arguments = {
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "max_tokens": decoding.max_new_tokens,
    }
    source = {"dataset_name": metrics.data.get("suite") or dataset, "source_type": "other"}
    source |= (
        {"source_type": "hf_dataset", "hf_repo": dataset, "hf_split": "test"} if dataset else {}
    )
    part = {"rows": f"the first {metrics.n} of {metrics.of}"} if metrics.of else {}
    source |= {
        "additional_details": {
            "sha256": metrics.data["digest"],
            "grammar": str(metrics.grammar),
            **part,
        }
    }
    scale = {"lower_is_better": False, "score_type": "continuous", "min_score": 0, "max_score": 1}
    model = {"name": name, "id": name, "inference_engine": {"name": metrics.engine or "unknown"}}
    origin = {"source_type": "evaluation_run", "source_organization_name": "unknown"}
    scored = []
    for kind, scores in [
        ("", metrics),
        *((f": {kind}", scores) for _, kind, scores in breakdowns(metrics)),
    ]:
        ends = {"lower": scores.interval[0], "upper": scores.interval[1], "confidence_level": 0.95}
        score = {
            "score": scores.accuracy,
            "uncertainty": {"confidence_interval": ends, "num_samples": scores.n},
        }
        about = {
            "evaluation_name": f"{metrics.task}{kind}",
            "source_data": source,
            "metric_config": scale,
        }
        scored.append(
            about | {"score_details": score, "generation_config": {"generation_args": arguments}}
        )
    return {
        "schema_version": "0.3.0",
        "evaluation_id": f"{metrics.task}/{name}/{manifest.digest[:16]}",
        "retrieved_timestamp": "0",
        "source_metadata": origin | {"evaluator_relationship": "first_party"},
        "eval_library": {"name": "countdown-rl", "version": manifest.version or "unknown"},
        "model_info": model
        | {"additional_details": {key: detail for key, detail in details.items() if detail}},
        "evaluation_results": scored,
    }

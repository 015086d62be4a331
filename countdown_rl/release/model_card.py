"""Model card of a release: ``model_card.md.jinja`` with values from manifests and the evaluation."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from countdown_rl.core import formatting, typed_json
from countdown_rl.core.manifest import ProvenanceEntry, initial_model
from countdown_rl.evaluation.results import Result, breakdowns, split
from countdown_rl.models import chat_template, load
from countdown_rl.models.model_files import GENERATION
from countdown_rl.models.reference import ModelRef
from countdown_rl.release.formats import Weights
from countdown_rl.tasks import registry
from countdown_rl.tasks.probe import layout
from countdown_rl.tasks.task import Task

CARD, CURVES, LICENSE = "README.md", "curves.svg", "LICENSE"


@dataclass(frozen=True)
class Release:
    """Inputs of a model release: ``chain`` runs from the data to the weights, ``comparison`` is Markdown."""

    name: str
    weights: Weights
    evaluation: Result | None
    chain: Sequence[ProvenanceEntry]
    inputs: dict[str, Any]
    comparison: str | None
    log: Path | None
    base_model: str | None
    license: dict[str, str]
    datasets: Sequence[str]

    @property
    def task(self) -> Task:
        """The task of the evaluation, else of the data."""
        data = next((link.options for link in self.chain if link.kind == "data"), {})
        return registry.task(self.evaluation.metrics.task) if self.evaluation else registry.task_of(data)

    @property
    def base_relation(self) -> str:
        """The relation of the weights to their base, as the Hub names it."""
        return "adapter" if self.weights.format.name == "adapter" else "finetune"


def render(release: Release, *, with_demo: bool) -> str:
    """Return the card of *release*; it mentions the demo page if *with_demo*."""
    evaluation, weights, chain = release.evaluation, release.weights, release.chain
    metrics = evaluation.metrics if evaluation else None
    policy = next((link for link in chain if link.by_grpo), None)
    merged = next((link for link in chain if link.kind == "merged"), None)
    adapters = [link for link in chain if link.kind == "adapter"]
    return fill(
        "model_card.md.jinja",
        release=release,
        policy=policy,
        over_nf4=any("nf4" in (link.facts.get("precision"), link.options.get("precision")) for link in adapters),
        metrics=metrics,
        decoding=typed_json.dump(metrics.decoding) if metrics else {},
        kinds=[(kind, scores) for _, kind, scores in breakdowns(metrics)] if metrics else [],
        initial=initial_model(chain),
        curves=CURVES if release.log else None,
        agreement=merged.facts.get("agreement", {}).get("with_policy_as_trained") if merged else None,
        with_demo=with_demo,
        ends=weights.format.name == "adapter" and GENERATION in weights.manifest.files,
        **_prompt(release),
        max_new_tokens=metrics.decoding.max_new_tokens if metrics else 256,
        split=split(evaluation) if evaluation else "",
    )


def fill(template: str, **values: Any) -> str:
    """Return the Markdown *template* of this package, filled in with *values*."""
    import jinja2

    environment = formatting.html_templates().overlay(
        autoescape=False, trim_blocks=False, lstrip_blocks=False, undefined=jinja2.Undefined
    )
    literal = partial(json.dumps, ensure_ascii=False)
    filled = environment.get_template(f"release/{template}").render(
        values, text=formatting, literal=literal, quote=shlex.quote
    )
    return f"{filled.strip()}\n"


def _prompt(release: Release) -> dict[str, Any]:
    """Return the messages of an example prompt, its ``prefill``, and the prefill of the template (``opened``).

    If the chat template adds the rest of the prompt (``completed``), the only message is the user turn.
    """
    row = release.task.row({"task": release.task.name, **release.task.example, **layout(release.chain)})
    messages = [dict(message) for message in row.messages()]
    prefill = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    file = release.weights.path / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else ""
    completed, opened = chat_template.MARK in template, ""
    if completed:
        messages, prefill = [message for message in messages if message["role"] == "user"], ""
    elif "<think" in prefill and "<think" in template:
        ref = ModelRef(release.name, "directory", release.weights.path)
        prompt = chat_template.render(load.load_tokenizer(ref), messages, chat_template.CHAT_ARGUMENTS)
        opened = chat_template.Rendered(prompt).answer
    return {
        "messages": messages,
        "prefill": prefill,
        "opened": opened,
        "arguments": {key: text for key, text in chat_template.CHAT_ARGUMENTS.items() if key in template},
        "texts": {message["role"]: message["content"] for message in messages},
        "completed": completed,
    }

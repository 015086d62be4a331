"""Model card of a release: metadata and the values of ``model_card.md.jinja``, from manifests and evaluations."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.core import typed_json
from countdown_rl.core.artifacts import ProvenanceEntry, origin
from countdown_rl.core.formatting import cell, code, flag, interval, percent, short, value
from countdown_rl.evaluation.results import Result, breakdowns, split
from countdown_rl.models import chat_template, load
from countdown_rl.models.chat_template import MARK
from countdown_rl.models.model_files import GENERATION
from countdown_rl.models.reference import ModelRef
from countdown_rl.release.formats import ADAPTER, Weights
from countdown_rl.tasks import registry
from countdown_rl.tasks.probe import layout
from countdown_rl.tasks.task import Task

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

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
        if self.evaluation:
            return registry.task(self.evaluation.metrics.task)
        data = self.link("data")
        return registry.task_of(data.options if data else {})

    @property
    def base_relation(self) -> str:
        """The relation of the weights to their base, as the Hub names it."""
        return "adapter" if self.weights.format is ADAPTER else "finetune"

    @property
    def policy(self) -> ProvenanceEntry | None:
        """The output of GRPO in the chain."""
        return next((link for link in self.chain if link.by_grpo), None)

    @property
    def over_nf4(self) -> bool:
        """True if an adapter was trained over NF4 weights: over others it is not the trained policy."""
        adapters = [link for link in self.chain if link.kind == "adapter"]
        return any("nf4" in (link.facts.get("precision"), link.options.get("precision")) for link in adapters)

    def link(self, kind: str) -> ProvenanceEntry | None:
        """Return the first artifact of that kind in the chain."""
        return next((link for link in self.chain if link.kind == kind), None)


def render(release: Release, *, with_demo: bool) -> str:
    """Return the card of *release*, which names the page of :mod:`countdown_rl.release.demo` if it is *with_demo*."""
    from huggingface_hub import ModelCard, ModelCardData

    evaluation, format, merged = release.evaluation, release.weights.format, release.link("merged")
    trained = ["grpo", "reinforcement-learning"] if release.policy else []
    trained += ["lora"] if release.policy and release.policy.kind == "adapter" else []
    metadata = ModelCardData(
        base_model=release.base_model,
        base_model_relation=release.base_relation if release.base_model else None,
        datasets=list(release.datasets) or None,
        language="en",
        library_name=format.library,
        metrics=["accuracy"] if evaluation else None,
        model_name=release.name,
        pipeline_tag="text-generation",
        tags=["countdown-rl", "reasoning", release.task.name, *trained, *format.tags],
        eval_results=eval_results(evaluation) if evaluation else None,
        **release.license,  # type: ignore[arg-type]
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(Path(__file__).with_name("model_card.md.jinja")),
        release=release,
        metrics=evaluation.metrics if evaluation else None,
        decoding=typed_json.dump(evaluation.metrics.decoding) if evaluation else {},
        kinds=[(kind, figures) for _, kind, figures in breakdowns(evaluation.metrics)] if evaluation else [],
        origin=origin(release.chain),
        curves=CURVES if release.log else None,
        agreement=merged.facts.get("agreement", {}).get("with_policy_as_trained") if merged else None,
        with_demo=with_demo,
        ends=format is ADAPTER and GENERATION in release.weights.manifest.files,
        **_prompt(release),
        max_new_tokens=evaluation.metrics.decoding.max_new_tokens if evaluation else 256,
        split=split(evaluation) if evaluation else "",
        cell=cell, code=code, flag=flag, literal=partial(json.dumps, ensure_ascii=False),
        interval=interval, percent=percent, quote=shlex.quote, short=short, value=value,
    )  # fmt: skip
    return f"{str(card).strip()}\n"


def eval_results(evaluation: Result) -> list["EvalResult"]:
    """Return the accuracies of *evaluation* on all puzzles and on each kind of them, as the metadata of a card."""
    from huggingface_hub import EvalResult

    metrics, called = evaluation.metrics, split(evaluation)
    task, decoding = registry.task(metrics.task), typed_json.dump(metrics.decoding)
    parts = [(None, metrics), *((kind, figures) for _, kind, figures in breakdowns(metrics))]
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Text generation",
            dataset_type=task.name,
            dataset_name=", ".join(filter(None, (task.title, called, kind))),
            dataset_config=kind,
            dataset_split="test" if called == "held-out" else None,
            metric_type="accuracy",
            metric_name="Accuracy (pass@1)",
            metric_value=round(figures.accuracy, 4),
            metric_args={"n": figures.n, "interval_95": [round(end, 4) for end in figures.interval], **decoding},
        )
        for kind, figures in parts
    ]


def _prompt(release: Release) -> dict[str, Any]:
    """Return the messages of an example prompt, the beginning of the answer, and the one that it replaces (``opened``).

    If the chat template adds the rest (``completed``), the only message is the user turn.
    """
    row = release.task.row({"task": release.task.name, **release.task.example, **layout(release.chain)})
    messages = [dict(message) for message in row.messages()]
    prefill = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    file = release.weights.path / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else ""
    completed, opened = MARK in template, ""
    if completed:
        messages, prefill = [message for message in messages if message["role"] == "user"], ""
    elif "<think" in prefill and "<think" in template:
        ref = ModelRef(release.name, "directory", release.weights.path)
        opened = chat_template.opened(load.load_tokenizer(ref), messages)
    return {
        "messages": messages,
        "prefill": prefill,
        "opened": opened,
        "arguments": {key: text for key, text in chat_template.CHAT_ARGUMENTS.items() if key in template},
        "texts": {message["role"]: message["content"] for message in messages},
        "completed": completed,
    }

"""Random prompts of a task, for comparing models and file formats; they need no solution."""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import ProvenanceEntry, provenance_chain
from countdown_rl.core.types import Record
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row, Task


def rows(task: Task, count: int, layout: Mapping[str, str] = {}) -> list[Row]:
    """The first probe rows of a task.

    Args:
        task: the task; without a generator of its own the rows are copies of its example.
        count: number of rows.
        layout: fields of each row, ``style`` and ``template``.
    """
    rng = random.Random(2024)
    draw = task.probe or task.draw or (lambda rng: task.example)
    return [task.row({"task": task.name, **draw(rng), **layout}) for _ in range(count)]


def conversations(model: Record, count: int) -> list[list[dict[str, str]]]:
    """The prompts of *count* probe rows of the task that *model*, an entry of a manifest, was
    trained on.
    """
    links = provenance_chain(model)
    return [row.messages() for row in rows(trained_on(links), count, layout(links))]


def trained_on(links: Sequence[ProvenanceEntry]) -> Task:
    """The task that the model of *links* was trained on; the default one if none is recorded."""
    recorded = [link.facts.get("task") or link.options.get("task") for link in links]
    return task_of({"task": next(filter(None, reversed(recorded)), None)})


def initial_model(ancestors: Sequence[ProvenanceEntry]) -> ProvenanceEntry:
    """Return the model that training started from: one on the Hub if there is one, else the last
    model before GRPO.
    """
    later = ("data", "file", "merged", "quantized")
    models = [entry for entry in ancestors if entry.kind not in later and not entry.by_grpo]
    if not models:
        names = ", ".join(entry.name for entry in ancestors)
        raise ArtifactError(
            f"the manifest ({names}) does not name the model that training began with; make it again."
        )
    return next((entry for entry in models if entry.kind == "hub"), models[-1])


def model_name(links: Sequence[ProvenanceEntry]) -> str:
    """The name of the model of *links*: that of the model that training began with, its task, and
    GRPO.
    """
    name = Path(initial_model(links).name).name.removesuffix(".gguf")
    task = trained_on(links).name
    by_grpo = any(link.by_grpo for link in links)
    if (by_grpo or len(links) > 1) and task not in name:
        name += f"-{task}"
    return f"{name}-grpo" if by_grpo else name


def data(links: Sequence[ProvenanceEntry]) -> ProvenanceEntry | None:
    """The data that the model of *links* was trained on last; None if none is recorded."""
    made_of = [_data(link, links) for link in reversed(links)]
    return next(filter(None, made_of), None)


def layout(links: Sequence[ProvenanceEntry]) -> dict[str, str]:
    """The ``style`` and ``template`` of the rows that the model of *links* was trained on last, if
    recorded.
    """
    for link in reversed(links):
        made_of = _data(link, links)
        options = link.facts.get("layout") or (made_of and made_of.options)
        if options:
            return {name: options[name] for name in ("style", "template") if options.get(name)}
    return {}


def prompt(row: Row) -> dict[str, str]:
    """The style of *row*, and the digest of the prompt that rows like it have, whatever they ask."""
    example = type(row)({**task_of(row).example, **row.layout})
    text = json.dumps(example.messages())
    return {"style": row.style_name, "digest": hashlib.sha256(text.encode()).hexdigest()}


def other_prompt(links: Sequence[ProvenanceEntry], rows: Iterable[Row], remedy: str) -> str:
    """Compare the prompt of rows with the one that a model learned.

    Args:
        links: the provenance of the model.
        rows: rows to ask it.
        remedy: what a user can do, for the sentence.

    Returns:
        a sentence if the prompts differ; else "".
    """
    learned = [link.facts["prompt"] for link in links if "prompt" in link.facts]
    if not learned:
        return ""
    layouts = {tuple(row.layout.items()): row for row in rows}
    for row in layouts.values():
        asked = prompt(row)
        if asked["digest"] != learned[-1]["digest"]:
            return (
                f"the model learned another prompt (style {learned[-1]['style']}) than these rows "
                f"have (style {asked['style']}); {remedy}"
            )
    return ""


def _data(link: ProvenanceEntry, links: Sequence[ProvenanceEntry]) -> ProvenanceEntry | None:
    """The data artifact *link*, or the one among *links* that it was made from."""
    digest = link.digest if link.kind == "data" else link.inputs.get("data")
    data = [other for other in links if other.kind == "data" and other.digest == digest]
    return data[0] if data else None

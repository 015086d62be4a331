"""Data release: the splits of a data artifact, and a card from which ``load_dataset`` reads them."""

import json
from pathlib import Path

from countdown_rl.core import artifacts, formatting
from countdown_rl.core.artifacts import ArtifactWriter
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import MADE_BY
from countdown_rl.release import benchmarks, model_card
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks.registry import task_of

#: The Hub's name of each split.
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def write(options: PublishOptions, draft: ArtifactWriter) -> None:
    """Write the splits of the data artifact ``options.data``, and their card, into *draft*."""
    data = Path(str(options.data))
    manifest = artifacts.read(data, "data", verify=False)
    for name, entry in manifest.files.items():
        draft.copy(data / name, name, entry)
    splits, task = manifest.facts["splits"], task_of(manifest.options)
    rows = {split: splits[split]["rows"] for split in _SPLITS if splits.get(split, {}).get("rows")}
    if not rows:
        raise ArtifactError(f"{data} holds no rows; make it again with `{MADE_BY['data']}`.")
    with (data / f"{next(iter(rows))}.jsonl").open(encoding="utf-8") as stream:
        fields = list(json.loads(stream.readline()))
    groups = [splits[split].get("groups", {}).items() for split in rows]
    columns = {
        (group, value) for counts in groups for group, values in counts if task.group(group).main for value in values
    }
    source = manifest.inputs.get("from", {})
    draft.facts |= {"name": options.name or f"{task.name}-{task.noun}s", "license": options.license, "rows": rows}
    card = model_card.fill(
        "dataset_card.md.jinja",
        **draft.facts,
        task=task,
        splits=splits,
        columns=sorted(columns),
        fields=fields,
        command=f"{MADE_BY['data']} {formatting.flags(manifest.options)}",
        source=source.get("hub") or source.get("file"),
        revision=source.get("revision"),
        own_test="test" in manifest.inputs,
        split_names=_SPLITS,
    )
    (draft.path / model_card.CARD).write_text(card, "utf-8")
    if "test" in rows:
        (draft.path / benchmarks.DEFINITION).write_text(benchmarks.definition(task), "utf-8")

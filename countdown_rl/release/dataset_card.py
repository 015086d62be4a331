"""Data release: the splits of a data artifact, and a card from which ``load_dataset`` reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import MADE_BY, Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import cell, flags
from countdown_rl.release import secret_scan
from countdown_rl.release.config import DATA_OPTIONS, PublishOptions
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Task

#: The Hub's name of each split.
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release of the data artifact ``options.data`` at *out*."""
    artifacts.check_writable(out, "data-release")
    data = Path(str(options.data))
    manifest = artifacts.read(data, "data", verify=False)
    inputs = {"data": manifest.as_input() | {"source": options.data}}
    rows = {split: int(manifest.facts["splits"].get(split, {}).get("rows", 0)) for split in _SPLITS}
    rows = {split: count for split, count in rows.items() if count}
    if not rows:
        raise ArtifactError(f"{data} holds no rows; make it again with `{MADE_BY['data']}`.")
    settings = {name: getattr(options, name) for name in DATA_OPTIONS}
    with artifacts.writing(
        out, "data-release", options=settings, inputs=inputs, libraries=("huggingface_hub",)
    ) as draft:
        for name, entry in manifest.files.items():
            draft.copy(data / name, name, entry)
        task = task_of(manifest.options)
        draft.facts.update(name=options.name or f"{task.name}-{task.noun}s", license=options.license, rows=rows)
        with (data / f"{next(iter(rows))}.jsonl").open(encoding="utf-8") as stream:
            fields = list(json.loads(next(stream, "{}")))
        if not fields:
            raise ArtifactError(f"{data} has fewer rows than its manifest; make it again with `{MADE_BY['data']}`.")
        (draft.path / "README.md").write_text(_card(manifest, draft.facts, task, fields), "utf-8")
        secret_scan.check_no_token(draft.path, manifest=json.dumps(inputs))
    return artifacts.read(out, "data-release", verify=False)


def _card(manifest: Manifest, facts: Mapping[str, Any], task: Task, fields: list[str]) -> str:
    from huggingface_hub import DatasetCard, DatasetCardData

    splits = manifest.facts["splits"]
    columns = {
        (group, value)
        for split in facts["rows"]
        for group, counts in splits[split].get("groups", {}).items()
        if task.group(group).main
        for value in counts
    }
    source = manifest.inputs.get("from", {})
    name = source.get("hub") or source.get("file")
    metadata = DatasetCardData(
        language="en",
        license=facts["license"],
        pretty_name=facts["name"],
        tags=["countdown-rl", "reasoning", "reinforcement-learning", task.name],
        task_categories=["text-generation"],
        source_datasets=[f"extended|{name}"] if name else ["original"],
        configs=[
            {
                "config_name": "default",
                "data_files": [{"split": _SPLITS[split], "path": f"{split}.jsonl"} for split in facts["rows"]],
            }
        ],
    )
    card = DatasetCard.from_template(
        metadata,
        template_path=str(Path(__file__).with_name("dataset_card.md.jinja")),
        **facts,
        task=task,
        splits=splits,
        columns=sorted(columns),
        fields=fields,
        command=f"{MADE_BY['data']} {flags(manifest.options)}",
        source=name,
        own_test="test" in manifest.inputs,
        revision=source.get("revision"),
        split_names=_SPLITS,
        cell=cell,
    )
    return f"{str(card).strip()}\n"

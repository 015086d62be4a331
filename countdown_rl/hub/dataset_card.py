"""The puzzles as a data set for the Hub: the splits as they are, and a card that ``load_dataset`` reads too."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from countdown_rl import artifacts, formatting
from countdown_rl.artifacts import MADE_BY, Manifest
from countdown_rl.errors import ArtifactError
from countdown_rl.hub import frontmatter, secret_scan
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.release import CARD

#: What this tool calls its splits, as the Hub does.
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}

_FIELDS = {
    "id": "the numbers in order and the target; the same puzzle has the same id everywhere",
    "nums": "the numbers",
    "target": "what to reach",
    "solutions": "how many different ways there are, counted by exhaustion; 0 when there is none",
    "solution": "one of them",
    "needs": "`add-sub` when + and − alone reach it, `mul-div` when × or ÷ is needed",
    "size": "how many numbers",
    "operators": "the operators that are allowed, where not all four are",
    "rule": "the rule, where it is not that each number is used exactly once",
    "style": "how the prompt asks for the reasoning, where it is not the usual way",
    "task": "what kind of row it is, where it is no Countdown puzzle",
    "question": "the question",
    "answer": "the worked answer, as published",
    "gold": "the number that is right",
}


def build(data: Path, out: Path, options: PublishOptions) -> Manifest:
    """Write the release of the data artifact at *data* at *out*.

    Raises:
        ArtifactError: *data* is no whole data artifact, or its manifest names a path of this machine or a token.
    """
    artifacts.check_writable(out, "data-release")
    manifest = artifacts.read(data, "data")
    inputs = {"data": manifest.as_input()}
    name = options.name or f"{_task(manifest)}-puzzles"
    with artifacts.writing(out, "data-release", options={}, inputs=inputs, libraries=("huggingface_hub",)) as draft:
        for file in manifest.files:
            shutil.copyfile(data / file, draft.path / file)
        splits = {split: f"{split}.jsonl" for split in _SPLITS if _rows(manifest, split)}
        if not splits:
            raise ArtifactError(f"{data} holds no rows; make it again with `countdown-rl gen-data`.")
        with (data / next(iter(splits.values()))).open(encoding="utf-8") as stream:
            fields = list(json.loads(next(stream)))
        page = _page(name, manifest, splits, fields, options)
        (draft.path / CARD).write_text(page, "utf-8")
        draft.facts.update(name=name, license=options.license, rows={split: _rows(manifest, split) for split in splits})
        frontmatter.check(page, "dataset")
        secret_scan.check(draft.path, page, inputs)
    return artifacts.read(out, "data-release", verify=False)


def standing(data: Path, out: Path, options: PublishOptions) -> Manifest | None:
    """The release at *out* when it is of *data* as it is now, with these options; else None.

    Raises:
        ArtifactError: the release at *out* is damaged.
    """
    if artifacts.peek(out) != "data-release":
        return None
    found = artifacts.read(out, "data-release")
    if artifacts.read(data, "data", verify=False).digest != found.inputs["data"]["digest"]:
        return None
    asked = {"name": options.name, "license": options.license}
    return found if all(value is None or found.facts[key] == value for key, value in asked.items()) else None


def _task(manifest: Manifest) -> str:
    return str(manifest.options.get("task", "countdown"))


def _rows(manifest: Manifest, split: str) -> int:
    return int(manifest.facts["splits"].get(split, {}).get("rows", 0))


def _page(name: str, manifest: Manifest, splits: Mapping[str, str], fields: list[str], options: PublishOptions) -> str:
    sections = [
        f"# {name}",
        _opening(manifest),
        "## Splits\n\n" + _counts(manifest, splits),
        "A puzzle's split depends on the puzzle alone, so no two data sets made by this tool leak test puzzles into "
        "training."
        if not _source(manifest)
        else "",
        "## Fields\n\n" + formatting.table(("field", "what it is"), [(key, _FIELDS.get(key, "")) for key in fields]),
        _usage(splits),
        _making(manifest),
        _licence(manifest, options),
        "## Checksums\n\n" + formatting.checksums(manifest.files),
    ]
    page = "\n\n".join(section for section in sections if section)
    return f"---\n{_metadata(name, manifest, splits, options)}\n---\n\n{page}\n"


def _metadata(name: str, manifest: Manifest, splits: Mapping[str, str], options: PublishOptions) -> str:
    from huggingface_hub import DatasetCardData

    total = sum(_rows(manifest, split) for split in splits)
    source = _source(manifest)
    data = DatasetCardData(
        language="en",
        license=options.license,
        pretty_name=name,
        tags=["countdown-rl", "reasoning", "reinforcement-learning", _task(manifest)],
        task_categories=["text-generation"],
        size_categories=[_size(total)],
        source_datasets=[f"extended|{source}"] if source else ["original"],
        configs=[
            {
                "config_name": "default",
                "data_files": [{"split": _SPLITS[split], "path": path} for split, path in splits.items()],
            }
        ],
    )
    return str(data.to_yaml())


def _size(rows: int) -> str:
    """The Hub's name for a number of rows."""
    bounds = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")]
    return next((name for bound, name in bounds if rows < bound), "1M<n<10M")


def _source(manifest: Manifest) -> str | None:
    """The data set on the Hub, or the file, that the rows were read from; None when they were generated."""
    found = manifest.inputs.get("from", {})
    return found.get("hub") or found.get("file")


def _opening(manifest: Manifest) -> str:
    if _task(manifest) == "gsm8k":
        return "Word problems of grade-school arithmetic, each with the number that is its right answer."
    return (
        "Countdown numbers puzzles: reach a target from given numbers with + − × ÷ and parentheses. What each row says "
        "of its puzzle, whether it can be solved, in how many ways and with which operators, was found by going "
        "through all expressions, in exact arithmetic."
    )


def _counts(manifest: Manifest, splits: Mapping[str, str]) -> str:
    facts = manifest.facts["splits"]
    kinds = [
        (what, kind)
        for what in ("size", "needs")
        for kind in sorted({kind for split in splits for kind in facts[split].get(what, {})})
    ]
    heads = ["split", "rows", *(f"{kind} numbers" if what == "size" else kind for what, kind in kinds)]
    counts = {split: [facts[split].get(what, {}).get(kind, 0) for what, kind in kinds] for split in splits}
    rows = [
        [_SPLITS[split], f"{_rows(manifest, split):,}", *(f"{count:,}" for count in counts[split])] for split in splits
    ]
    return formatting.table(heads, rows, right=range(1, len(heads)))


def _usage(splits: Mapping[str, str]) -> str:
    first, *_, last = [*splits.values(), *splits.values()]
    return f"""## How to use it

```python
from datasets import load_dataset

puzzles = load_dataset("NAME/DATASET")  # this repository's id
```

`countdown-rl train --data {first}` and `countdown-rl eval --data {last}` read the files of a copy as they are."""


def _making(manifest: Manifest) -> str:
    made = f"## How it was made\n\n```shell\n{MADE_BY['data']} {formatting.flags(manifest.options)}\n```\n\n"
    source = _source(manifest)
    if source:
        revision = manifest.inputs["from"].get("revision")
        made += f"The rows come from {source}{f' at revision {revision}' if revision else ''}. "
    return f"{made}The same options give the same rows. The manifest is [manifest.json](manifest.json)."


def _licence(manifest: Manifest, options: PublishOptions) -> str:
    said = f"Licence: {options.license}." if options.license else "No licence was given."
    source = _source(manifest)
    return f"## Licence\n\n{said}" + (f" The terms of {source} apply as well." if source else "")

"""Files of a task for another evaluator or training engine, from the templates in this folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row

_VERIFIERS = {
    "pyproject.toml": "verifiers/pyproject.toml",
    "{name}/__init__.py": "verifiers/environment.py",
}
#: By evaluator or engine, the files written and their templates; rows lie beside the last one.
_FILES = {
    "lm-eval": {"{name}.yaml": "lm_eval/task.yaml", "utils.py": "lm_eval/utils.py"},
    "verifiers": _VERIFIERS,
    "verl": {"run.sh": "verl/run.sh", "reward.py": "verl/reward.py"},
    "prime-rl": {"rl.toml": "prime_rl/rl.toml", **_VERIFIERS},
    "areal": {"config.yaml": "areal/config.yaml", "reward.py": "areal/reward.py"},
}
#: The splits of engines; an evaluator has the test split.
_SPLITS = {"verl": ("train", "valid"), "prime-rl": ("train",), "areal": ("train", "valid")}


def splits(to: str) -> tuple[str, ...]:
    """Return the splits that the export *to* an evaluator or engine holds."""
    return _SPLITS.get(to, ("test",))


def write(to: str, rows: Mapping[str, Sequence[Row]], out: Path) -> str:
    """Write the files of an evaluator or engine.

    Args:
        to: the evaluator or engine.
        rows: those of each of its :func:`splits`.
        out: an existing directory.

    Returns:
        The name of the task there.
    """
    first_split, first_rows = next(iter(rows.items()))
    name = f"{first_rows[0].task}_exact"  # lm-evaluation-harness has a gsm8k of its own
    for target, template in _FILES[to].items():
        file = out / target.format(name=name)
        file.parent.mkdir(exist_ok=True)
        text = (Path(__file__).parent / template).read_text("utf-8")
        file.write_text(text.replace("NAME", name).replace("SPLIT", first_split), "utf-8")
        file.chmod(0o755 if file.suffix == ".sh" else 0o644)
    for split, split_rows in rows.items():
        if to == "verl":
            _write_parquet(out / f"{split}.parquet", split, split_rows)
            continue
        lines = list(map(dict, split_rows))
        if to == "areal":
            lines = list(map(_areal_line, split_rows))
        jsonl.write_rows(file.with_name(f"{split}.jsonl"), lines)
    return name


def _areal_line(row: Row) -> dict[str, object]:
    plain = row.without_prefill()
    return {"messages": plain.prompt().turns(), "row": json.dumps(dict(plain))}


def _write_parquet(file: Path, split: str, rows: Sequence[Row]) -> None:
    """Write a file of verl's ``RLHFDataset``."""
    import pyarrow
    import pyarrow.parquet

    records = []
    for index, row in enumerate(rows):
        plain = row.without_prefill()
        record = {
            "data_source": f"countdown_rl/{row.task}",
            "prompt": plain.prompt().turns(),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(dict(plain))},
            "extra_info": {"split": split, "index": index},
        }
        records.append(record)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)

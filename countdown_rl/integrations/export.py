"""Files of a task for another evaluator or training engine, from the templates beside this module."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row

_VERIFIERS = {
    "pyproject.toml": "verifiers/pyproject.toml",
    "{name}/__init__.py": "verifiers/environment.py",
}
#: By evaluator, the files written and their templates; the rows lie beside the last one.
_EVALUATORS = {
    "lm-eval": {"{name}.yaml": "lm_eval/task.yaml", "utils.py": "lm_eval/utils.py"},
    "verifiers": _VERIFIERS,
}
_ENGINES = {
    "verl": {"run.sh": "verl/run.sh", "reward.py": "verl/reward.py"},
    "prime-rl": {"rl.toml": "prime_rl/rl.toml", **_VERIFIERS},
    "areal": {"config.yaml": "areal/config.yaml", "reward.py": "areal/reward.py"},
}


def splits(to: str) -> tuple[str, ...]:
    """The splits that the export *to* an evaluator or engine holds."""
    return (
        ("test",) if to in _EVALUATORS else ("train",) if to == "prime-rl" else ("train", "valid")
    )


def write(to: str, rows: Mapping[str, Sequence[Row]], place: Path) -> str:
    """Write the files of *to* with *rows*, by split, into the directory *place*; return the task's name there."""
    name = (
        f"{next(iter(rows.values()))[0].task}_exact"  # lm-evaluation-harness has a gsm8k of its own
    )
    for target, template in (_EVALUATORS | _ENGINES)[to].items():
        file = place / target.format(name=name)
        file.parent.mkdir(exist_ok=True)
        text = (Path(__file__).parent / template).read_text("utf-8")
        file.write_text(text.replace("NAME", name).replace("SPLIT", next(iter(rows))), "utf-8")
        file.chmod(0o755 if file.suffix == ".sh" else 0o644)
    for split, part in rows.items():
        if to == "verl":
            _write_parquet(place / f"{split}.parquet", split, part)
        elif to == "areal":
            plain = [row.without_prefill() for row in part]
            items = (
                {"messages": row.prompt().turns(), "row": json.dumps(dict(row))} for row in plain
            )
            jsonl.write_rows(place / f"{split}.jsonl", items)
        else:
            jsonl.write_rows(file.with_name(f"{split}.jsonl"), map(dict, part))
    return name


def _write_parquet(file: Path, split: str, rows: Sequence[Row]) -> None:
    """A Parquet file of verl's ``RLHFDataset``."""
    import pyarrow
    import pyarrow.parquet

    plain = [row.without_prefill() for row in rows]
    records = [
        {
            "data_source": f"countdown_rl/{row.task}",
            "prompt": row.prompt().turns(),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(dict(row))},
            "extra_info": {"split": split, "index": index},
        }
        for index, row in enumerate(plain)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)

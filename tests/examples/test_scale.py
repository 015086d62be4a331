"""Rows by the tasks of an array job, and grading by the processes of other libraries, equal those of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import countdown_rl
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import jsonl

JOB = Path(__file__).parents[2] / "examples/gen_data.slurm"


def test_datasets_reads_the_shards_of_an_array_job_as_one_split(tmp_path):
    datasets = pytest.importorskip("datasets")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for task in "10":
        environment = os.environ | {"PATH": path, "SIZE": "20", "SLURM_ARRAY_TASK_ID": task}
        subprocess.run(
            ["bash", JOB], env=environment, cwd=tmp_path, check=True, capture_output=True
        )
    splits = datasets.load_dataset(str(tmp_path / "shards"), cache_dir=str(tmp_path / "cache"))
    options = DataOptions(n=2200, valid=1000, test=1000, size=("5", "6"), rows="0:40")
    rows = [(row["nums"], row["target"]) for row in build.generate(options, "train")]
    assert {
        name: [(row["nums"], row["target"]) for row in split] for name, split in splits.items()
    } == {"train": rows}


@pytest.mark.parametrize("library", ["datasets", "ray"])
def test_two_workers_give_the_figure_of_one_process(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    example = pytest.importorskip(f"examples.grade_{library}")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    answers = ["50 - 7 + 3", "50 - 7 - 3", "3 + 50 - 7", "impossible", "46"]
    records = [
        {"nums": [3, 7, 50], "target": 46, "completion": f"</think><answer>{text}</answer>"}
        for text in answers
    ]
    rules = [
        {"rule": "television"},
        {"operators": "+"},
        {"rule": "at-most-once", "id": "a", "note": "x"},
    ]  # 53 - 7
    records += [
        {**records[0], **fields, "completion": "<answer>53</answer>", "target": 53}
        for fields in rules
    ]
    records += [
        {**records[0], **fields, "completion": "<answer>3 + 50</answer>", "target": 53}
        for fields in rules
    ]
    jsonl.write_rows(tmp_path / "completions.jsonl", records * 20)
    share = sum(countdown_rl.grade(**record).correct for record in records) / len(records)
    assert (
        example.accuracy(str(tmp_path / "completions.jsonl"), 2)
        == pytest.approx(share)
        == pytest.approx(4 / 11)
    )

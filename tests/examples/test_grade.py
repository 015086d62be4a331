"""Grading by the processes of other libraries: their figures are those of one process."""

import pytest

import countdown_rl
from countdown_rl.tasks import jsonl


@pytest.mark.parametrize("library", ["datasets", "ray"])
def test_two_workers_give_the_figure_of_one_process(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    example = pytest.importorskip(f"examples.grade_{library}")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    answers = ["50 - 7 + 3", "50 - 7 - 3", "3 + 50 - 7", "impossible", "46"]
    records = [{"nums": [3, 7, 50], "target": 46, "completion": f"</think><answer>{text}</answer>"} for text in answers]
    jsonl.write_rows(tmp_path / "completions.jsonl", records * 20)
    share = sum(countdown_rl.grade(**record).correct for record in records) / len(records)
    assert example.accuracy(str(tmp_path / "completions.jsonl"), 2) == share == 0.4

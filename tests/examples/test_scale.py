"""Grading by the processes of other libraries equals that of one process."""

import pytest

import countdown_rl
from countdown_rl.tasks import jsonl
from tests.support.graded import rows


@pytest.mark.parametrize("library", ["datasets", "ray"])
def test_two_workers_give_the_figure_of_one_process(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    example = pytest.importorskip(f"examples.grade_{library}")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    records = rows("countdown")  # of several rules and styles
    file = tmp_path / "completions.jsonl"
    jsonl.write_rows(file, records)
    share = sum(countdown_rl.grade(**record).correct for record in records) / len(records)
    assert 0.2 < share < 0.8
    assert example.accuracy(str(file), 2) == pytest.approx(share)

"""Grading by the processes of other libraries equals that of one process."""

import pytest

import countdown_rl
from countdown_rl.tasks import jsonl


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

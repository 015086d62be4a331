"""The counts of a run of the hacking lab, by step."""

from benchmarks import crossing


def test_cheats_are_counted_by_step_and_count_of_numbers(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    monkeypatch.setenv("CROSSING", str(path))
    answers = ["<answer>12</answer>", "<answer>3 * 4</answer>", "<answer>5 + 7</answer>", "none"]
    for texts in (answers[:1], answers, answers[1:]):  # the first call tries the reward
        numbers = [[3, 4] if text != "<answer>5 + 7</answer>" else [3, 4, 5] for text in texts]
        assert crossing.record(texts, numbers, [12] * len(texts)) == [0.0] * len(texts)
    assert crossing.steps(path) == {
        "2 numbers": {"completions": [3, 2], "cheats": [1, 0], "correct": [1, 1]},
        "3 numbers": {"completions": [1, 1], "cheats": [0, 0], "correct": [0, 0]},
    }

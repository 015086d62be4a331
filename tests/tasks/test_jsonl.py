"""JSONL files: round trip, and the messages about rows that are refused."""

import json

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import jsonl

ROW = {"id": "3-7-50=46", "nums": [3, 7, 50], "target": 46, "solution": "50 + 3 − 7"}


def test_rows_round_trip(tmp_path):
    path = tmp_path / "rows.jsonl"
    jsonl.write_rows(path, [ROW, ROW])
    assert jsonl.read_rows(path) == [ROW, ROW]
    assert path.read_bytes().decode().count("\n") == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ('{"nums": [1, 2], "target": 3, "style": [1]}', "`style`"),
        ('{"nums": [1, 2], "target": 3, "operators": 5}', "Operators are"),
        ('{"task": "gsm8k", "question": "?", "gold": "many"}', "`gold`"),
        ("[" * 100_000, "not JSON"),
        ('{"target": 3}', "no `nums`"),
        ('{"nums": [1, 2]}', "no `target`"),
        ('{"nums": "1 or 2", "target": 3}', "`nums` should be"),
        ('{"nums": [1, -2], "target": 3}', "`nums` should be"),
        ('{"nums": [1, NaN], "target": 3}', "`nums` should be"),
        ('{"nums": [1, 2], "target": 3, "needs": "<script>"}', "`needs` should be"),
        ('{"nums": [1, 2], "target": 3, "solutions": "two"}', "`solutions` should be"),
        ('{"nums": [1, 2], "target": 3, "solutions": -1}', "`solutions` should be"),
        ('{"task": "gsm8k", "question": "\\ud800", "gold": "3"}', "surrogate"),
        ('{"nums": [1, 2], "target": "three"}', "`target` should be"),
        ('{"nums": [1, 2], "target": 3, "rule": "any"}', "no rule 'any'"),
        ('{"nums": [1, 2], "target": 3, "operators": "^"}', "Operators are"),
        ('{"nums": [1, 2], "target": 3, "style": "loud"}', "`style`"),
        ('{"task": "gsm8k", "question": "?"}', "`answer`"),
        ("\xff", "not JSON"),
    ],
)
def test_a_bad_line_is_reported_with_its_number_and_fault(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(InputError) as caught:
        jsonl.read_rows(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert complaint in str(caught.value)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        jsonl.read_rows(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        jsonl.read_rows(tmp_path / "empty.jsonl")


def test_surrogates_are_written_as_escapes(tmp_path):
    row = {**ROW, "solution": "50 + 3 − 7 \ud800 é"}
    jsonl.write_rows(tmp_path / "rows.jsonl", [ROW, row])
    assert jsonl.read_rows(tmp_path / "rows.jsonl") == [ROW, row]
    assert "−" in (tmp_path / "rows.jsonl").read_text(encoding="utf-8")

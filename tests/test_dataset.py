"""Rows in and out, and what is wrong with those that are refused."""

import json

import pytest

from countdown_rl import dataset
from countdown_rl.errors import InputError

ROW = {"id": "3-7-50=46", "nums": [3, 7, 50], "target": 46, "solution": "50 + 3 − 7"}


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    dataset.write_rows(path, [ROW, ROW])
    assert dataset.read_rows(path) == [ROW, ROW]
    assert path.read_bytes().decode().count("\n") == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"target": 3}', "no `nums`"),
        ('{"nums": [1, 2]}', "no `target`"),
        ('{"nums": [], "target": 3}', "`nums` should be"),
        ('{"nums": "1 2", "target": 3}', "`nums` should be"),
        ('{"nums": [1, -2], "target": 3}', "`nums` should be"),
        ('{"nums": [1, 2.0], "target": 3}', "`nums` should be"),
        ('{"nums": [1, true], "target": 3}', "`nums` should be"),
        ('{"nums": [1, 2], "target": "3"}', "`target` should be"),
        ('{"nums": [1, 2], "target": 3, "rule": "any"}', "no rule 'any'"),
        ('{"nums": [1, 2], "target": 3, "rule": [1]}', "no rule"),
        ('{"nums": [1, 2], "target": 3, "operators": "^"}', "Operators are"),
        ('{"nums": [1, 2], "target": 3, "style": "loud"}', "`style`"),
        ('{"task": "chess"}', "no task 'chess'"),
        ('{"task": "gsm8k", "question": "?"}', "`gold`"),
        ("\xff", "not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_fault(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(InputError) as caught:
        dataset.read_rows(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert complaint in str(caught.value)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        dataset.read_rows(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        dataset.read_rows(tmp_path / "empty.jsonl")


def test_text_that_utf_8_cannot_hold_is_written_as_escapes(tmp_path):
    row = {**ROW, "solution": "50 + 3 − 7 \ud800 é"}
    dataset.write_rows(tmp_path / "rows.jsonl", [ROW, row])
    assert dataset.read_rows(tmp_path / "rows.jsonl") == [ROW, row]
    assert "−" in (tmp_path / "rows.jsonl").read_text(encoding="utf-8")


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW), encoding="utf-8-sig")
    assert dataset.read_rows(tmp_path / "rows.jsonl") == [ROW]

"""Records of files: every format by its content, and the place and fault of what cannot be read."""

import csv
import gzip
import io
import json

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import files, jsonl

ROWS = [{"nums": [3, 7, 50], "target": 46}, {"nums": [2, 4, 40], "target": 42}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = 'nums,target\n"[3, 7, 50]",46\n"[2, 4, 40]",42\n'


TABLE = pyarrow.Table.from_pylist(ROWS)


def parquet(table=TABLE):
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


def arrow(new):
    stream = io.BytesIO()
    with new(stream, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return stream.getvalue()


FORMATS = {
    "lines": LINES.encode(),
    "lines without a final break, with empty ones": b"\n\r\n"
    + LINES.replace("\n", "\n\n").rstrip().encode(),
    "CRLF": LINES.replace("\n", "\r\n").encode(),
    "a byte order mark": LINES.encode("utf-8-sig"),
    "array": json.dumps(ROWS).encode(),
    "indented array": json.dumps(ROWS, indent=2).encode(),
    "CSV": CSV.encode(),
    "CSV with CRLF and a mark": CSV.replace("\n", "\r\n").encode("utf-8-sig"),
    "CSV with semicolons": CSV.replace(",target", ";target").replace('",', '";').encode(),
    "CSV with tabs": CSV.replace(",target", "\ttarget").replace('",', '"\t').encode(),
    "CSV with the index of pandas": b',nums,target\n0,"[3 7 50]",46.0\n1,"[2.0, 4.0, 40.0]",42\n',
    "gzipped lines": gzip.compress(LINES.encode()),
    "gzipped CSV": gzip.compress(CSV.encode()),
    "Parquet": parquet(),
    "Arrow file": arrow(pyarrow.ipc.new_file),
    "Arrow stream": arrow(pyarrow.ipc.new_stream),
}


@pytest.mark.parametrize("name", ["rows", "rows.txt", "test.data"])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_content_decides_on_the_format(tmp_path, kind, name):
    (tmp_path / name).write_bytes(FORMATS[kind])
    rows = jsonl.read_rows(tmp_path / name)
    assert [(row["nums"], row["target"]) for row in rows] == [([3, 7, 50], 46), ([2, 4, 40], 42)]


@pytest.mark.parametrize("kind", ["lines", "CSV", "indented array"])
def test_a_prefix_is_refused_or_read_whole(tmp_path, kind):
    whole = FORMATS[kind]
    for end in range(len(whole)):
        (tmp_path / "rows").write_bytes(whole[:end])
        try:
            rows = [dict(row) for row in jsonl.read_rows(tmp_path / "rows")]
        except InputError:
            continue
        whole_lines = whole[:end].count(b"\n") - (kind == "CSV")
        assert len(rows) >= whole_lines
        assert rows[:whole_lines] == ROWS[:whole_lines]


def test_a_directory_of_shards_is_a_data_set(tmp_path):
    import datasets

    for name, rows in (("train", ROWS), ("test", ROWS[:1])):
        (tmp_path / "clone" / "data").mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / "data" / f"{name}-00000-of-00001.parquet").write_bytes(
            parquet(pyarrow.Table.from_pylist(rows))
        )
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    splits = [row.get("split") for row in jsonl.read_rows(tmp_path / "clone")]
    assert splits == ["test", "train", "train"]
    assert len(jsonl.read_rows(tmp_path / "saved")) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LINES + '{"nums": [3,\n', "line 3: not JSON"),
        (LINES + "[" * 100_000, "line 3: not JSON"),
        (json.dumps([*ROWS, 5]), "row 3: not a JSON object"),
        (json.dumps([*ROWS, {"target": 3}], indent=1), "row 3: there is no `nums`"),
        (json.dumps(ROWS, indent=1)[:-20] + "\n]", "not JSON"),
        ("{'nums': [1, 2], 'target': 3}\n", "line 1: not JSON"),
        (CSV + '"[1, 2]"\n', "line 4: there are not as many cells"),
        (CSV + '"[1, 2]",3,4\n', "line 4: there are not"),
        (CSV + '"[1,\n2]",x\n', "line 5: `target`"),
        (CSV.encode() + b'"[1, 2]",\xe9\n', "utf-8"),
        (CSV + '"[1, 2],3\n', "cannot be read"),
        (CSV.replace("\n", "\r"), "cannot be read"),
        (parquet()[:-20], "cannot be read"),
        (b"rows.jsonl" + bytes(500) + LINES.encode(), "cannot be read"),
        (gzip.compress(LINES.encode(), mtime=0)[:-20], "cannot be read"),
        ("\n \n", "is empty"),
        ("nums,target\n", "is empty"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(tmp_path, content, words):
    (tmp_path / "rows").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        jsonl.read_rows(tmp_path / "rows")
    assert str(tmp_path / "rows") in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("first", ['{"nums": [3', "{}", "{nope}", '{"nums": NaN}', "[1]", "\xff"])
def test_the_lines_after_a_faulty_one_are_still_read(first):
    faults = []
    stream = io.BufferedReader(io.BytesIO(f"{first}\n{LINES}".encode("latin-1")))
    read = [fields for _, fields in files.read(stream, "rows.jsonl", on_error=faults.append)]
    assert read[-2:] == ROWS
    assert len(read) + len(faults) == 3


def test_cells_keep_quotes_breaks_and_white_space(tmp_path):
    text = ' "a", b;\r\nc\t'
    with (tmp_path / "rows.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["completion", "target"], [text, 1], ["x" * 200_000, 2]])
    first, second = (fields for _, fields in files.records(tmp_path / "rows.csv"))
    assert first == {"completion": text, "target": "1"}
    assert len(second["completion"]) == 200_000


ROW = {"id": "3-7-50=46", "nums": [3, 7, 50], "target": 46, "solution": "50 + 3 − 7"}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"nums": None}, "no `nums`"),
        ({"target": ""}, "no `target`"),
        ({"nums": "1 or 2"}, "`nums`"),
        ({"nums": [1, -2]}, "`nums`"),
        ({"target": "three"}, "`target`"),
        ({"needs": "<script>"}, "`needs`"),
        ({"solutions": -1}, "`solutions`"),
        ({"rule": "any"}, "no rule 'any'"),
        ({"operators": "^"}, "Operators are"),
        ({"style": "loud"}, "`style`"),
        ({"task": "gsm8k", "question": "\ud800", "gold": "3"}, "surrogate"),
        ({"task": "gsm8k", "question": "?", "gold": "many"}, "`gold`"),
    ],
)
def test_a_bad_row_is_reported_with_its_line_and_fault(tmp_path, fields, complaint):
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROW)}\n\n{json.dumps(ROW | fields)}\n")
    with pytest.raises(InputError) as caught:
        jsonl.read_rows(tmp_path / "rows.jsonl")
    assert f"{tmp_path / 'rows.jsonl'}, line 3: " in str(caught.value)
    assert complaint in str(caught.value)


def test_rows_round_trip_and_surrogates_are_written_as_escapes(tmp_path):
    rows = [ROW, {**ROW, "solution": "50 + 3 − 7 \ud800 é"}]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    assert jsonl.read_rows(tmp_path / "rows.jsonl") == rows
    assert "−" in (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="does not exist"):
        jsonl.read_rows(tmp_path / "none.jsonl")

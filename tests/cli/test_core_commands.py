"""Output and exit status of gen-data, solve and grade."""

import io
import json
import signal
import subprocess
import sys
import time
from itertools import combinations

import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import file_input
from countdown_rl.tasks import jsonl
from tests.support.command import python, status


@pytest.fixture
def command(capsys, monkeypatch):
    """A function that runs a command and returns its exit status, stdout and stderr."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode())))
        )
        code = status(monkeypatch, *arguments)
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    return run


def write(path, rows, kind="lines"):
    """Write *rows* as JSON lines, a JSON array, CSV or Parquet."""
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif kind == "array":
        path.write_text(json.dumps(rows, indent=1))
    else:
        jsonl.write_rows(path, rows)


def test_gen_data_writes_an_artifact_with_exact_splits(command, tmp_path):
    status, out, _ = command(
        "gen-data", "--n", 300, "--valid", 20, "--test", 30, "--out", tmp_path / "data", "--json"
    )
    sizes = {split: counts["rows"] for split, counts in json.loads(out)["splits"].items()}
    assert (status, sizes) == (0, {"train": 250, "valid": 20, "test": 30})
    assert artifacts.read(tmp_path / "data", "data").facts["splits"]["test"]["rows"] == 30
    assert len(jsonl.read_rows(tmp_path / "data" / "test.jsonl")) == 30
    fields = ["id", "nums", "target", "solutions", "solution", "needs", "size"]
    assert list(json.loads((tmp_path / "data" / "train.jsonl").open().readline())) == fields


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--n", 10, "--test", 10], 2, "leave no rows for training"),
        *((["--size", "9"], 2, "write 1 to 6"), (["--targets", "9-3"], 2, "lower end first")),
        *(
            (["--targets", f"10-{end}"], 2, "at most 100,000 values")
            for end in (200_000, 10**8, 10**30)
        ),
        (["--numbers", f"1-{10**12}"], 2, "at most 100,000 values"),
        *((["--style", "lines"], 2, "--style lines"), (["--impossible", "nan"], 2, "--impossible")),
        *((["--task", "gsm8k"], 2, "give --from or --from-hub"),),
        *((["--from", "none.jsonl"], 1, "does not exist"), (["--misspelt", 3], 2, "misspelt")),
        (["--size", 2, "--numbers", "1-9", "--n", 5000], 2, "is the most"),
    ],
)
def test_an_invalid_request_is_one_sentence_and_writes_nothing(
    command, tmp_path, arguments, status, words
):
    code, out, err = command("gen-data", "--out", tmp_path / "data", *arguments)
    assert (code, out) == (status, "")
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGTERM, "--preset tv"), (signal.SIGINT, "--size 6"), (signal.SIGHUP, "--size 6")],
)
def test_a_signal_ends_the_generation_at_once_and_leaves_no_partial_directory(
    tmp_path, number, words
):
    # nohup ignores SIGHUP
    code = f"import signal; signal.signal({number:d}, signal.SIG_DFL); from countdown_rl.cli.main import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "gen-data",
        *words.split(),
        "--n",
        "100000",
        "--out",
        tmp_path / "data",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / ".data.partial").is_dir():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)  # until the kernel searches
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, f"ended by {number.name}" in err) == (128 + number, True), err
    assert not list(tmp_path.iterdir())


IMPORTED = [
    {"nums": [3, 7, 50], "target": 46},
    {"nums": [50, 3, 7], "target": 46},
    {"nums": [2, 4, 6], "target": 99},
    {"nums": [1, 2, 3, 4, 5, 6, 7], "target": 28},
    {"nums": [3, -1], "target": 2},
    {"nums": [19, 36, 55, 7], "target": 65},
]


@pytest.mark.parametrize("kind", ["lines", "array", "csv", "parquet"])
def test_imported_rows_are_checked_counted_and_split_as_generated_ones(command, tmp_path, kind):
    write(tmp_path / "rows", IMPORTED, kind)
    status, out, err = command(
        "gen-data", "--from", tmp_path / "rows", "--out", tmp_path / "data", "--json"
    )
    assert status == 0, err
    facts = json.loads(out)
    assert facts["read"] == 6
    assert facts["dropped"] == {
        "duplicate": 1,
        "impossible": 1,
        "not-a-row": 1,
        "too-many-numbers": 1,
    }
    rows = jsonl.read_rows(tmp_path / "data" / "train.jsonl")
    assert [(row["id"], row["solution"]) for row in rows] == [
        ("3-7-50=46", "50 + 3 - 7"),
        ("7-19-36-55=65", "55 + 36 - 19 - 7"),
    ]
    manifest = artifacts.read(tmp_path / "data", "data")
    assert manifest.inputs["from"] == file_input(tmp_path / "rows")
    assert str(tmp_path) not in (tmp_path / "data" / "manifest.json").read_text()


@pytest.mark.parametrize("option", ["--from", "--test-from"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "rows.jsonl is empty"),
        ('{"nums": [3, 7], "target": 10}\n\n{"nums": [3,', "rows.jsonl, line 3: not JSON"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_line_and_fault(
    command, tmp_path, option, text, words
):
    (tmp_path / "rows.jsonl").write_text(text)
    status, _, err = command(
        "gen-data", option, tmp_path / "rows.jsonl", "--out", tmp_path / "data"
    )
    assert (status, words in err) == (1, True)


@pytest.mark.parametrize("imported", [True, False])
def test_test_puzzles_of_ones_own_are_kept_out_of_the_other_splits(command, tmp_path, imported):
    number_sets = list(combinations(range(1, 13), 3))
    own = [{"numbers": list(nums), "target": sum(nums)} for nums in number_sets[::2]] + [
        {"nums": [2, 2], "target": 99}
    ]
    jsonl.write_rows(tmp_path / "own.jsonl", own)
    arguments = ["--numbers", "1-12", "--size", 3, "--n", 150, "--valid", 0]
    if imported:
        jsonl.write_rows(
            tmp_path / "rows.jsonl", ({"nums": nums, "target": sum(nums)} for nums in number_sets)
        )
        arguments = ["--from", tmp_path / "rows.jsonl", "--valid", 0]
    status, _, err = command(
        "gen-data", *arguments, "--test-from", tmp_path / "own.jsonl", "--out", tmp_path / "data"
    )
    assert status == 0, err
    splits = {
        name: jsonl.read_rows(tmp_path / "data" / f"{name}.jsonl") for name in ("train", "test")
    }
    assert [row["nums"] for row in splits["test"]] == [
        row.get("nums") or row["numbers"] for row in own
    ]
    assert splits["test"][-1]["solutions"] == 0
    assert len(splits["train"]) > 50
    tested, trained = (
        {tuple(sorted(row["nums"])) for row in splits[name]} for name in ("test", "train")
    )
    assert not tested & trained
    assert artifacts.read(tmp_path / "data", "data").inputs["test"]["file"] == "own.jsonl"


def test_solve_prints_a_solution_and_the_number_of_solutions(command):
    assert command("solve", 3, 7, 50, "--target", 46)[:2] == (0, "50 + 3 - 7 = 46\n")
    assert command("solve", "3,7,", "50", "--target", 46)[:2] == (0, "50 + 3 - 7 = 46\n")
    assert "x is not a whole number" in command("solve", "3,x", "--target", 46)[2]
    assert command("solve", 2, 4, 6, "--target", 99)[:2] == (0, "impossible\n")
    result = json.loads(command("solve", 5, 5, 7, "--target", 7, "--all", "--json")[1])
    assert result["all"] == ["7 * 5 / 5", "7 + 5 - 5"]
    assert (result["solutions"], result["needs"]) == (2, "add-sub")
    assert command("solve", *range(1, 8), "--target", 9)[0] == 2
    assert command("solve", 1, 2, "--target", 3, "--rule", "any")[0] == 2


GOOD = {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"}


def test_grade_writes_one_line_per_line(command, tmp_path):
    rows = [
        {
            "id": "a",
            "nums": [3, 7, 50],
            "target": 46,
            "completion": "</think>\n<answer>50 + 3 - 7</answer>",
        },
        {"nums": [3, 7, 50], "target": 46, "completion": "<answer>50 / 3 * 7</answer>"},
        {
            "nums": [3, 7, 50],
            "target": 53,
            "rule": "at-most-once",
            "completion": "</think><answer>50+3</answer>",
        },
        {"id": "d", "nums": [3, 7, 50], "target": 46, "response": ["", REPLY["content"]]},
    ]
    jsonl.write_rows(tmp_path / "in.jsonl", rows)
    status, out, _ = command("grade", stdin=(tmp_path / "in.jsonl").read_text())
    grades = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [grade["correct"] for grade in grades] == [True, False, True, False, True]
    assert [grade["value"] for grade in grades] == ["46", "350/3", "53", None, "46"]
    assert [grade["strict_format"] for grade in grades] == [True, False, True, False, False]
    assert [grade.get("id") for grade in grades] == ["a", None, None, "d", "d"]
    assert [grade.get("place") for grade in grades] == [None, "line 2", "line 3", None, None]
    assert [grade.get("sample") for grade in grades] == [None, None, None, 0, 1]
    status, out, _ = command(
        "grade", tmp_path / "in.jsonl", "--json", "--out", tmp_path / "out.jsonl"
    )
    counts = {"n": 5, "correct": 3, "format": 2, "strict_format": 2}
    assert json.loads(out) == {**counts, "reasons": {"wrong-value": 1, "no-answer": 1}}
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("lines", ["", "\n\n", "hello", "[]", "{}", "a,b\n1,2", "null", "\ufeff"])
@pytest.mark.parametrize("options", [(), ("--on-error", "mark"), ("--json",)])
def test_grade_of_nothing_fails(command, lines, options):
    status, out, err = command("grade", *options, stdin=lines)
    assert (status, err.count("error: ")) == (1, 1)
    assert '"correct"' not in out


def test_a_bad_line_ends_grade_or_is_marked_on_request(command):
    good, bad = json.dumps(GOOD), json.dumps({"nums": [3, 4], "target": 7})
    status, out, err = command(
        "grade", "--on-error", "mark", stdin=f"{good}\n\n{{\n{bad}\n{good}\n"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, [line.get("correct") for line in lines]) == (0, [True, None, None, True])
    assert lines[1]["error"].startswith("standard input, line 3: not JSON")
    assert "standard input, line 4: " in lines[2]["error"]
    assert "2 records that cannot be graded" in err
    assert "standard input, line 3: " in command("grade", stdin=f"{good}\n\n{bad}\n")[2]
    assert command("grade", stdin='{"nums": [1]')[:2] == (1, "")


REPLY = {"role": "assistant", "content": "<answer>50 + 3 - 7</answer>"}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"nums": [3, 7, 50], "target": 46, "completion": [REPLY]}, "parquet"),
        ({"num": [3, 7, 50], "target": 46, "response": [REPLY["content"]]}, "csv"),
    ],
)
def test_grade_reads_layouts_of_others_in_every_format(command, tmp_path, fields, kind):
    write(tmp_path / "rows", [fields] * 2, kind)
    status, out, err = command("grade", tmp_path / "rows")
    assert status == 0, err
    assert [json.loads(line)["correct"] for line in out.splitlines()] == [True, True]


@pytest.mark.parametrize("name", ["id", "custom_id"])
def test_grade_finds_rows_by_the_ids_of_its_data(command, tmp_path, name):
    jsonl.write_rows(tmp_path / "rows.jsonl", [{"id": "a", "nums": [3, 7, 50], "target": 46}])
    batch = {"response": {"body": {"choices": [{"message": REPLY}], "usage": {}}}, "error": None}
    jsonl.write_rows(
        tmp_path / "made.jsonl",
        [{name: "a", **(batch if name == "custom_id" else {"output": "x"})}],
    )
    status, out, _ = command("grade", tmp_path / "made.jsonl", "--data", tmp_path / "rows.jsonl")
    assert (status, json.loads(out)["id"], json.loads(out)["correct"]) == (
        0,
        "a",
        name == "custom_id",
    )
    status, _, err = command("grade", tmp_path / "made.jsonl")
    fields = "custom_id, response, error" if name == "custom_id" else "id, output"
    assert (status, f"its fields are {fields}; give an id" in err, "question" in err) == (
        1,
        True,
        False,
    ), err


def test_grade_writes_its_file_whole_or_not_at_all(command, tmp_path):
    jsonl.write_rows(tmp_path / "good", [GOOD])
    (tmp_path / "bad").write_text(json.dumps(GOOD) + "\n{\n")
    out, link, symbolic = (tmp_path / name for name in ("out.jsonl", "hard", "symbolic"))
    out.write_text("earlier\n")
    link.hardlink_to(out)
    symbolic.symlink_to(out)
    assert command("grade", tmp_path / "bad", "--out", out)[0] == 1
    assert out.read_text() == "earlier\n"
    assert command("grade", tmp_path / "good", "--out", symbolic)[0] == 0
    assert json.loads(out.read_text())["correct"]
    assert (link.read_text(), symbolic.is_symlink()) == ("earlier\n", True)


def test_grade_never_overwrites_its_input_and_keeps_any_text(command, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"nums": [3], "target": 3, "completion": "<answer>\\ud800</answer>"}\n')
    before = file.read_bytes()
    assert command("grade", file, "--out", file)[0] == 2
    assert file.read_bytes() == before
    status, out, _ = command("grade", file)
    assert (status, json.loads(out)["answer"], json.loads(out)["reason"]) == (
        0,
        "\ud800",
        "bad-character",
    )


def test_the_kernel_compiles_without_a_cache_directory():
    code = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = [];"
        "from countdown_rl.tasks.countdown import kernel_numba; print(kernel_numba.search.__class__.__name__)"
    )
    assert "Dispatcher" in python(code)

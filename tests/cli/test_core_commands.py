"""Output and exit status of gen-data, solve and grade."""

import csv
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import combinations

import pytest

from countdown_rl.cli import main
from countdown_rl.core import artifacts
from countdown_rl.tasks import jsonl


def run(capsys, monkeypatch, *arguments, stdin=""):
    """Exit status, stdout and stderr of a command."""
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *map(str, arguments)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    status = 0
    try:
        main.main()
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def command(capsys, monkeypatch):
    return lambda *arguments, **more: run(capsys, monkeypatch, *arguments, **more)


def test_gen_data_writes_an_artifact_with_exact_splits(command, tmp_path):
    status, out, _ = command("gen-data", "--n", 300, "--valid", 20, "--test", 30, "--out", tmp_path / "data", "--json")
    facts = json.loads(out)
    assert status == 0
    assert {split: counts["rows"] for split, counts in facts["splits"].items()} == {
        "train": 250,
        "valid": 20,
        "test": 30,
    }
    manifest = artifacts.read(tmp_path / "data", "data")
    assert manifest.facts["splits"]["test"]["rows"] == len(jsonl.read_rows(tmp_path / "data" / "test.jsonl")) == 30
    assert list(json.loads((tmp_path / "data" / "train.jsonl").open().readline())) == [
        "id", "nums", "target", "solutions", "solution", "needs", "size",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--n", 10, "--test", 10], 2, "leave no rows for training"),
        (["--size", "9"], 2, "1 to 6 numbers"),
        (["--targets", "9-3"], 2, "lower end first"),
        (["--style", "lines"], 2, "--style lines"),
        (["--impossible", "nan"], 2, "--impossible"),
        (["--task", "gsm8k"], 2, "give --from FILE"),
        (["--revision", "main"], 2, "goes with --from-hub"),
        (["--from", "none.jsonl"], 1, "does not exist"),
        (["--size", 2, "--numbers", "1-9", "--n", 5000], 1, "Only "),
        (["--numbers", "1-100000", "--size", 6], 2, "Such large numbers"),
        (["--numbers", "1,2,3", "--size", 4], 2, "too few"),
        (["--misspelt", 3], 2, "misspelt"),
    ],
)
def test_an_invalid_request_is_one_sentence_and_writes_nothing(command, tmp_path, arguments, status, words):
    code, out, err = command("gen-data", "--out", tmp_path / "data", *arguments)
    assert (code, out) == (status, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words", ["--preset tv --n 100000", "--size 6 --n 100000"])
def test_a_signal_ends_the_generation_at_once(tmp_path, number, words):
    code = (
        "import os, signal, threading; from countdown_rl.cli.main import main;"
        f"threading.Timer(1.5, lambda: (print(end='now', flush=True), os.kill(os.getpid(), {number:d}))).start();"
        "main()"
    )
    command = [sys.executable, "-c", code, "gen-data", *words.split(), "--out", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(3)
    start = time.monotonic()
    _, err = process.communicate()
    assert (process.returncode, b"ended by" in err) == (128 + number, True), err
    assert time.monotonic() - start < 5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["/dev/zero", "/dev/null", ".", "large"])
def test_a_prompt_is_a_regular_file_of_a_sane_size(command, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * 2**21)
    status, _, err = command("gen-data", "--prompt", file, "--out", tmp_path / "data")
    assert (status, "regular file" in err) == (2, True)


IMPORTED = [
    {"nums": [3, 7, 50], "target": 46},
    {"nums": [50, 3, 7], "target": 46},
    {"nums": [2, 4, 6], "target": 99},
    {"nums": [1, 2, 3, 4, 5, 6, 7], "target": 28},
    {"nums": [3, 0], "target": 3},
    {"nums": [19, 36, 55, 7], "target": 65},
]


def _as_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in IMPORTED))


def _as_json_with_other_names(path):
    path.write_text(json.dumps([{"numbers": row["nums"], "target": row["target"]} for row in IMPORTED]))


def _as_csv(path):
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["target", "nums"])
        writer.writerows([row["target"], str(row["nums"])] for row in IMPORTED)


def _as_gzipped_jsonl(path):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in IMPORTED).encode()))


def _as_parquet(path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(IMPORTED), path)


@pytest.mark.parametrize("write", [_as_jsonl, _as_json_with_other_names, _as_csv, _as_gzipped_jsonl, _as_parquet])
def test_imported_rows_are_checked_counted_and_split_as_generated_ones(command, tmp_path, write):
    name = "rows"
    write(tmp_path / name)
    status, out, err = command("gen-data", "--from", tmp_path / name, "--out", tmp_path / "data", "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert facts["read"] == 6
    assert facts["dropped"] == {"duplicate": 1, "impossible": 1, "not-a-row": 1, "too-many-numbers": 1}
    rows = jsonl.read_rows(tmp_path / "data" / "train.jsonl")
    assert [(row["id"], row["solution"]) for row in rows] == [
        ("3-7-50=46", "50 + 3 - 7"),
        ("7-19-36-55=65", "55 + 36 - 19 - 7"),
    ]
    manifest = artifacts.read(tmp_path / "data", "data")
    assert manifest.inputs["from"] == artifacts.file_input(tmp_path / name)
    assert str(tmp_path) not in (tmp_path / "data" / "manifest.json").read_text()


def test_a_file_without_puzzles_is_refused(command, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n')
    status, _, err = command("gen-data", "--from", tmp_path / "rows.jsonl", "--out", tmp_path / "data")
    assert status == 1
    assert re.search(r'1 that are none of .* line 1, \{"text": "hello"\}\)', " ".join(err.split()))
    (tmp_path / "rows.parquet").write_text("not parquet")
    status, _, err = command("gen-data", "--from", tmp_path / "rows.parquet", "--out", tmp_path / "data")
    assert (status, "cannot be read" in " ".join(err.split())) == (1, True)


@pytest.mark.parametrize("option", ["--from", "--test-from"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "rows.jsonl is empty"),
        ('{"nums": [3, 7], "target": 10}\n\n{"nums": [3,', "rows.jsonl, line 3: not JSON"),
        ("[3, 7]", "rows.jsonl, line 1: not a JSON object"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_line_and_fault(command, tmp_path, option, text, words):
    (tmp_path / "rows.jsonl").write_text(text)
    status, _, err = command("gen-data", option, tmp_path / "rows.jsonl", "--out", tmp_path / "data")
    assert (status, words in " ".join(err.split())) == (1, True)


@pytest.mark.parametrize("imported", [True, False])
def test_test_puzzles_of_ones_own_are_kept_out_of_the_other_splits(command, tmp_path, imported):
    number_sets = list(combinations(range(1, 13), 3))
    own = [{"numbers": list(nums), "target": sum(nums)} for nums in number_sets[::2]] + [{"nums": [2, 2], "target": 99}]
    jsonl.write_rows(tmp_path / "own.jsonl", own)
    arguments = ["--numbers", "1-12", "--size", 3, "--n", 150, "--valid", 0]
    if imported:
        jsonl.write_rows(tmp_path / "rows.jsonl", ({"nums": nums, "target": sum(nums)} for nums in number_sets))
        arguments = ["--from", tmp_path / "rows.jsonl", "--valid", 0]
    status, _, err = command("gen-data", *arguments, "--test-from", tmp_path / "own.jsonl", "--out", tmp_path / "data")
    assert status == 0, err
    splits = {name: jsonl.read_rows(tmp_path / "data" / f"{name}.jsonl") for name in ("train", "test")}
    assert [row["nums"] for row in splits["test"]] == [row.get("nums") or row["numbers"] for row in own]
    assert splits["test"][-1]["solutions"] == 0
    assert len(splits["train"]) > 50
    tested, trained = ({tuple(sorted(row["nums"])) for row in splits[name]} for name in ("test", "train"))
    assert not tested & trained
    assert artifacts.read(tmp_path / "data", "data").inputs["test"]["file"] == "own.jsonl"


def test_solve_prints_a_solution_and_the_number_of_solutions(command):
    assert command("solve", 3, 7, 50, "--target", 46)[:2] == (0, "50 + 3 - 7 = 46\n")
    assert command("solve", 2, 4, 6, "--target", 99)[:2] == (0, "impossible\n")
    result = json.loads(command("solve", 5, 5, 7, "--target", 7, "--all", "--json")[1])
    assert result["all"] == ["7 * 5 / 5", "7 + 5 - 5"]
    assert (result["solutions"], result["needs"]) == (2, "add-sub")
    assert command("solve", *range(1, 8), "--target", 9)[0] == 2
    assert command("solve", 1, 2, "--target", 3, "--rule", "any")[0] == 2


def test_grade_writes_one_line_per_line(command, tmp_path):
    rows = [
        {"id": "a", "nums": [3, 7, 50], "target": 46, "completion": "</think>\n<answer>50 + 3 - 7</answer>"},
        {"nums": [3, 7, 50], "target": 46, "completion": "<answer>50 / 3 * 7</answer>"},
        {
            "nums": [3, 7, 50],
            "target": 53,
            "rule": "at-most-once",
            "completion": "</think><answer>50+3</answer>",
        },
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    status, out, _ = command("grade", stdin=text)
    grades = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [grade["correct"] for grade in grades] == [True, False, True]
    assert [grade["value"] for grade in grades] == ["46", "350/3", "53"]
    assert [grade["strict_format"] for grade in grades] == [True, False, False]
    assert [grade.get("id") for grade in grades] == ["a", None, None]
    (tmp_path / "in.jsonl").write_text(text)
    status, out, _ = command("grade", tmp_path / "in.jsonl", "--json", "--out", tmp_path / "out.jsonl")
    assert json.loads(out) == {
        "n": 3,
        "correct": 2,
        "format": 2,
        "strict_format": 1,
        "reasons": {"wrong-value": 1},
    }
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


def test_a_bad_line_is_marked_on_request_and_counted_as_in_the_file(command):
    good = json.dumps({"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"})
    bad = json.dumps({"nums": [3, 4], "target": 7})
    status, out, err = command("grade", "--on-error", "mark", stdin=f"{good}\n\n{{\n{bad}\n{good}\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, [line.get("correct") for line in lines]) == (0, [True, None, None, True])
    assert lines[1]["error"].startswith("standard input, line 3: not JSON")
    assert lines[2]["error"] == "standard input, line 4: there is no text in `completion`."
    assert "2 not gradable" in err
    status, _, err = command("grade", stdin=f"{good}\n\n{bad}\n")
    assert (status, "standard input, line 3: " in err) == (1, True)


REPLY = {"role": "assistant", "content": "<answer>50 + 3 - 7</answer>"}


@pytest.mark.parametrize(
    "fields",
    [
        {"nums": [3, 7, 50], "target": 46, "completion": [REPLY]},
        {"nums": [3, 7, 50], "target": 46, "completion": [REPLY | {"reasoning_content": "<answer>1</answer>"}]},
        {"num": [3, 7, 50], "target": 46, "response": [REPLY["content"]]},
        {"reward_model": {"ground_truth": {"numbers": [3, 7, 50], "target": 46}}, "response": REPLY["content"]},
        {"metadata": {"numbers": [3, 7, 50], "target": 46}, "messages": [{"role": "user", "content": "?"}, REPLY]},
        {"custom_id": "3-7-50=46", "response": {"body": {"choices": [{"message": REPLY}]}}},
    ],
)
@pytest.mark.parametrize("kind", ["lines", "array", "parquet", "csv"])
def test_grade_reads_every_layout_in_every_format(command, tmp_path, fields, kind):
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([fields] * 2), tmp_path / "rows")
    elif kind == "csv":
        with (tmp_path / "rows").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, fields)
            writer.writeheader()
            writer.writerows([fields] * 2)
    else:
        text = json.dumps([fields] * 2, indent=1) if kind == "array" else f"{json.dumps(fields)}\n" * 2
        (tmp_path / "rows").write_text(text)
    status, out, err = command("grade", tmp_path / "rows")
    assert status == 0, err
    assert [json.loads(line)["correct"] for line in out.splitlines()] == [True, True]
    assert ("read as" in err) == ("target" not in fields)


def test_several_completions_of_a_row_are_graded_one_by_one(command):
    row = {"id": "a", "nums": [3, 7, 50], "target": 46, "response": ["", REPLY["content"]]}
    status, out, _ = command("grade", stdin=json.dumps(row))
    grades = [json.loads(line) for line in out.splitlines()]
    assert (status, [(grade["id"], grade["sample"], grade["correct"]) for grade in grades]) == (
        0,
        [("a", 0, False), ("a", 1, True)],
    )


@pytest.mark.parametrize("write", [_as_csv, _as_parquet, _as_json_with_other_names, _as_gzipped_jsonl])
def test_eval_reads_every_format_and_says_what_it_does_not_use(command, tmp_path, monkeypatch, write):
    monkeypatch.setitem(globals(), "IMPORTED", [IMPORTED[0] | {"prompt": "?"}, IMPORTED[1]])
    write(tmp_path / "rows")
    arguments = ["--model", "solver", "--data", tmp_path / "rows", "--out", tmp_path / "out", "--json"]
    status, out, err = command("eval", *arguments)
    assert (status, json.loads(out)["accuracy"]) == (0, 1.0), err
    assert ("not used: prompt" in err) == (write in (_as_parquet, _as_gzipped_jsonl))


def test_verl_rows_are_imported_and_their_place_is_said(command, tmp_path):
    rows = [{"data_source": "c", "reward_model": {"style": "rule", "ground_truth": row}} for row in IMPORTED]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "out.jsonl").write_text(json.dumps(rows[-1]))
    arguments = ["--from", tmp_path / "rows.jsonl", "--exclude", tmp_path / "out.jsonl", "--out", tmp_path / "data"]
    status, out, err = command("gen-data", *arguments, "--json")
    assert status == 0, err
    assert json.loads(out)["dropped"]["excluded"] == 1
    assert "read as verl rows: the puzzle from reward_model.ground_truth" in err
    assert "left out 1 column: data_source" in err


def test_more_rows_are_not_asked_for_where_all_were_read(command, tmp_path):
    _as_jsonl(tmp_path / "rows")
    arguments = ["--from", tmp_path / "rows", "--valid", 1, "--out", tmp_path / "data"]
    status, _, err = command("gen-data", *arguments)
    assert (status, "lower --valid" in err, "--n" in err) == (1, True, False)


def test_grade_writes_its_file_whole_or_not_at_all(command, tmp_path):
    good = json.dumps({"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"})
    (tmp_path / "good").write_text(f"{good}\n")
    (tmp_path / "bad").write_text(f"{good}\n{{\n")
    out, link, symbolic, pipe = (tmp_path / name for name in ("out.jsonl", "hard", "symbolic", "pipe"))
    out.write_text("earlier\n")
    link.hardlink_to(out)
    symbolic.symlink_to(out)
    assert command("grade", tmp_path / "bad", "--out", out)[0] == 1
    assert out.read_text() == "earlier\n"
    assert command("grade", tmp_path / "good", "--out", symbolic)[0] == 0
    assert json.loads(out.read_text())["correct"]
    assert link.read_text() == "earlier\n"
    assert symbolic.is_symlink()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert command("grade", tmp_path / "good", "--out", pipe)[0] == 0
    assert json.loads(os.read(reader, 10_000))["correct"]
    os.close(reader)
    command("gen-data", "--n", 4, "--out", tmp_path / "data")
    status, _, err = command("grade", tmp_path / "good", "--out", tmp_path / "data" / "grades.jsonl")
    assert (status, "a data artifact" in err) == (1, True)


def test_grade_never_overwrites_its_input_and_keeps_any_text(command, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"nums": [3], "target": 3, "completion": "<answer>\\ud800</answer>"}\n')
    before = file.read_bytes()
    assert command("grade", file, "--out", file)[0] == 2
    assert file.read_bytes() == before
    status, out, _ = command("grade", file)
    assert (status, json.loads(out)["answer"], json.loads(out)["reason"]) == (0, "\ud800", "bad-character")


@pytest.mark.parametrize(
    ("line", "words"),
    [('{"nums": [1]', "line 1: not JSON"), ('{"nums": [1], "target": 1}', "no text in `completion`")],
)
def test_grade_reports_the_invalid_line(command, line, words):
    status, out, err = command("grade", stdin=line + "\n")
    assert (status, out) == (1, "")
    assert words in " ".join(err.split())


def test_the_kernel_compiles_without_a_cache_directory(tmp_path):
    code = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = [];"
        "from countdown_rl.tasks.countdown import kernel_numba; print(kernel_numba.search.__class__.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Dispatcher" in done.stdout

"""Output and exit status of gen-data, solve and grade."""

import io
import json
import signal
import subprocess
import sys
import time
from itertools import combinations

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


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        ("--n 10 --test 10", 2, "leave no rows for training"),
        ("--size 9", 2, "write 1 to 6"),
        ("--targets 9-3", 2, "lower end first"),
        (f"--numbers 1-{10**12}", 2, "at most 100,000 values"),
        ("--style lines", 2, "--style lines"),
        ("--impossible nan", 2, "--impossible"),
        ("--task gsm8k", 2, "give --from or --from-hub"),
        ("--from none.jsonl", 1, "does not exist"),
        ("--size 2 --numbers 1-9 --n 5000", 2, "is the most"),
    ],
)
def test_an_invalid_request_is_one_sentence_and_writes_nothing(
    run_command, here, words, code, word
):
    printed = run_command("gen-data", *words.split(), code=code)
    assert printed.out == ""
    assert word in printed.err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGTERM, "--preset tv"), (signal.SIGINT, "--size 6"), (signal.SIGHUP, "--size 6")],
)
def test_a_signal_ends_the_generation_at_once_and_leaves_no_partial_directory(here, number, words):
    # nohup ignores SIGHUP
    code = f"import signal; signal.signal({number:d}, signal.SIG_DFL); from countdown_rl.cli.main import main; main()"
    arguments = f"gen-data {words} --n 100000 --out data".split()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True
    )
    while not (here / ".data.partial").is_dir():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)  # until the kernel searches
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, f"ended by {number.name}" in err) == (128 + number, True), err
    assert not list(here.iterdir())


def test_imported_rows_are_checked_counted_and_split_as_generated_ones(run_command, here):
    puzzles = {
        (3, 7, 50): 46,
        (50, 3, 7): 46,
        (2, 4, 6): 99,
        (1, 2, 3, 4, 5, 6, 7): 28,
        (3, -1): 2,
        (19, 36, 55, 7): 65,
    }
    rows = [{"nums": nums, "target": target} for nums, target in puzzles.items()]
    jsonl.write_rows(here / "rows.jsonl", rows)
    words = ("--from", here / "rows.jsonl", "--out", "data", "--json")
    facts = json.loads(run_command("gen-data", *words).out)
    reasons = ("duplicate", "impossible", "not-a-row", "too-many-numbers")
    assert (facts["read"], facts["dropped"]) == (6, dict.fromkeys(reasons, 1))
    written = jsonl.read_rows(here / "data" / "train.jsonl")
    assert [(row["id"], row["solution"]) for row in written] == [
        ("3-7-50=46", "50 + 3 - 7"),
        ("7-19-36-55=65", "55 + 36 - 19 - 7"),
    ]
    manifest = artifacts.read(here / "data", "data")
    assert manifest.inputs["from"] == file_input(here / "rows.jsonl")
    assert str(here) not in (here / "data" / "manifest.json").read_text()


@pytest.mark.parametrize("imported", [True, False])
def test_test_puzzles_of_ones_own_are_kept_out_of_the_other_splits(run_command, here, imported):
    number_sets = list(combinations(range(1, 13), 3))
    puzzles = [{"nums": list(nums), "target": sum(nums)} for nums in number_sets]
    own = [*puzzles[::2], {"nums": [2, 2], "target": 99}]
    jsonl.write_rows(here / "own.jsonl", own)
    jsonl.write_rows(here / "rows.jsonl", puzzles)
    words = "--from rows.jsonl" if imported else "--numbers 1-12 --size 3 --n 150"
    words += " --valid 0 --test-from own.jsonl --out data"
    run_command("gen-data", *words.split())
    test, train = (jsonl.read_rows(here / "data" / f"{name}.jsonl") for name in ("test", "train"))
    assert [row["nums"] for row in test] == [row["nums"] for row in own]
    assert test[-1]["solutions"] == 0
    assert len(train) > 50
    assert {tuple(sorted(row["nums"])) for row in train}.isdisjoint(number_sets[::2])
    assert artifacts.read(here / "data", "data").inputs["test"]["file"] == "own.jsonl"


def test_solve_prints_a_solution_and_the_number_of_solutions(command):
    for numbers in ((3, 7, 50), ("3,7,", 50)):
        assert command("solve", *numbers, "--target", 46)[:2] == (0, "50 + 3 - 7 = 46\n")
    assert "x is not a whole number" in command("solve", "3,x", "--target", 46)[2]
    assert command("solve", 2, 4, 6, "--target", 99)[:2] == (0, "impossible\n")
    result = json.loads(command("solve", 5, 5, 7, "--target", 7, "--all", "--json")[1])
    assert result["all"] == ["7 * 5 / 5", "7 + 5 - 5"]
    assert (result["solutions"], result["needs"]) == (2, "add-sub")
    assert command("solve", *range(1, 8), "--target", 9)[0] == 2
    assert command("solve", 1, 2, "--target", 3, "--rule", "any")[0] == 2


GOOD = {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"}


def test_grade_writes_one_line_per_line(command, here):
    puzzle = {"nums": [3, 7, 50], "target": 46}
    answer = "<answer>50 + 3 - 7</answer>"
    rule = {"rule": "at-most-once", "target": 53}
    rows = [
        puzzle | {"id": "a", "completion": f"</think>\n{answer}"},
        puzzle | {"completion": "<answer>50 / 3 * 7</answer>"},
        puzzle | rule | {"completion": "</think><answer>50+3</answer>"},
        puzzle | {"id": "d", "response": ["", answer]},
    ]
    jsonl.write_rows(here / "in.jsonl", rows)
    status, out, _ = command("grade", stdin=(here / "in.jsonl").read_text())
    grades = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [grade["correct"] for grade in grades] == [True, False, True, False, True]
    assert [grade["value"] for grade in grades] == ["46", "350/3", "53", None, "46"]
    assert [grade["strict_format"] for grade in grades] == [True, False, True, False, False]
    assert [grade.get("id") for grade in grades] == ["a", None, None, "d", "d"]
    assert [grade.get("place") for grade in grades] == [None, "line 2", "line 3", None, None]
    assert [grade.get("sample") for grade in grades] == [None, None, None, 0, 1]
    counts = {"n": 5, "correct": 3, "format": 2, "strict_format": 2}
    status, out, _ = command("grade", "in.jsonl", "--json", "--out", "out.jsonl")
    assert json.loads(out) == {**counts, "reasons": {"wrong-value": 1, "no-answer": 1}}
    assert len((here / "out.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("lines", ["", "\n\n", "hello", "[]", "{}", "a,b\n1,2", "null", "\ufeff"])
def test_grade_of_nothing_fails(command, lines):
    for options in ((), ("--on-error", "mark"), ("--json",)):
        status, out, err = command("grade", *options, stdin=lines)
        assert (status, err.count("error: ")) == (1, 1)
        assert '"correct"' not in out


def test_a_bad_line_ends_grade_or_is_marked_on_request(command):
    good, bad = json.dumps(GOOD), json.dumps({"nums": [3, 4], "target": 7})
    stdin = f"{good}\n\n{{\n{bad}\n{good}\n"
    status, out, err = command("grade", "--on-error", "mark", stdin=stdin)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, [line.get("correct") for line in lines]) == (0, [True, None, None, True])
    for line, place in zip(lines[1:3], ("line 3: not JSON", "line 4: "), strict=True):
        assert line["error"].startswith(f"standard input, {place}")
    assert "2 records that cannot be graded" in err
    assert "standard input, line 3: " in command("grade", stdin=f"{good}\n\n{bad}\n")[2]


def test_grade_finds_rows_by_the_ids_of_its_data(command, here):
    jsonl.write_rows(here / "rows.jsonl", [GOOD | {"id": "a"}])
    jsonl.write_rows(here / "made.jsonl", [{"id": "a", "output": "<answer>7</answer>"}])
    status, out, _ = command("grade", "made.jsonl", "--data", "rows.jsonl")
    grade = json.loads(out)
    assert (status, grade["id"], grade["correct"]) == (0, "a", False)
    status, _, err = command("grade", "made.jsonl")
    assert (status, "its fields are id, output; give an id" in err) == (1, True)


def test_grade_writes_its_file_whole_or_not_at_all(command, here):
    jsonl.write_rows(here / "good", [GOOD])
    (here / "bad").write_text(json.dumps(GOOD) + "\n{\n")
    (here / "out.jsonl").write_text("earlier\n")
    assert command("grade", "bad", "--out", "out.jsonl")[0] == 1
    assert (here / "out.jsonl").read_text() == "earlier\n"
    assert command("grade", "good", "--out", "out.jsonl")[0] == 0
    assert json.loads((here / "out.jsonl").read_text())["correct"]


def test_files_of_completions_with_one_name_are_compared(run_command, here):
    files = {}
    for name, answer in {"one": "50 - 7 + 3", "two": "50 - 7"}.items():
        files[name] = here / name / "out.jsonl"
        files[name].parent.mkdir()
        row = {"nums": [3, 7, 50], "target": 46, "completion": f"</think><answer>{answer}</answer>"}
        jsonl.write_rows(files[name], [row])
    words = [f"{name}={file}" for name, file in files.items()]
    results = json.loads(run_command("compare", *words, "--json").out)["results"]
    assert [(row["name"], row["accuracy"]) for row in results] == [("one", 1.0), ("two", 0.0)]


def test_the_kernel_compiles_without_a_cache_directory():
    code = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = [];"
        "from countdown_rl.tasks.countdown import kernel_numba; print(kernel_numba.search.__class__.__name__)"
    )
    assert "Dispatcher" in python(code)

"""Comparison: paired differences, one table, and refusal of results that cannot be compared."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import countdown_rl as api
from countdown_rl import evaluate
from countdown_rl.cli import compare as command_line
from countdown_rl.cli import console
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, InputError, UsageError
from countdown_rl.evaluation import compare, results, tables
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Accuracy, Overlap
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.release.report import page as report
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row
from tests.support import evaluations
from tests.support.command import status
from tests.support.evaluations import GREEDY
from tests.support.runs import files

DATA = {"file": "test.jsonl", "digest": "d" * 64, "size": 9}
SAMPLED = GREEDY | {"greedy": False, "temperature": 1.0, "samples": 2}
MARKS = {"base": "++--++--+---", "adapter": "++++++-++-+-", "merged": "++++++-++--+"}
BASE, TRAINED, _ = MARKS.values()
OUT = Path("out")


@cache
def puzzle(size: int, split: str) -> Row:
    """A puzzle of *size* numbers that every data set has in *split*."""
    rows = (parse_row({"nums": [n] * size, "target": 1, "needs": "add-sub"}) for n in count(1))
    return next(row for row in rows if row.split == split)


def result(name: str, marks: str, *, decoding: Any = GREEDY, split: str = "test") -> Result:
    """An evaluation in which each puzzle of *split* went as *marks* say: ``+`` right, ``-`` wrong."""
    samples = []
    for at, mark in enumerate(marks):
        nums = puzzle(3 + 7 * (at % 2), split)["nums"]
        for turn in range(decoding.get("samples", 1)):
            fields = {"completion": f"{name} says r{at}"}
            fields |= {"row": {"id": f"r{at}", "nums": nums, "target": 1}}
            fields |= {"turn": turn} if "samples" in decoding else {}
            samples.append(evaluations.sample(mark == "+", **fields))
    about = {"source": name, "kind": "directory", "digest": name}
    metrics = evaluations.metrics(
        samples, decoding=decoding, data=DATA, model=about, precision="fp32"
    )
    return Result(metrics, samples)


def made(name: str, marks: str, **options: Any) -> Path:
    evaluation = result(name, marks, **options)
    return evaluations.write(Path(name), evaluation.metrics, evaluation.samples, data=DATA)


def rewritten(name: str, to: str = "", **changes: Any) -> None:
    """The evaluation at *name* again, with other metrics."""
    recorded = results.read(Path(name))
    metrics = replace(recorded.metrics, **changes)
    evaluations.write(Path(to or name), metrics, recorded.samples, data=DATA)


@pytest.fixture(autouse=True)
def three(here: Path) -> None:
    for name, marks in MARKS.items():
        made(name, marks)


def compared(*words: str, **options: Any) -> dict[str, Any]:
    return compare.compare(compare.by_setting(words), OUT, **options)


def near(share: float) -> Any:
    return pytest.approx(share, abs=1e-6)


def cells(text: str) -> list[list[str]]:
    """The cells of a table in Markdown."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_differences_from_the_first_result_are_paired():
    values = compared(*MARKS)
    base, adapter, _ = values["results"]
    assert "against" not in base
    share, limits = paired_difference(5, 0, 4, 3)
    change = {"difference": round(share, 6), "interval": [round(limit, 6) for limit in limits]}
    change |= {"improved": 4, "regressed": 0, "p": mcnemar(0, 4), "reference": "base"}
    assert adapter["against"] == change
    assert values == json.loads((OUT / compare.SCORES).read_text())
    inputs = artifacts.read(OUT, "comparison").inputs
    assert {name: inputs[name]["digest"] for name in inputs} == {
        name: artifacts.read(Path(name), "eval").digest for name in MARKS
    }


@given(st.lists(st.sampled_from(["++", "+-", "-+", "--"]), min_size=1), st.booleans())
def test_a_difference_is_antisymmetric(pairs, sampled):
    decoding = SAMPLED if sampled else GREEDY
    one, two = (result(name, "".join(marks), decoding=decoding) for name, marks in
                zip("ab", zip(*pairs, strict=True), strict=True))  # fmt: skip
    there, back = compare.difference(one, two), compare.difference(two, one)
    assert there["difference"] == -back["difference"]
    assert there["interval"] == pytest.approx([-end for end in reversed(back["interval"])])
    assert (there["improved"], there["p"]) == (back["regressed"], back["p"])


def test_the_table_has_a_line_per_result_and_the_conditions():
    compared(*MARKS)
    text = (OUT / compare.TABLE).read_text()
    head, _, base, adapter, merged, *_ = cells(text)
    assert head[:7] == ["", "solved", "95%", "3 numbers", "10 numbers", "format", "tokens"]
    assert head[7:] == ["against base", "improved", "regressed", "p"]
    assert (base[:2], base[7:]) == (["base", "41.7%"], [""] * 4)
    assert adapter[7].startswith("+33.3 (")
    assert adapter[8:] == ["4", "0", "0.12"]
    assert merged[7].startswith("+33.3 (")
    assert text.splitlines()[-1].startswith(
        "12 held-out puzzles (exactly-once), greedy, at most 256 tokens; intervals are 95% (Wilson"
    )


def test_changes_hold_both_completions():
    compared(*MARKS)
    changes = [*jsonl.read_objects(OUT / compare.CHANGES)]
    expected = []
    for first, second in (("base", "adapter"), ("base", "merged")):
        for at, (was, now) in enumerate(zip(MARKS[first], MARKS[second], strict=True)):
            if was != now:
                side = "improved" if now == "+" else "regressed"
                expected.append((first, second, f"r{at}", side))
    assert [(one["from"], one["to"], one["id"], one["side"]) for one in changes] == expected
    for one in changes:
        assert one["before"]["correct"] is not one["after"]["correct"]
        assert one["after"]["correct"] is (one["side"] == "improved")
        assert one["before"]["completion"] == f"{one['from']} says {one['id']}"
        assert one["after"]["completion"] == f"{one['to']} says {one['id']}"


PUZZLES = [{"nums": [n, n + 1, 7], "target": 2 * n + 8} for n in range(1, 11)]


def completed(name: str, puzzles: list[dict], solved: set[int], samples=1, **options) -> Result:
    """The evaluation of a file of *samples* completions of each of *puzzles*, right for *solved* first numbers."""
    lines = []
    for row in puzzles:
        nums = row.get("nums", [0])
        text = "+".join(map(str, nums)) if nums[0] in solved else "1"
        lines += [{**row, "completion": f"<answer>{text}</answer>"}] * samples
    jsonl.write_rows(Path(f"{name}.jsonl"), lines)
    return evaluate(completions=f"{name}.jsonl", **options)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("order", [1, -1])
def test_completions_in_two_files_are_paired_by_the_ids_of_their_puzzles(order, samples):
    first = completed("a", PUZZLES, {1, 2, 3}, samples)
    second = completed("b", PUZZLES[::order], {2, 3, 4, 5}, samples)
    change = api.compare([first, second], out=OUT)["results"][1]["against"]
    assert change["difference"] == near(0.1)
    changed = {line["nums"][0]: line["side"] for line in jsonl.read_objects(OUT / compare.CHANGES)}
    assert changed == {1: "regressed", 4: "improved", 5: "improved"}
    runs = compare.pooled("runs", [first, second])
    assert [len({sample.row.id for sample in puzzle}) for puzzle in runs.by_puzzle] == [1] * 10
    (group,) = report.comparable({"a": first, "b": second})
    assert group["a"].puzzles == group["b"].puzzles


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (PUZZLES[:5], "5 puzzles in common, of 5 and 10"),
        (PUZZLES[5:] + [{"nums": [n, n, 9], "target": 9} for n in range(5)], "5 puzzles in common"),
        ([row | {"rule": "at-most-once"} for row in PUZZLES], "0 puzzles in common"),
        (
            [{"task": "gsm8k", "question": f"{n}?", "gold": "1"} for n in range(10)],
            "0 puzzles in common",
        ),
    ],
)
def test_results_of_other_puzzles_rules_or_tasks_are_refused(rows, words):
    group = {"a": completed("a", PUZZLES, {1}), "b": completed("b", rows, {2})}
    with pytest.raises(InputError, match=words):
        api.compare(group, out=OUT)
    assert not OUT.exists()
    with pytest.raises(InputError, match="runs 2"):
        compare.pooled("runs", [*group.values()])
    assert len(report.comparable(group)) == 2


def test_the_rows_without_a_completion_are_counted_wherever_the_accuracy_is(run_command):
    jsonl.write_rows(Path("data.jsonl"), PUZZLES)
    for name, solved in (("a", {1}), ("b", {1, 2, 3})):
        evaluation = completed(name, PUZZLES[:4], solved, rows="data.jsonl", out=name)
        assert "n=4 of 10" in repr(evaluation)
        assert json.loads(Path(name, "metrics.json").read_text())["of"] == 10
    for words in ((), ("--table", "latex"), ("--table", "markdown")):
        said = run_command("compare", "a", "b", "--out", "out", *words)
        assert "only 4 of the 10 puzzles have completions" in said.err
        assert "4 of 10" in said.out
    run_command("report", "--result", "a", "--result", "b", "--out", "page.html")
    assert "<b>4 of 10</b>" in Path("page.html").read_text()


def test_sampled_results_are_compared_with_each_other():
    for name in ("base", "adapter"):
        made(f"{name}-sampled", MARKS[name], decoding=SAMPLED)
    values = compared(*MARKS, "base-sampled", "adapter-sampled")
    rows = values["results"]
    starts = [row["name"] for row in rows if "against" not in row]
    assert starts == ["base", "base-sampled"]
    assert [row.get("decoding") for row in rows] == [None, None, None, SAMPLED, SAMPLED]
    change = rows[4]["against"]
    assert change["difference"] == near(4 / 12)
    assert (change["improved"], change["regressed"]) == (4, 0)
    # Both completions of a puzzle are equal here, so pass@2 is pass@1.
    assert {k: of["difference"] for k, of in change["pass_at"].items()} == {"2": near(4 / 12)}
    text = (OUT / compare.TABLE).read_text()
    head, *rows = cells(text)[:7]
    assert (head[5], head[-1]) == ("pass@2", "pass@2 against base or base-sampled")
    assert [row[5] for row in rows[1:]] == ["", "", "", "41.7%", "75.0%"]
    assert rows[-1][-1].startswith("+33.3 (")
    assert "base-sampled, adapter-sampled: temperature 1, top-p 1, 2 completions each" in text
    with pytest.raises(InputError, match="base-sampled and base were decoded differently"):
        compared(*MARKS, "base-sampled")


def test_every_difference_is_from_the_result_that_is_named(run_command, monkeypatch):
    base, adapter, merged = compared(*MARKS, against="adapter")["results"]
    recorded = {name: results.read(Path(name)) for name in MARKS}
    for row in (base, merged):
        change = compare.difference(recorded["adapter"], recorded[row["name"]])
        assert row["against"] == change | {"reference": "adapter"}
    assert "against" not in adapter
    pairs = {(change["from"], change["to"]) for change in jsonl.read_objects(OUT / compare.CHANGES)}
    assert pairs == {("adapter", "base"), ("adapter", "merged")}
    words = ("compare", *MARKS, "--out", "out", "--against")
    assert "against adapter" in run_command(*words, "adapter").out
    assert status(monkeypatch, *words, "other") == 2


@pytest.fixture
def runs() -> list[str]:
    """Three runs of two settings beside the start, the last ones of which differ most."""
    sft = ("+++-+++-++--", "++++++--+---", "++---++-+--+")
    grpo = (TRAINED, "+++++++++---", MARKS["merged"])
    for name, group in (("s", sft), ("g", grpo)):
        for number, marks in enumerate(group):
            made(f"{name}{number}", marks)
    return ["base", "SFT_1=s0,s1,s2", "GRPO=g0,g1,g2"]


def test_runs_of_one_setting_are_averaged(runs):
    base, sft, grpo = compared(*runs, against="SFT_1")["results"]
    assert "runs" not in base
    assert sft["runs"] == [near(n / 12) for n in (8, 7, 6)]
    assert (sft["accuracy"], sft["sd"]) == (near(7 / 12), near(1 / 12))
    assert sft["groups"]["numbers"]["3"]["accuracy"] == near((5 + 4 + 3) / 18)
    assert sft["interval"][0] < sft["accuracy"] < sft["interval"][1]
    change = grpo["against"]
    assert change["runs"] == [near(n / 12) for n in (1, 2, 3)]
    assert (change["difference"], change["sd"]) == (near(2 / 12), near(1 / 12))
    shares = []
    for setting in "sg":
        group = [results.read(Path(f"{setting}{run}")) for run in range(3)]
        shares.append([sum(run.samples[at].grade.correct for run in group) / 3 for at in range(12)])
    assert change["interval"] == [round(limit, 6) for limit in paired_mean(*shares)[1]]
    inputs = artifacts.read(OUT, "comparison").inputs
    assert list(inputs) == ["GRPO 1", "GRPO 2", "GRPO 3", "SFT_1 1", "SFT_1 2", "SFT_1 3", "base"]


def test_pass_at_k_of_runs_is_the_mean_of_theirs():
    for number, marks in enumerate((BASE, TRAINED)):
        made(f"r{number}", marks, decoding=SAMPLED | {"seed": 42 + number})
    made("start", BASE, decoding=SAMPLED)
    _, mean = compared("start", "mean=r0,r1")["results"]
    assert mean["pass_at"]["2"]["share"] == near((5 / 12 + 9 / 12) / 2)
    assert mean["against"]["pass_at"]["2"]["difference"] == near(2 / 12)
    assert mean["against"]["runs"] == [0, near(4 / 12)]
    with pytest.raises(InputError, match="the runs of mixed"):
        compared("base", "mixed=r0,adapter")


def test_tables_are_written_for_a_paper_and_for_programs(runs, run_command):
    words = ("compare", *runs[:2], "adapter", "--out", "out")
    lines = run_command(*words, "--table", "latex").out.splitlines()
    assert lines[:2] == [r"\begin{tabular}{lrrrrrrrrrr}", r"\hline"]
    assert lines[2].startswith(r" & solved & 95\% & 3 numbers & ")
    assert lines[5].startswith(r"SFT\_1 & 58.3\% $\pm$ 8.3 & ")
    assert r" & $+$16.7 $\pm$ 8.3 ($" in lines[5]
    assert "means over runs (SFT_1: 3)" in lines[-1]
    markdown = run_command(*words, "--table", "markdown").out
    assert markdown == (OUT / compare.TABLE).read_text()
    assert "mean of 3 runs" in run_command(*words).out


@pytest.mark.parametrize("words", ["base,base", "base,./base", "base,copy", "base,link", "base,s"])
def test_one_run_given_as_two_is_refused(words):
    shutil.copytree("base", "copy")
    Path("link").symlink_to("base")
    decoding = results.read(Path("base")).metrics.decoding
    rewritten("base", "s", decoding=replace(decoding, seed=43))
    with pytest.raises(InputError, match="same completions"):
        compared("adapter", f"twice={words}")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        *((words, "given twice") for words in ("base base=adapter", "base base/")),
        *((word, "NAME=DIR") for word in ("=base", "A=", "A=base,", "A=,base")),
    ],
)
def test_settings_need_a_name_and_each_directory_once(words, fault):
    with pytest.raises(UsageError, match=fault):
        compared(*words.split())


def test_few_puzzles_with_several_completions_all_won_are_no_certainty():
    for name, mark in (("a", "-"), ("b", "+"), ("c", "-")):
        made(name, mark * 3, decoding=SAMPLED)
    _, won, equal = compared("a", "b", "c")["results"]
    change = won["against"]
    assert (change["difference"], change["p"]) == (1, 0.25)
    assert change["interval"][0] < 0.5
    assert "Agresti-Min" in (OUT / compare.TABLE).read_text()
    change = equal["against"]
    assert change["interval"][0] < 0 < change["interval"][1]
    assert change["p"] == 1


@pytest.mark.parametrize(
    ("split", "trained", "words"),
    [
        ("test", [0, 0], "12 held-out puzzles"),
        ("valid", [0, None], "12 validation puzzles"),
        ("test", [12, 12], "12 puzzles"),
        ("test", [3, 0], "12 puzzles"),
        ("test", [None, None], "12 puzzles"),
    ],
)
def test_puzzles_are_called_by_their_counted_overlap_with_training(split, trained, words):
    others = Accuracy(accuracy=0.5, n=9, correct=4, interval=(0.2, 0.8))
    known = {None: None, 3: Overlap(trained=3, others=others)}
    known |= {number: Overlap(trained=number) for number in (0, 12)}
    for name, number in zip("ab", trained, strict=True):
        made(name, BASE, split=split)
        rewritten(name, overlap=known[number])
    assert tables.subject(compared("a", "b")) == words


@pytest.mark.parametrize(
    "name",
    ["a\r\\input{x}", "[2cm]", "*", "50%", "a|b", "<script>`code`", "[bold]x", "\x1b[31m"],
)
def test_a_name_is_text_in_every_table(name, capsys):
    values = compare.compare({"base": [Path("base")], name: [Path("adapter")]}, OUT)
    latex = [line for line in tables.latex(values).splitlines() if not line.startswith("%")]
    assert len(latex) == 8
    assert not re.search(r"(?<!\\)[%#]|\\input|^[\[*]", "\n".join(latex), re.MULTILINE)
    text = (OUT / compare.TABLE).read_text()
    assert len(text.splitlines()) == 6
    assert not re.search(r"<script|(?<!\\)`|(?<!\\)\[|\x1b", text)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()[:4]} == {12}
    console.result(values, command_line._view(values))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert name not in ("[bold]x", "[2cm]") or name in shown


def test_invalid_inputs_are_refused_and_nothing_is_overwritten():
    made("other", BASE, decoding=GREEDY | {"max_new_tokens": 128})
    with pytest.raises(InputError, match="other and base were decoded differently"):
        compared("base", "other")
    assert not OUT.exists()
    compared(*MARKS)
    before = files(OUT)
    with pytest.raises(InputError, match="at least two"):
        compared("base")
    with pytest.raises(ArtifactError, match="eval artifact; give --out another"):
        compare.compare(compare.by_setting([*MARKS]), Path("base"))
    Path("merged/samples.jsonl").write_text("")
    with pytest.raises(ArtifactError, match=r"merged/samples\.jsonl is damaged"):
        compared(*MARKS)
    assert files(OUT) == before


def test_the_command_prints_one_object_of_results_named_by_directory_or_path(run_command):
    for run in ("a", "b"):
        made(f"runs/{run}/eval", BASE)
    said = run_command("compare", "runs/a/eval", "runs/b/eval", "--out", "out", "--json")
    assert "warning: runs/a/eval, runs/b/eval: the 95% interval is 48.7 points wide" in said.err
    printed = json.loads(said.out)
    assert printed == {"out": "out"} | json.loads((OUT / compare.SCORES).read_text())
    assert [row["name"] for row in printed["results"]] == ["runs/a/eval", "runs/b/eval"]


def test_grades_of_two_grammars_are_not_compared():
    rewritten("base", grammar=1)
    rewritten("adapter", grammar=2)
    with pytest.raises(InputError, match="grammar"):
        compared("base", "adapter")
    rewritten("base", grammar=None)
    compared("base", "adapter")

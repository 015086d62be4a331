"""Comparison: paired differences, one table, and refusal of results that cannot be compared."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest

import countdown_rl as api
from countdown_rl import evaluate
from countdown_rl.cli import compare as command_line
from countdown_rl.cli import console
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, InputError, UsageError
from countdown_rl.evaluation import compare, results, tables
from countdown_rl.evaluation.sample import Accuracy, Overlap
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.release.report import page as report
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row
from tests.support import evaluations
from tests.support.command import status
from tests.support.evaluations import GREEDY

DATA = {"file": "test.jsonl", "digest": "d" * 64, "size": 9}


@cache
def puzzle(size: int, split: str) -> Row:
    """A puzzle of *size* numbers that every data set has in *split*."""
    rows = (parse_row({"nums": [n] * size, "target": 1, "needs": "add-sub"}) for n in count(1))
    return next(row for row in rows if row.split == split)


def made(
    path: Path, marks: str, *, data=DATA, decoding=GREEDY, ids=True, per_puzzle=1, split="test"
) -> Path:
    """An evaluation at *path* in which each puzzle of *split* went as *marks* say: ``+`` right, ``-`` wrong."""
    sizes = [3 + 7 * (at % 2) for at in range(len(marks))]
    rows = [puzzle(size, split) for size in sizes]
    samples = [
        evaluations.sample(
            mark == "+",
            row=({"id": f"r{at}"} if ids else {}) | {"nums": row["nums"], "target": 1},
            completion=f"{path.name} says r{at}",
            turn=turn if per_puzzle > 1 else None,
        )
        for at, (mark, row) in enumerate(zip(marks, rows, strict=True))
        for turn in range(per_puzzle)
    ]
    model = {"source": path.name, "kind": "directory", "digest": path.name}
    metrics = evaluations.metrics(
        samples, decoding=decoding, data=data, model=model, precision="fp32"
    )
    with artifacts.writing(path, "eval", options={}, inputs={"data": data}) as draft:
        results.write(draft.path, metrics, samples)
    return path


def compared(paths: dict[str, Path], out: Path) -> dict:
    return compare.compare({name: [path] for name, path in paths.items()}, out)


BASE, TRAINED, MERGED = "++--++--+---", "++++++-++-+-", "++++++-++--+"


@pytest.fixture
def three(here):
    return {
        name: made(Path(name), marks)
        for name, marks in (("base", BASE), ("adapter", TRAINED), ("merged", MERGED))
    }


def test_differences_from_the_first_and_the_previous_result_are_paired(three):
    values = compared(three, Path("comparison"))
    base, adapter, merged = values["results"]
    assert not {"against_first", "against_previous"} & base.keys()
    share, (low, high) = paired_difference(5, 0, 4, 3)
    assert adapter["against_first"] == adapter["against_previous"]
    change = {
        "difference": round(share, 6),
        "interval": [round(low, 6), round(high, 6)],
        "improved": 4,
        "regressed": 0,
    }
    assert adapter["against_first"] == change | {"p": mcnemar(0, 4), "reference": "base"}
    assert (merged["against_previous"]["improved"], merged["against_previous"]["regressed"]) == (
        1,
        1,
    )
    assert (merged["against_previous"]["difference"], merged["against_previous"]["p"]) == (0, 1)
    assert values == json.loads(Path("comparison/comparison.json").read_text())
    inputs = artifacts.read(Path("comparison"), "comparison").inputs
    assert {name: entry["digest"] for name, entry in inputs.items()} == {
        name: artifacts.read(path, "eval").digest for name, path in three.items()
    }


def test_the_table_has_a_line_per_result_and_the_conditions(three):
    compared(three, Path("comparison"))
    lines = Path("comparison/comparison.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    head = ["", "solved", "95%", "3 numbers", "10 numbers", "format", "tokens"]
    assert cells[0] == [*head, "against the previous", "improved", "regressed", "p"]
    assert (cells[2][0], cells[2][1], cells[2][7:]) == ("base", "41.7%", [""] * 4)
    assert cells[3][7].startswith("+33.3 (")
    assert cells[3][8:] == ["4", "0", "0.12"]
    assert cells[4][7].startswith("+0.0 (-")
    assert lines[6] == (
        "12 held-out puzzles (exactly-once), greedy, at most 256 tokens; intervals are 95% (Wilson; Newcombe for "
        "paired differences)."
    )


def test_changes_hold_both_completions(three):
    compared(three, Path("comparison"))
    changes = [*jsonl.read_objects(Path("comparison") / compare.CHANGES)]
    marks = {"base": BASE, "adapter": TRAINED, "merged": MERGED}
    pairs = [("base", "adapter"), ("base", "merged"), ("adapter", "merged")]
    assert [(one["from"], one["to"], one["id"], one["side"]) for one in changes] == [
        (first, second, f"r{at}", "improved" if now == "+" else "regressed")
        for first, second in pairs
        for at, (was, now) in enumerate(zip(marks[first], marks[second], strict=True))
        if was != now
    ]
    for one in changes:
        improved = one["side"] == "improved"
        assert (one["before"]["correct"], one["after"]["correct"]) == (not improved, improved)
        assert one["before"]["completion"] == f"{one['from']} says {one['id']}"
        assert one["after"]["completion"] == f"{one['to']} says {one['id']}"


PUZZLES = [{"nums": [n, n + 1, 7], "target": 2 * n + 8} for n in range(1, 11)]


def completed(
    path: Path, puzzles: list[dict], solved: set[int], samples: int = 1, **options
) -> results.Result:
    """The evaluation of a file of *samples* completions of each of *puzzles*, right for *solved* first numbers."""
    sums = ["+".join(map(str, row.get("nums", "0"))) for row in puzzles]
    sums = [total if int(total.partition("+")[0]) in solved else "1" for total in sums]
    lines = [
        {**row, "completion": f"<answer>{text}</answer>"}
        for row, text in zip(puzzles, sums, strict=True)
    ]
    jsonl.write_rows(path, [line for line in lines for _ in range(samples)])
    return evaluate(completions=path, **options)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_completions_in_two_files_are_paired_by_the_ids_of_their_puzzles(tmp_path, order, samples):
    first = completed(tmp_path / "a.jsonl", PUZZLES, {1, 2, 3}, samples)
    second = completed(tmp_path / "b.jsonl", PUZZLES[order], {2, 3, 4, 5}, samples)
    row = api.compare([first, second], out=tmp_path / "out")["results"][1]
    change = row["against_first"]
    assert (change["difference"], change["improved"], change["regressed"]) == (
        pytest.approx(0.1),
        2,
        1,
    )
    changed = [*jsonl.read_objects(tmp_path / "out" / compare.CHANGES)]
    assert [(line["nums"][0], line["side"]) for line in changed] == [
        (1, "regressed"),
        (4, "improved"),
        (5, "improved"),
    ]
    runs = compare.pooled("runs", [first, second])
    assert [len({sample.row.id for sample in puzzle}) for puzzle in runs.by_puzzle] == [1] * 10
    (group,) = report.comparable({"a": first, "b": second})
    assert group["a"].puzzles == group["b"].puzzles


OTHERS = [{"nums": [n, n, 9], "target": 2 * n + 9} for n in range(10)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (PUZZLES[:5], "5 puzzles in common, of 5 and 10"),
        ([*PUZZLES, OTHERS[0]], "10 puzzles in common, of 11 and 10"),
        ([*PUZZLES[5:], *OTHERS[:5]], "5 puzzles in common, of 10"),
        (OTHERS, "0 puzzles in common"),
        (
            [row | {"rule": "at-most-once"} for row in PUZZLES],
            "countdown at-most-once, and a of countdown exactly",
        ),
        (
            [{"task": "gsm8k", "question": f"{n}?", "gold": "1"} for n in range(10)],
            "of gsm8k, and a of c",
        ),
    ],
)
def test_results_of_other_puzzles_rules_or_tasks_are_refused(tmp_path, rows, words):
    group = {
        "a": completed(tmp_path / "a.jsonl", PUZZLES, {1}),
        "b": completed(tmp_path / "b.jsonl", rows, {2}),
    }
    with pytest.raises(InputError, match=words):
        api.compare(group, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="runs 2"):
        compare.pooled("runs", [*group.values()])
    assert len(report.comparable(group)) == 2


def test_the_rows_without_a_completion_are_counted_wherever_the_accuracy_is(
    here, run_command, monkeypatch
):
    jsonl.write_rows(Path("data.jsonl"), PUZZLES)
    for name, solved in (("a", {1}), ("b", {1, 2, 3})):
        result = completed(Path(f"{name}.jsonl"), PUZZLES[:4], solved, rows="data.jsonl", out=name)
        assert "n=4 of 10" in repr(result)
        assert json.loads(Path(name, "metrics.json").read_text())["of"] == 10
    for words in ((), ("--table", "latex"), ("--table", "markdown"), ("--json",)):
        said = run_command("compare", "a", "b", "--out", "out", *words)
        assert "only 4 of the 10 puzzles have completions" in said.err
        assert ('"of": 10' if words == ("--json",) else "4 of 10") in said.out
    assert (
        status(monkeypatch, "compare", "a", "b", "--out", "out", "--json", "--table", "latex") == 2
    )
    assert (
        status(monkeypatch, "report", "--result", "a", "--result", "b", "--out", "page.html") == 0
    )
    assert "<b>4 of 10</b>" in Path("page.html").read_text()


def test_eight_results_have_a_line_each_in_80_columns(three, run_command, monkeypatch):
    monkeypatch.setattr(console._out, "width", 80)
    names = [made(Path(f"adapter-sample-{n}"), TRAINED if n % 2 else BASE).name for n in range(8)]
    lines = run_command("compare", *names, "--out", "out").out.splitlines()
    assert max(map(len, lines)) <= 80
    first = lines[
        : lines.index(
            next(line for line in lines if line.split()[-1:] == ["p"] and "previous" in line)
        )
    ]
    assert sum(line.startswith("adapter-sample-") for line in first) == 8
    assert all(word in " ".join(lines) for word in ("improved/", "regressed", "4/0", "0.12"))


SAMPLED = GREEDY | {"greedy": False, "temperature": 1.0, "samples": 2}


def test_sampled_results_are_compared_with_each_other(three):
    sampled = {
        name: made(Path(name), marks, decoding=SAMPLED, per_puzzle=2)
        for name, marks in (("base-sampled", BASE), ("adapter-sampled", TRAINED))
    }
    values = compared(three | sampled, Path("out"))
    assert [row["name"] for row in values["results"] if "against_previous" not in row] == [
        "base",
        "base-sampled",
    ]
    assert [row.get("decoding") for row in values["results"]] == [
        None,
        None,
        None,
        SAMPLED,
        SAMPLED,
    ]
    change = values["results"][4]["against_first"]
    assert (change["difference"], change["improved"], change["regressed"]) == (
        pytest.approx(4 / 12, abs=1e-6),
        4,
        0,
    )
    assert list(change["pass_at"]) == [
        "2"
    ]  # both completions of a puzzle are equal here, so pass@2 is pass@1
    assert change["pass_at"]["2"]["difference"] == change["difference"]
    text = Path("out/comparison.md").read_text()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert cells[0][5] == "pass@2"
    assert [row[5] for row in cells[2:7]] == ["", "", "", "41.7%", "75.0%"]
    assert (
        "256 tokens; base-sampled, adapter-sampled: temperature 1, top-p 1, 2 completions each, at most"
        in text
    )
    del sampled["adapter-sampled"]
    with pytest.raises(InputError, match="base-sampled and base were sampled 2 and 1 times"):
        compared(three | sampled, Path("out"))


def test_every_difference_is_from_the_result_that_is_named(three, run_command, monkeypatch):
    values = compare.compare(
        {name: [path] for name, path in three.items()}, Path("out"), against="adapter"
    )
    base, adapter, merged = values["results"]
    recorded = {name: results.read(path) for name, path in three.items()}
    change = compare.difference(recorded["adapter"], recorded["base"])
    assert base["against"] == change | {"reference": "adapter"}
    change = compare.difference(recorded["adapter"], recorded["merged"])
    assert merged["against"] == change | {"reference": "adapter"}
    assert (
        not {"against", "against_first", "against_previous"} & adapter.keys()
        | {"against_first"} & base.keys()
    )
    pairs = {
        (change["from"], change["to"])
        for change in jsonl.read_objects(Path("out") / compare.CHANGES)
    }
    assert pairs == {("adapter", "base"), ("adapter", "merged")}
    assert (
        "against adapter"
        in run_command("compare", *three, "--against", "adapter", "--out", "out").out
    )
    latex = run_command(
        "compare", *three, "--against", "adapter", "--out", "out", "--table", "latex"
    ).out.splitlines()
    assert latex[2].endswith(r"& against adapter & improved & regressed & p \\")
    assert latex[4].endswith(r"$-$0.8) & 0 & 4 & 0.12 \\")
    assert status(monkeypatch, "compare", *three, "--against", "other", "--out", "new") == 2


def test_a_fall_of_pass_at_k_has_its_interval_in_the_tables_for_a_paper(three, run_command):
    for name, marks in (("a", BASE), ("b", TRAINED)):
        made(Path(name), marks, decoding=SAMPLED, per_puzzle=2)
    with pytest.raises(InputError, match="a and base were sampled 2 and 1 times"):
        compare.compare(compare.by_setting(["base", "adapter", "a", "b"]), against="base")
    values = compare.compare(compare.by_setting(["b", "a"]), Path("out"))
    change = values["results"][1]["against_previous"]["pass_at"]["2"]
    assert (change["difference"], change["interval"][1] < 0) == (
        pytest.approx(-4 / 12, abs=1e-6),
        True,
    )
    points = tables.points(change)
    assert points.startswith("-33.3 (")
    latex = tables.latex(values).splitlines()
    assert latex[2].endswith(r"& against b & improved & regressed & p & pass@2 against b \\")
    assert latex[5].count("$-$33.3 (") == 2
    assert run_command("compare", "b", "a", "--out", "out").out.count("-33.3 (") == 2


@pytest.fixture
def runs(three):
    """Three runs of two settings beside the start, the last ones of which differ most."""
    sft = ("+++-+++-++--", "++++++--+---", "++---++-+--+")
    grpo = ("++++++-++-+-", "+++++++++---", "++++++-++--+")
    for name, marks in (("s", sft), ("g", grpo)):
        for number, row in enumerate(marks):
            made(Path(f"{name}{number}"), row)
    return compare.by_setting(["base", "SFT=s0,s1,s2", "GRPO=g0,g1,g2"])


def test_runs_of_one_setting_are_averaged(runs):
    values = compare.compare(runs, Path("out"))
    base, sft, grpo = values["results"]
    assert [row.get("runs") for row in (base, sft)] == [
        None,
        [pytest.approx(n / 12, abs=1e-6) for n in (8, 7, 6)],
    ]
    assert (sft["accuracy"], sft["sd"]) == (
        pytest.approx(7 / 12, abs=1e-6),
        pytest.approx(1 / 12, abs=1e-6),
    )
    assert sft["groups"]["numbers"]["3"]["accuracy"] == pytest.approx((5 + 4 + 3) / 18, abs=1e-6)
    assert sft["interval"][0] < sft["accuracy"] < sft["interval"][1]
    assert grpo["against_first"]["runs"] == [pytest.approx(4 / 12, abs=1e-6)] * 3
    change = grpo["against_previous"]
    assert change["runs"] == [pytest.approx(n / 12, abs=1e-6) for n in (1, 2, 3)]
    assert (change["difference"], change["sd"]) == (
        pytest.approx(2 / 12, abs=1e-6),
        pytest.approx(1 / 12, abs=1e-6),
    )
    shares = [
        [sum(run.samples[at].grade.correct for run in group) / 3 for at in range(12)]
        for group in ([results.read(Path(f"{name}{run}")) for run in range(3)] for name in "sg")
    ]
    assert change["interval"] == [round(limit, 6) for limit in paired_mean(*shares)[1]]
    inputs = artifacts.read(Path("out"), "comparison").inputs
    assert list(inputs) == ["GRPO 1", "GRPO 2", "GRPO 3", "SFT 1", "SFT 2", "SFT 3", "base"]


def test_pass_at_k_of_runs_is_the_mean_of_theirs(three):
    for number, marks in enumerate((BASE, TRAINED)):
        made(Path(f"r{number}"), marks, decoding=SAMPLED | {"seed": 42 + number}, per_puzzle=2)
    made(Path("start"), BASE, decoding=SAMPLED, per_puzzle=2)
    _, mean = compare.compare(compare.by_setting(["start", "mean=r0,r1"]), Path("out"))["results"]
    assert mean["pass_at"]["2"]["share"] == pytest.approx((5 / 12 + 9 / 12) / 2, abs=1e-6)
    assert mean["against_first"]["pass_at"]["2"]["difference"] == pytest.approx(2 / 12, abs=1e-6)
    assert mean["against_first"]["runs"] == [0, pytest.approx(4 / 12, abs=1e-6)]
    with pytest.raises(InputError, match="the runs of mixed"):
        compare.compare(compare.by_setting(["base", "mixed=r0,adapter"]), Path("out"))


def test_tables_are_written_for_a_paper_and_for_programs(runs, run_command):
    words = ("base", "SFT_1=s0,s1,s2", "adapter", "--out", "out", "--table")
    lines = run_command("compare", *words, "latex").out.splitlines()
    assert lines[:2] == [r"\begin{tabular}{lrrrrrrrrrr}", r"\hline"]
    assert lines[2].startswith(r" & solved & 95\% & 3 numbers & ")
    assert lines[5].startswith(r"SFT\_1 & 58.3\% $\pm$ 8.3 & ")
    assert r" & $+$16.7 $\pm$ 8.3 ($" in lines[5]
    assert "means over runs (SFT_1: 3)" in lines[-1]
    assert run_command("compare", *words, "markdown").out == Path("out/comparison.md").read_text()
    assert "mean of 3 runs" in run_command("compare", *words[:-1]).out


@pytest.mark.parametrize("words", ["s0,s0", "s0,./s0", "s0,copy", "s0,link", "s0,recorded-again"])
def test_one_run_given_as_two_is_refused(runs, words):
    shutil.copytree("s0", "copy")
    Path("link").symlink_to("s0")
    first = results.read("s0")
    with artifacts.writing(
        Path("recorded-again"), "eval", options={}, inputs={"data": DATA}
    ) as draft:
        decoding = replace(first.metrics.decoding, seed=43)
        results.write(draft.path, replace(first.metrics, decoding=decoding), first.samples)
    with pytest.raises((InputError, UsageError), match=r"given twice|same completions"):
        compare.compare(compare.by_setting(["base", f"SFT={words}"]), Path("out"))


TWICE = [("A=base", "B=base"), ("base", "base=adapter"), ("base", "A=base")]
WRONG = [("adapter", word) for word in ("=base", "A=", "A=base,", "A=,base")]


@pytest.mark.parametrize(
    ("words", "fault"), [*((w, "given twice") for w in TWICE), *((w, "NAME=DIR") for w in WRONG)]
)
def test_settings_need_a_name_and_each_directory_once(three, words, fault):
    with pytest.raises(UsageError, match=fault):
        compare.by_setting(words)


def test_few_puzzles_with_several_completions_all_won_are_no_certainty(tmp_path):
    start = made(tmp_path / "a", "---", decoding=SAMPLED, per_puzzle=2)
    won = made(tmp_path / "b", "+++", decoding=SAMPLED, per_puzzle=2)
    values = compared({"a": start, "b": won}, tmp_path / "out")
    change = values["results"][1]["against_first"]
    assert (change["difference"], change["p"]) == (1, 0.25)
    assert change["interval"][0] < 0.5
    assert "Agresti-Min" in (tmp_path / "out" / "comparison.md").read_text()
    equal = compared(
        {"a": start, "b": made(tmp_path / "c", "---", decoding=SAMPLED, per_puzzle=2)},
        tmp_path / "out",
    )
    assert equal["results"][1]["against_first"]["p"] == 1
    low, high = equal["results"][1]["against_first"]["interval"]
    assert low < 0 < high


def rewritten(path: Path, **changes) -> None:
    """The evaluation at *path* again, with other metrics."""
    recorded = results.read(path)
    with artifacts.writing(path, "eval", options={}, inputs={"data": DATA}) as draft:
        results.write(draft.path, replace(recorded.metrics, **changes), recorded.samples)


@pytest.mark.parametrize(
    ("split", "trained", "words"),
    [
        ("test", [0, 0], "12 held-out puzzles"),
        ("valid", [0, None], "12 validation puzzles"),
        ("test", [12, 12], "12 training puzzles"),
        ("test", [3, 0], "12 puzzles"),
        ("test", [None, None], "12 puzzles"),
    ],
)
def test_puzzles_are_called_by_their_counted_overlap_with_training(here, split, trained, words):
    paths = {name: made(Path(name), BASE, split=split) for name in ("a", "b")}
    others = Accuracy(accuracy=0.5, n=9, correct=4, interval=(0.2, 0.8))
    for path, number in zip(paths.values(), trained, strict=True):
        known = None
        if number is not None:
            known = Overlap(trained=number, others=others if number == 3 else None)
        rewritten(path, overlap=known)
    assert tables.subject(compared(paths, Path("out"))) == words


def test_results_with_other_groups_and_rules_that_are_hostile_are_tabulated(three):
    rewritten(three["base"], groups={}, rules=["x\n\\input{/etc/passwd}"])
    values = compared({"base": Path("base"), "adapter": Path("adapter")}, Path("out"))
    assert all(write(values) for write in tables.FORMATS.values())
    assert tables.latex(values).splitlines()[-1].startswith("% ")
    values = compared({"adapter": Path("adapter"), "base": Path("base")}, Path("out"))
    assert "numbers" not in tables.markdown(values).splitlines()[0]


HOSTILE = (
    "a\r\\input{/etc/passwd}",
    "[2cm]",
    "*",
    "50%",
    "a|b",
    "<script>`code`",
    "[bold]x",
    "\x1b[31m",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_every_table(three, name, capsys):
    values = compared({"base": Path("base"), name: Path("adapter")}, Path("out"))
    latex = [line for line in tables.latex(values).splitlines() if not line.startswith("%")]
    assert len(latex) == 8
    assert not re.search(r"(?<!\\)[%#]|\\input|^[\[*]", "\n".join(latex), re.MULTILINE)
    text = Path("out/comparison.md").read_text()
    assert len(text.splitlines()) == 6
    assert not re.search(r"<script|(?<!\\)`|(?<!\\)\[|\x1b", text)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()[:4]} == {12}
    console.result(values, command_line._view(values))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert name not in ("[bold]x", "[2cm]") or name in shown


def test_invalid_inputs_are_refused_and_nothing_is_overwritten(three):
    made(Path("other"), BASE, decoding=GREEDY | {"max_new_tokens": 128})
    with pytest.raises(InputError, match="other and base were decoded differently"):
        compared({"base": Path("base"), "other": Path("other")}, Path("out"))
    assert not Path("out").exists()
    compared(three, Path("out"))
    before = {file.name: file.read_bytes() for file in Path("out").iterdir()}
    with pytest.raises(InputError, match="at least two"):
        compared({"base": Path("base")}, Path("out"))
    with pytest.raises(ArtifactError, match="eval artifact; give --out another"):
        compared(three, Path("base"))
    Path("merged/samples.jsonl").write_text("")
    with pytest.raises(ArtifactError, match=r"merged/samples\.jsonl is damaged"):
        compared(three, Path("out"))
    assert {file.name: file.read_bytes() for file in Path("out").iterdir()} == before


def test_the_command_prints_one_object_or_a_table(three, run_command):
    said = run_command("compare", "base", "adapter/", "--out", "out", "--json")
    assert "warning: base: the 95% interval is 48.7 points wide" in said.err
    assert said.out.count("\n") == 1
    assert json.loads(said.out) == {"out": "out"} | json.loads(
        Path("out/comparison.json").read_text()
    )
    text = run_command("compare", "base", "adapter", "merged", "--out", "out").out
    assert "12 held-out puzzles" in text
    assert "+33.3" in text


def test_the_command_names_results_by_directory_or_by_path(three, run_command, monkeypatch):
    for run in ("a", "b"):
        made(Path("runs", run, "eval"), BASE)
    rows = json.loads(
        run_command("compare", "runs/a/eval", "runs/b/eval", "--out", "out", "--json").out
    )["results"]
    assert [row["name"] for row in rows] == ["runs/a/eval", "runs/b/eval"]
    assert status(monkeypatch, "compare", "base", "base/", "--out", "new") == 2
    assert not Path("new").exists()


def test_grades_of_two_grammars_are_not_compared(here):
    first, second = (results.read(made(Path(name), BASE)) for name in ("old", "new"))
    old = replace(first, metrics=replace(first.metrics, grammar=1))
    new = replace(second, metrics=replace(second.metrics, grammar=2))
    with pytest.raises(InputError, match="grammar"):
        compare.compare({"old": [old], "new": [new]})
    compare.compare({"new": [new], "again": [first]})


@pytest.mark.parametrize("marks", [(BASE, TRAINED), (TRAINED, MERGED), (BASE, BASE)])
def test_a_difference_is_antisymmetric(here, marks):
    one, two = (results.read(made(Path(f"{n}"), text)) for n, text in enumerate(marks))
    there, back = compare.difference(one, two), compare.difference(two, one)
    assert there["difference"] == -back["difference"]
    assert there["interval"] == pytest.approx([-end for end in reversed(back["interval"])])
    assert (there["improved"], there["p"]) == (back["regressed"], back["p"])

"""Comparison: paired differences, one table, and refusal of results that cannot be compared."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import countdown_rl as api
from countdown_rl import evaluate
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, InputError, UsageError
from countdown_rl.evaluation import compare, results, tables
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Overlap
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations
from tests.support.evaluations import GREEDY
from tests.support.runs import files

DATA = {"file": "test.jsonl", "digest": "d" * 64, "size": 9}
SAMPLED = GREEDY | {"greedy": False, "temperature": 1.0, "samples": 2}
MARKS = {"base": "++--++--+---", "adapter": "++++++-++-+-", "merged": "++++++-++--+"}
BASE, TRAINED, _ = MARKS.values()
OUT = Path("out")


@cache
def puzzle(size, split):
    """A puzzle of *size* numbers that every data set has in *split*."""
    rows = (parse_row({"nums": [n] * size, "target": 1, "needs": "add-sub"}) for n in count(1))
    return next(row for row in rows if row.split == split)


def result(name, marks, *, decoding=GREEDY, split="test"):
    """An evaluation whose puzzles of *split* went as *marks* say: ``+`` correct, ``-`` not."""
    samples = []
    for index, mark in enumerate(marks):
        nums = puzzle(3 + 7 * (index % 2), split)["nums"]
        row = {"id": f"r{index}", "nums": nums, "target": 1}
        for turn in range(decoding.get("samples", 1)):
            fields = {"turn": turn} if "samples" in decoding else {}
            text = f"{name} says r{index}"
            samples.append(evaluations.sample(mark == "+", row=row, completion=text, **fields))
    model = {"source": name, "kind": "directory", "digest": name}
    return Result(evaluations.metrics(samples, decoding=decoding, data=DATA, model=model), samples)


def made(name, marks, **options):
    evaluation = result(name, marks, **options)
    evaluations.write(Path(name), evaluation.metrics, evaluation.samples, data=DATA)


def rewritten(name, **changes):
    """Write the evaluation at *name* again, with other metrics."""
    recorded = results.read(Path(name))
    metrics = replace(recorded.metrics, **changes)
    evaluations.write(Path(name), metrics, recorded.samples, data=DATA)


@pytest.fixture(autouse=True)
def three(here):
    for name, marks in MARKS.items():
        made(name, marks)


def compared(*words, **options):
    return compare.compare(compare.by_setting(words), OUT, **options)


def near(share):
    return pytest.approx(share, abs=1e-6)


def table():
    """The cells of the written table."""
    lines = (OUT / compare.TABLE).read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_differences_from_the_first_result_are_paired():
    comparison = compared(*MARKS)
    base, adapter, _ = comparison["results"]
    assert "against" not in base
    share, limits = paired_difference(5, 0, 4, 3)
    change = {"difference": round(share, 6), "interval": [round(limit, 6) for limit in limits]}
    change |= {"improved": 4, "regressed": 0, "p": mcnemar(0, 4), "reference": "base"}
    assert adapter["against"] == change
    assert comparison == json.loads((OUT / compare.SCORES).read_text())
    for name, entry in artifacts.read(OUT, "comparison").inputs.items():
        assert entry["digest"] == artifacts.read(Path(name), "eval").digest


@given(st.lists(st.sampled_from(["++", "+-", "-+", "--"]), min_size=1), st.booleans())
def test_a_difference_is_antisymmetric(pairs, sampled):
    decoding = SAMPLED if sampled else GREEDY
    first = result("a", [pair[0] for pair in pairs], decoding=decoding)
    second = result("b", [pair[1] for pair in pairs], decoding=decoding)
    there, back = compare.difference(first, second), compare.difference(second, first)
    assert there["difference"] == -back["difference"]
    assert there["interval"] == pytest.approx([-end for end in reversed(back["interval"])])
    assert (there["improved"], there["p"]) == (back["regressed"], back["p"])


def test_the_table_has_a_line_per_result_and_the_conditions():
    compared(*MARKS)
    head, _, base, adapter, *_ = table()
    assert head[:7] == ["", "solved", "95%", "3 numbers", "10 numbers", "format", "tokens"]
    assert head[7:] == ["against base", "improved", "regressed", "p"]
    assert (base[:2], base[7:]) == (["base", "41.7%"], [""] * 4)
    assert adapter[7].startswith("+33.3 (")
    assert adapter[8:] == ["4", "0", "0.12"]
    conditions = (OUT / compare.TABLE).read_text().splitlines()[-1]
    assert conditions.startswith("12 held-out puzzles (exactly-once), greedy, at most 256 tokens;")


def test_changes_hold_both_completions():
    compared(*MARKS)
    changed = 0
    for change in jsonl.read_objects(OUT / compare.CHANGES):
        names = change["from"], change["to"]
        was, now = (MARKS[name][int(change["id"][1:])] for name in names)
        assert was + now == ("-+" if change["side"] == "improved" else "+-")
        for name, mark, side in zip(names, (was, now), ("before", "after"), strict=True):
            assert change[side]["correct"] is (mark == "+")
            assert change[side]["completion"] == f"{name} says {change['id']}"
        changed += 1
    assert changed == 4 + 4


PUZZLES = [{"nums": [n, n + 1, 7], "target": 2 * n + 8} for n in range(1, 11)]


def completed(name, puzzles, solved, samples=1, **options):
    """The evaluation of *samples* completions of each of *puzzles*, correct if *solved*."""
    lines = []
    for row in puzzles:
        text = "+".join(map(str, row["nums"])) if row["nums"][0] in solved else "1"
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
    assert [len({sample.row.id for sample in samples}) for samples in runs.by_puzzle] == [1] * 10


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (PUZZLES[:5], "5 puzzles in common, of 5 and 10"),
        ([row | {"rule": "at-most-once"} for row in PUZZLES], "0 puzzles in common"),
    ],
)
def test_results_of_other_puzzles_or_rules_are_refused(rows, words):
    group = {"a": completed("a", PUZZLES, {1}), "b": completed("b", rows, {2})}
    with pytest.raises(InputError, match=words):
        api.compare(group, out=OUT)
    assert not OUT.exists()
    with pytest.raises(InputError, match="runs 2"):
        compare.pooled("runs", [*group.values()])


def test_the_rows_without_a_completion_are_counted(run_command):
    jsonl.write_rows(Path("data.jsonl"), PUZZLES)
    for name in "ab":
        completed(name, PUZZLES[:4], {len(name)}, rows="data.jsonl", out=name)
    said = run_command("compare", "a", "b", "--out", "out")
    assert "only 4 of the 10 puzzles have completions" in said.err
    assert "4 of 10" in said.out


def test_sampled_results_are_compared_with_each_other():
    for name in ("base", "adapter"):
        made(f"{name}-sampled", MARKS[name], decoding=SAMPLED)
    rows = compared(*MARKS, "base-sampled", "adapter-sampled")["results"]
    assert [row["name"] for row in rows if "against" not in row] == ["base", "base-sampled"]
    assert [row.get("decoding") for row in rows] == [None, None, None, SAMPLED, SAMPLED]
    change = rows[4]["against"]
    assert (change["difference"], change["improved"]) == (near(4 / 12), 4)
    # Both completions of a puzzle are equal here, so pass@2 is pass@1.
    assert change["pass_at"]["2"]["difference"] == near(4 / 12)
    head, _, *lines = table()[:7]
    assert (head[5], head[-1]) == ("pass@2", "pass@2 against base or base-sampled")
    assert [line[5] for line in lines] == ["", "", "", "41.7%", "75.0%"]
    with pytest.raises(InputError, match="base-sampled and base were decoded differently"):
        compared(*MARKS, "base-sampled")


def test_every_difference_is_from_the_result_that_is_named():
    base, adapter, merged = compared(*MARKS, against="adapter")["results"]
    for row in (base, merged):
        assert row["against"]["reference"] == "adapter"
    assert base["against"]["difference"] == near(-4 / 12)
    assert "against" not in adapter
    pairs = {(change["from"], change["to"]) for change in jsonl.read_objects(OUT / compare.CHANGES)}
    assert pairs == {("adapter", "base"), ("adapter", "merged")}
    with pytest.raises(UsageError, match="other"):
        compared(*MARKS, against="other")


@pytest.fixture
def runs():
    """Three runs of two settings beside the first result."""
    sft = ("+++-+++-++--", "++++++--+---", "++---++-+--+")
    grpo = (TRAINED, "+++++++++---", MARKS["merged"])
    for name, group in (("s", sft), ("g", grpo)):
        for number, marks in enumerate(group):
            made(f"{name}{number}", marks)
    return ["base", "SFT_1=s0,s1,s2", "GRPO=g0,g1,g2"]


def test_runs_of_one_setting_are_averaged(runs):
    _, sft, grpo = compared(*runs, against="SFT_1")["results"]
    assert sft["runs"] == [near(n / 12) for n in (8, 7, 6)]
    assert (sft["accuracy"], sft["sd"]) == (near(7 / 12), near(1 / 12))
    assert sft["groups"]["numbers"]["3"]["accuracy"] == near((5 + 4 + 3) / 18)
    change = grpo["against"]
    assert change["runs"] == [near(n / 12) for n in (1, 2, 3)]
    assert (change["difference"], change["sd"]) == (near(2 / 12), near(1 / 12))
    shares = []
    for setting in "sg":
        group = [results.read(Path(f"{setting}{run}")).samples for run in range(3)]
        turns = zip(*group, strict=True)
        shares.append([sum(sample.grade.correct for sample in samples) / 3 for samples in turns])
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


def test_the_table_of_runs_has_their_standard_deviation(runs):
    compared(*runs[:2], "adapter")
    table = (OUT / compare.TABLE).read_text()
    row = next(line for line in table.splitlines() if line.startswith("| SFT_1 |"))
    assert row.startswith("| SFT_1 | 58.3% ± 8.3 | ")
    assert "| +16.7 ± 8.3 (" in row
    assert "means over runs (SFT_1: 3)" in table


@pytest.mark.parametrize("words", ["base,base", "base,copy"])
def test_one_run_given_as_two_is_refused(words):
    shutil.copytree("base", "copy")
    with pytest.raises(InputError, match="same completions"):
        compared("adapter", f"twice={words}")


@pytest.mark.parametrize("words", ["base base=adapter", "base base/", "=base", "A=", "A=base,"])
def test_settings_need_a_name_of_their_own_and_directories(words):
    with pytest.raises(UsageError, match=r"given twice|NAME=DIR"):
        compared(*words.split())


@pytest.mark.parametrize(
    ("split", "trained", "words"),
    [
        ("test", [0, 0], "12 held-out puzzles"),
        ("valid", [0, None], "12 validation puzzles"),
        ("test", [3, 0], "12 puzzles"),
        ("test", [None, None], "12 puzzles"),
    ],
)
def test_puzzles_are_called_by_their_counted_overlap_with_training(split, trained, words):
    for name, number in zip("ab", trained, strict=True):
        made(name, BASE, split=split)
        rewritten(name, overlap=None if number is None else Overlap(trained=number))
    assert tables.subject(compared("a", "b")) == words


@pytest.mark.parametrize("name", ["[2cm]", "a|b", "<script>`code`", "\x1b"])
def test_a_name_is_text_in_the_table(name):
    compare.compare({"base": [Path("base")], name: [Path("adapter")]}, OUT)
    text = (OUT / compare.TABLE).read_text()
    assert not re.search(r"<script|(?<!\\)`|(?<!\\)\[|\x1b", text)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()[:4]} == {12}


def test_invalid_inputs_are_refused_and_nothing_is_overwritten():
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


def test_grades_of_two_grammars_are_not_compared():
    rewritten("base", grammar=1)
    rewritten("adapter", grammar=2)
    with pytest.raises(InputError, match="grammar"):
        compared("base", "adapter")
    rewritten("base", grammar=None)
    compared("base", "adapter")

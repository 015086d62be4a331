"""Diagnosis: the largest cause of lost points is named, and nothing is found in a clean search."""

import json
import random
import re
import sys
from collections.abc import Iterator
from itertools import islice

import pytest

from countdown_rl.cli import main
from countdown_rl.core import artifacts
from countdown_rl.evaluation import diagnose, results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.models import reference
from countdown_rl.tasks.countdown.arithmetic import shape
from countdown_rl.tasks.countdown.expression import parse
from countdown_rl.tasks.registry import parse_row
from stages.recipes.tiny import traces
from tests.support import evaluations

MANIFEST = reference.find_model("countdown-tiny").manifest
PLAN = {int(size): ways for size, ways in MANIFEST.facts["plan"].items()}


def line(row: dict, way: str) -> traces.Line:
    return traces.execute(sorted(row["nums"], reverse=True), way, row["target"])


def hit(row: dict) -> traces.Line | None:
    """The first line of the plan that reaches the target."""
    lines = (line(row, way) for way in PLAN[len(row["nums"])][:9])
    return next((tried for tried in lines if tried.value == row["target"]), None)


def puzzles(rng: random.Random) -> Iterator[dict]:
    """Puzzles that one of the first lines of the plan solves."""
    while True:
        row = {"nums": [rng.randint(1, 60) for _ in range(rng.choice((3, 4)))], "target": rng.randint(10, 100)}
        if hit(row):
            yield row


POOL = list(islice(puzzles(random.Random(1)), 90))


def closed(text: str, answer: object = "1 + 1") -> str:
    return f"{text}\n</think>\n<answer>{answer}</answer>"


def equations(row: dict, wrong: str = "") -> str:
    """The equations of the line that reaches the target, the last of an operator wrong; "" where there is none."""
    text = hit(row).text
    if wrong:
        parts = text.rpartition(f" {wrong} ")
        text = "".join(parts[:2]) + re.sub(r"= (\d+)", lambda claim: f"= {int(claim[1]) + 1}", parts[2], count=1)
    return f"First {text}" if not wrong or parts[1] else ""


PLANTS = {
    diagnose.FORMAT: equations,
    diagnose.ANSWER: lambda row: closed(equations(row)),
    **{f"wrong {sign}": lambda row, sign=sign: (text := equations(row, sign)) and closed(text) for sign in "+-"},
    diagnose.LIMIT: lambda row: "Let me think. " * 73,
}


def evaluated(rows: list[dict], completions: list[str]) -> results.Result:
    samples = [
        Sample.of(parse_row(row), Completion(text, len(text) // 4, len(text) <= 1_000))
        for row, text in zip(rows, completions, strict=True)
    ]
    manifest = artifacts.Manifest("eval", {}, inputs={"model": {"source": "m", "kind": "model", **MANIFEST.as_input()}})
    metrics = evaluations.metrics(samples, [sample.row for sample in samples])
    return results.Result(metrics, samples, manifest=manifest)


@pytest.mark.parametrize(("seed", "cause"), enumerate(PLANTS))
def test_the_largest_of_three_planted_faults_is_named_first(seed, cause):
    rng = random.Random(seed)
    others = dict.fromkeys(rng.sample([name for name in PLANTS if name != cause], 2), 2)
    rows, texts = [], []
    for name, count in {cause: 9, **others}.items():
        drawn = rng.sample(POOL, len(POOL))
        for row, text in islice(((row, text) for row in drawn if (text := PLANTS[name](row))), count):
            rows.append(row)
            texts.append(text)
    for row in POOL[:10]:
        rows.append(row)
        texts.append(closed(equations(row), hit(row).expression))
    found = diagnose.diagnose(evaluated(rows, texts))
    assert found["lost"] == round(13 / 23, 6)
    assert found["causes"][0]["cause"] == cause
    assert found["causes"][0]["completions"] >= 9
    assert found["causes"][0]["at_most"] == (cause == diagnose.LIMIT)


def test_clean_searches_have_no_fault():
    found = diagnose.diagnose(evaluated(POOL, [closed(equations(row), hit(row).expression) for row in POOL]))
    assert (found["lost"], found["causes"], found["unexplained"]) == (0, [], 0)
    assert all(step["written"] > 10 and step["wrong"] == 0 for step in found["steps"].values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n0 0 0\n1. 0 / 0 no\n",
        f"\n{'9' * 9_000} 1 2\n{'1' * 9_000}. 3 + 4 = 7 no\n",
        "\n3 2 1\n0. 3 / 0 = 1 no\n99. 3 - 2 yes\n",
        "x</think>\n9. 9 + 9 = 9 yes\n</think>",
        " ".join(f"{n} + {n} + {n} = {n + 1}" for n in range(4, 150)),  # each substituted thrice in the next
    ],
)
def test_any_text_can_be_diagnosed(text):
    found = diagnose.diagnose(evaluated([{"nums": [1, 2, 3], "target": 7}], [text]))
    assert found["lost"] == 1


def test_shapes_are_those_of_the_expressions_needed():
    rows = [{"nums": [1, 2, 3], "target": 6}, {"nums": [50, 48, 20, 7], "target": 54}]
    found = diagnose.diagnose(evaluated(rows, [closed("", "1 + 2 + 3"), "nothing"]))["shapes"]
    assert [row["points"] for row in found] == [0.5, 0]
    assert found[1]["accuracy"] == 1
    assert shape(parse("7 * (3 - (4 - 1))").tree) == "(n ± n ± n) × n"
    assert shape(parse("8 / 2 - 3 * 5").tree) == "n × n ± n × n"


def test_the_command_prints_causes_of_several_evaluations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "adapter"):
        found = evaluated(POOL[:9], [PLANTS[diagnose.ANSWER](row) for row in POOL[:9]])
        with artifacts.writing(tmp_path / name, "eval", options={}, inputs=found.manifest.inputs) as draft:
            results.write(draft.path, found.metrics, found.samples)
    for words in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["countdown-rl", "diagnose", "base", "adapter", *words])
        with pytest.raises(SystemExit) as done:
            main.main()
        assert not done.value.code
        printed = capsys.readouterr().out
        if words:
            assert json.loads(printed)["base"]["causes"][0]["cause"] == diagnose.ANSWER
    assert diagnose.ANSWER in printed

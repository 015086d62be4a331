"""Diagnosis: the largest cause of lost points is named, and nothing is found in a clean search."""

import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

import pytest

from countdown_rl import artifacts
from countdown_rl.cli import main
from countdown_rl.evaluation import diagnose, metrics, results
from countdown_rl.models import reference
from countdown_rl.puzzle.canonical import shape
from countdown_rl.puzzle.expression import parse
from countdown_rl.tasks import reading
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tiny import execution, traces

MANIFEST = reference.resolve("countdown-tiny").manifest
PLAN = {int(size): ways for size, ways in MANIFEST.facts["plan"].items()}
TOKENS = 256
CHARACTERS = 4 * TOKENS  # in these tests a token has four characters


def puzzles(rng: random.Random) -> Iterator[dict]:
    """Puzzles that the plan in order solves in a few lines, but not in its first two."""
    while True:
        row = {"nums": [rng.randint(1, 60) for _ in range(rng.choice((3, 4)))], "target": rng.randint(10, 100)}
        if True in (reaching := traces.reaching(row, PLAN)) and 2 <= reaching.index(True) < 9:
            yield row


POOL = list(islice(puzzles(random.Random(1)), 90))


def line(row: dict, way: int) -> traces.Line:
    return traces.execute(sorted(row["nums"], reverse=True), PLAN[len(row["nums"])][way], row["target"])


def search(row: dict, end: str = "", *, lines: int = 2) -> str:
    """The heading, the first *lines* of the plan, none of which reaches the target, and the text *end*."""
    tried = (traces.written(way, line(row, way), reached=False) for way in range(lines))
    return traces.heading(sorted(row["nums"], reverse=True)) + "".join(tried) + end


def clean(row: dict) -> str:
    way = traces.reaching(row, PLAN).index(True)
    return search(row, traces.written(way, line(row, way), reached=True), lines=way)


def hit(row: dict) -> traces.Line:
    """The line that reaches the target."""
    return line(row, traces.reaching(row, PLAN).index(True))


def misses(row: dict, start: int = 0) -> list[str]:
    """Lines that do not reach the target, without number and verdict."""
    ways = enumerate(traces.reaching(row, PLAN)[start:], start)
    return [f"{way + 1}. {line(row, way).text}" for way, reached in ways if not reached]


def cut(text: str) -> str:
    return text[:CHARACTERS]


def closed(text: str, answer: object = "1 + 1") -> str:
    return f"{text}\n</think>\n<answer>{answer}</answer>"


def wrong_step(operator: str):
    def plant(row: dict) -> str:
        """The last step of the third line claims the target; any line of the plan with that operator will do."""
        last = re.compile(rf"(.*\d \{operator} \d+ = )\d+")
        matches = [match[1] for miss in misses(row, 2) if (match := last.fullmatch(miss))]
        return search(row, closed(f"{matches[0]}{row['target']} yes")) if matches else ""

    return plant


def missed_yes(row: dict) -> str:
    text = clean(row).partition(" yes")[0] + " no\n"
    return cut(text + "".join(f"{miss} no\n" for miss in misses(row, traces.reaching(row, PLAN).index(True))))


def heading(row: dict) -> str:
    others = {"nums": [max(row["nums"]) + 5, *sorted(row["nums"], reverse=True)[1:]], "target": row["target"]}
    return clean(others) if any(traces.reaching(others, PLAN)[:9]) else ""


PLANTS = {
    **{f"wrong {operator}": wrong_step(operator) for operator in "+-*/"},
    execution.REPEAT: lambda row: cut(search(row) + f"{misses(row)[0]} no\n" * 99),
    execution.OTHER: lambda row: search(row, closed(f"3. {row['target'] - 1} + 1 = {row['target']} yes")),
    execution.MALFORMED: lambda row: cut(search(row) + "3. 4 + 4 and so on\n" * 99),
    execution.WRONG_YES: lambda row: search(row, closed(f"{misses(row, 2)[0]} yes")),
    execution.MISSED_YES: missed_yes,
    execution.END: lambda row: search(row, closed("").lstrip("\n")),
    reading.ANSWER: lambda row: re.sub("<answer>.*<", "<answer>1 + 1<", clean(row)),
    execution.HEADING: heading,
    reading.LIMIT: lambda row: cut(search(row, "".join(f"{miss} no\n" for miss in misses(row, 2)))),
}


def equations(row: dict, wrong: str = "") -> str:
    """Another language: the equations of the line that reaches the target, the last of an operator wrong."""
    text = hit(row).text
    if wrong:
        parts = text.rpartition(f" {wrong} ")
        text = "".join(parts[:2]) + re.sub(r"= (\d+)", lambda claim: f"= {int(claim[1]) + 1}", parts[2], count=1)
    return f"First {text}" if not wrong or parts[1] else ""


OTHER_PLANTS = {
    reading.FORMAT: equations,
    reading.ANSWER: lambda row: closed(equations(row)),
    **{f"wrong {sign}": lambda row, sign=sign: (text := equations(row, sign)) and closed(text) for sign in "+-"},
    reading.LIMIT: lambda row: "Let me think. " * 73,
}


def evaluated(rows: list[dict], completions: list[str], plan: object = PLAN) -> results.Result:
    samples = []
    for row, text in zip(rows, completions, strict=True):
        truncated = len(text) >= CHARACTERS - 3
        grade = asdict(parse_row(row).grade(text))
        samples.append(row | {"completion": text} | grade | {"tokens": len(text) // 4, "truncated": truncated})
    entry = MANIFEST.as_input() if plan else {"digest": MANIFEST.digest}
    model = {"source": "m", "kind": "model", **entry}
    manifest = artifacts.Manifest("eval", {}, inputs={"model": model})
    return results.Result(
        {"decoding": {"max_new_tokens": TOKENS}, "model": {"kind": "model"}}, samples, manifest=manifest
    )


CASES = [(name, PLAN, PLANTS) for name in PLANTS] + [(name, None, OTHER_PLANTS) for name in OTHER_PLANTS]
CASES += [(name, PLAN, PLANTS) for name in ("wrong *", execution.REPEAT)]


@pytest.mark.parametrize(("seed", "cause", "plan", "plants"), [(seed, *case) for seed, case in enumerate(CASES)])
def test_the_largest_of_three_planted_faults_is_named_first(seed, cause, plan, plants):
    rng = random.Random(seed)
    other = dict.fromkeys(rng.sample([name for name in plants if name != cause], 2), 2)
    rows, texts = [], []
    for name, count in {cause: 9, **other}.items():
        drawn = rng.sample(POOL, len(POOL))
        for row, text in islice(((row, text) for row in drawn if (text := plants[name](row))), count):
            rows.append(row)
            texts.append(text)
    for row in POOL[:10]:
        rows.append(row)
        texts.append(clean(row) if plan else closed(equations(row), hit(row).expression))
    found = diagnose.diagnose(evaluated(rows, texts, plan))
    assert found["lost"] == round(13 / 23, 6)
    assert found["causes"][0]["cause"] == cause
    assert found["causes"][0]["completions"] >= 9


def test_clean_searches_have_no_fault():
    found = diagnose.diagnose(evaluated(POOL, [clean(row) for row in POOL]))
    assert (found["lost"], found["causes"], found["unexplained"]) == (0, [], 0)
    assert all(step["written"] > 10 and step["wrong"] == 0 for step in found["steps"].values())


@pytest.mark.parametrize("plan", [PLAN, None])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n1 2 3\n",
        "\n0 0 0\n1. 0 / 0 no\n",
        f"\n{'9' * 9_000} 1 2\n{'1' * 9_000}. 3 + 4 = 7 no\n",
        "\n3 2 1\n0. 3 / 0 = 1 no\n99. 3 - 2 yes\n",
        "x</think>\n9. 9 + 9 = 9 yes\n</think>",
        " ".join(f"{n} + {n} + {n} = {n + 1}" for n in range(4, 150)),  # each substituted thrice in the next
    ],
)
def test_any_text_can_be_diagnosed(text, plan):
    found = diagnose.diagnose(evaluated([{"nums": [1, 2, 3], "target": 7}], [text], plan))
    assert found["lost"] == 1


def test_a_repair_must_fit_the_token_budget():
    row = POOL[0]
    late = search(row, closed(f"{misses(row, 2)[0]} yes"))
    trace = execution.read(late, row, PLAN)
    assert trace.repaired(execution.WRONG_YES, 2 * CHARACTERS)
    assert not trace.repaired(execution.WRONG_YES, len(late) - 5)


def test_the_teacher_is_counted_line_by_line():
    result = evaluated(POOL, [clean(row) for row in POOL])
    shares = diagnose.diagnose(result)["solved_within"]["all"]
    assert shares["model"] == shares["plan in order"]  # a clean search follows the plan
    assert shares["model"]["1"] == 0
    assert shares["model"]["32"] == 1
    reaching = [index in (1, 5) for index in range(60)]  # two ways a line: 1 or 2 first, then a step of 1 or 2
    (exact,) = traces.solved_by_line([reaching], 4)
    assert exact[:2] == [0.5, 0.75]
    rng = random.Random(3)
    drawn = []
    for _ in range(4_000):
        way, line_ = None, 0
        while way is None or (not reaching[way] and line_ < 4):
            way, line_ = rng.choice(traces.next_ways(way, 60)), line_ + 1
        drawn.append(line_ if reaching[way] else 9)
    assert exact == pytest.approx([sum(at <= count for at in drawn) / len(drawn) for count in (1, 2, 3, 4)], abs=0.04)


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
        found = evaluated(POOL[:9], [PLANTS[execution.REPEAT](row) for row in POOL[:9]])
        values = (
            metrics.measure(found.samples, list(map(parse_row, POOL[:9])))
            | found.metrics
            | {"model": {"source": name, "kind": "model"}, "data": {"file": "f", "digest": "d"}}
        )
        with artifacts.writing(tmp_path / name, "eval", options={}, inputs=found.manifest.inputs) as draft:
            results.write(draft.path, values, found.samples)
    for words in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["countdown-rl", "diagnose", "base", "adapter", *words])
        with pytest.raises(SystemExit) as done:
            main.main()
        assert not done.value.code
        printed = capsys.readouterr().out
        if words:
            assert json.loads(printed)["base"]["causes"][0]["cause"] == execution.REPEAT
            assert set(json.loads(printed)["adapter"]["solved_within"]["all"]) == {"model", "teacher", "plan in order"}
    assert "repeated line" in printed
    assert "plan in order" in printed

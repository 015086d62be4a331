"""Diagnosis: the largest cause of lost points is named, and nothing is found in clean work."""

import json
import re
from pathlib import Path

import pytest

from countdown_rl.evaluation import diagnose, results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations

ROW = {"nums": [3, 7, 50], "target": 46}
WORK = "50 - 7 = 43\n43 + 3 = 46"
RIGHT = f"{WORK}\n</think>\n<answer>50 - 7 + 3</answer>"
#: A completion that is wrong by one fault.
FAULTS = {
    diagnose.FORMAT: WORK,
    diagnose.ANSWER: f"{WORK}\n</think>\n<answer>50 - 7 - 3</answer>",
    "incorrect -": "50 - 7 = 44\n44 + 3 = 47\n</think>\n<answer>50 - 7 - 3</answer>",
    "incorrect +": "50 - 7 = 43\n43 + 3 = 47\n</think>\n<answer>50 - 7 - 3</answer>",
    diagnose.LIMIT: "Let me think. ",
}


def evaluated(texts, row=ROW):
    samples = []
    for text in texts:
        completion = Completion(text, len(text), text != FAULTS[diagnose.LIMIT])
        samples.append(Sample.of(parse_row(row), completion))
    return results.Result(evaluations.metrics(samples), samples)


@pytest.mark.parametrize("cause", FAULTS)
def test_the_largest_of_several_faults_is_named_first(cause):
    report = diagnose.diagnose(evaluated([FAULTS[cause]] * 2 + [*FAULTS.values()] + [RIGHT]))
    assert report["lost"] == round(7 / 8, 6)
    assert (report["causes"][0]["cause"], report["causes"][0]["points"]) == (cause, 3 / 8)
    assert [row["points"] for row in report["causes"]] == [3 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
    assert {row["cause"] for row in report["causes"] if row["at_most"]} == {diagnose.LIMIT}
    assert report["unexplained"] == 0


def test_clean_work_has_no_fault_and_two_faults_are_unexplained():
    report = diagnose.diagnose(
        evaluated([RIGHT, "50 - 7 = 44\n44 + 3 = 48\n</think>\n<answer>50 - 7 - 3</answer>"])
    )
    assert (report["lost"], report["unexplained"]) == (0.5, 0.5)
    assert diagnose.diagnose(evaluated([RIGHT]))["causes"] == []


@pytest.mark.parametrize("work", ["", "hm", "50 - 7 = 43\n43 - 3 = 40", "50 - 7 - 3 = 40"])
def test_an_answer_that_no_work_contradicts_is_unexplained(work):
    report = diagnose.diagnose(evaluated([f"{work}\n</think>\n<answer>50 - 7 - 3</answer>"]))
    assert (report["causes"], report["unexplained"]) == ([], 1)


#: Equations each of which is substituted thrice in the next.
NESTED = " ".join(f"{n} + {n} + {n} = {n + 1}" for n in range(4, 150))


@pytest.mark.parametrize(
    "text", [f"\n{'9' * 9_000} 1 2\n{'1' * 9_000}. 3 + 4 = 7 no\n0 / 0 no\n", NESTED]
)
def test_any_text_can_be_diagnosed(text):
    assert diagnose.diagnose(evaluated([text], {"nums": [1, 2, 3], "target": 7}))["lost"] == 1


def test_the_command_prints_causes(here, run_command):
    result = evaluated([FAULTS[diagnose.ANSWER]] * 9 + [f"3 + 7 = 11\n{RIGHT}"])
    evaluations.write(Path("base"), result.metrics, result.samples)
    shown = run_command("samples", "base", "--errors").out
    report = json.loads(run_command("samples", "base", "--errors", "--json").out)
    assert report["causes"][0]["cause"] == diagnose.ANSWER
    assert diagnose.ANSWER in shown
    assert re.search(r"incorrect sum +0.0", shown)

"""Training curves as SVG: every measured quantity, all points inside, the same bytes for the same log."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.release.report import charts
from countdown_rl.tasks.countdown.task import TASK
from tests.support.runs import steps


def curves(*rows: list[StepRow]) -> list[charts.Curve]:
    return charts.curves({f"run {index}": [log] for index, log in enumerate(rows)}, TASK)


def test_markup_in_the_name_of_a_group_or_a_run_is_text():
    name = 'correct_needs_"><script>alert(1)</script>'
    rows = [replace(row, groups={name: row.correct}) for row in steps(5)]
    drawn = charts.curves({name + "\x01\x1b]0;x\x07": [rows], "b": [rows]}, TASK)
    picture = charts.picture(drawn)
    assert "&lt;script&gt;" in picture
    assert "<script>" not in picture
    assert not list(ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}script"))


def test_a_long_log_is_thinned_and_all_points_lie_inside_the_chart():
    drawn = curves([replace(row, entropy=row.correct) for row in steps(5_000)])
    (content,) = (curve.content for curve in drawn if curve.title == "Entropy")
    line = re.search(r'class="mean c0" d="([^"]*)"', content)[1]
    points = re.findall(r"[ML]([\d.]+) ([\d.]+)", line)
    assert 20 < len(points) <= charts.POINTS
    assert all(charts.LEFT <= float(x) <= charts.WIDTH for x, _ in points)
    assert all(charts.TOP <= float(y) <= charts.HEIGHT for _, y in points)


def test_accuracy_comes_first_and_what_is_constant_has_no_chart():
    rows = [
        replace(row, reward=row.correct, eval_correct=row.correct / 2, grad_norm=math.inf)
        for row in steps(5)
    ]
    shown = curves(rows)
    assert [curve.title for curve in shown] == ["Validation accuracy", "Completions", "Reward"]
    assert all("nan" not in curve.content for curve in shown)


@pytest.mark.parametrize(
    ("title", "groups", "names"),
    [
        (
            "Reward",
            {"rewards/format/mean": 0.5, "rewards/my:short/mean": 0.25},
            ["weighted sum", "format", "my:short"],
        ),
        (
            "Solved by count of numbers",
            {"correct_numbers_3": 1.0, "correct_numbers_4": 0.5, "correct_needs_mul-div": None},
            ["3 numbers", "4 numbers"],
        ),
    ],
)
def test_rewards_and_groups_are_lines_of_one_chart(title, groups, names):
    (curve,) = (curve for curve in curves(steps(3, groups=groups)) if curve.title == title)
    legend = re.findall(r"<text x[^>]*>([^<]* → [^<]*)</text>", curve.content)
    assert [line.rsplit(" ", 3)[0] for line in legend] == names

"""Training curves as SVG: every measured quantity, all points inside, the same bytes for the same log."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.errors import InputError
from countdown_rl.report import charts
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog.log import StepRow


def steps(count: int, **values) -> list[StepRow]:
    usual = dict.fromkeys(trainlog.COLUMNS[1:], 0.5) | {"kl": None, "eval_correct": None} | values
    return [StepRow(step, **(usual | {"correct": step / count})) for step in range(1, count + 1)]


def test_unmeasured_quantities_have_no_chart():
    drawn = charts.curves(steps(5))
    assert "KL from the initial model" not in [curve.title for curve in drawn]
    assert [curve.title for curve in charts.curves(steps(5, kl=0.1))].count("KL from the initial model") == 1
    assert drawn[0].title == "Share solved"
    assert len(charts.curves(steps(1))[0].svg) > 0


def test_groups_have_charts_of_their_own():
    drawn = charts.curves(steps(5, groups={"correct_numbers_3": 0.5, "correct_needs_mul-div": None}))
    assert [curve.subtitle for curve in drawn if curve.title == "Share solved"][1:] == ["numbers 3"]


def test_markup_in_the_name_of_a_group_is_text(tmp_path):
    name = 'correct_needs_"><script>alert(1)</script>'
    rows = steps(5, groups={name: 0.5})
    picture = charts.picture(rows)
    assert "<script>" not in picture
    assert not list(ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}script"))
    assert all("<script>" not in curve.svg for curve in charts.curves(rows))
    trainlog.write(tmp_path / "log.csv", rows)
    with pytest.raises(InputError, match="script"):
        trainlog.read(tmp_path / "log.csv")


@pytest.mark.parametrize("rows", [steps(1), steps(2, entropy=None), steps(300, groups={"correct_needs_add-sub": 0.5})])
def test_the_picture_is_one_well_formed_file_with_every_chart(rows):
    picture = charts.picture(rows)
    assert picture == charts.picture(rows)
    root = ElementTree.fromstring(picture)
    inner = root.findall("{*}svg")
    assert len(inner) == len(charts.curves(rows))
    height = float(root.get("viewBox").split()[3])
    assert all(0 <= float(part.get("y")) <= height - charts.HEIGHT for part in inner)
    assert 'class="stop"' not in picture
    assert picture != charts.picture(steps(7))


def test_a_long_log_is_thinned_and_all_points_lie_inside_the_chart():
    (curve, *_) = charts.curves(steps(5_000))
    points = re.findall(r"[ML]([\d.]+) ([\d.]+)", re.search(r'class="raw" d="([^"]*)"', curve.svg)[1])
    assert 100 < len(points) <= charts.POINTS
    assert all(charts.LEFT <= float(x) <= charts.WIDTH - charts.RIGHT for x, _ in points)
    assert all(charts.TOP <= float(y) <= charts.HEIGHT - charts.BOTTOM for _, y in points)
    assert curve.svg.count('class="stop"') <= charts.READOUTS
    assert points[-1] == (f"{charts.WIDTH - charts.RIGHT:.1f}", f"{charts.TOP:.1f}")


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_even_and_span_all_values(low, span):
    marks = charts.ticks(low, low + span)
    gaps = [after - before for before, after in pairwise(marks)]
    assert marks[0] <= low + 1e-6 * span
    assert marks[-1] >= low + span - 1e-6 * span
    assert max(gaps) == pytest.approx(min(gaps), rel=1e-3)
    assert 2 <= len(marks) <= 7


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=200))
def test_smoothing_keeps_steps_and_bounds(values):
    series = list(enumerate(values, 1))
    smooth = charts.smoothed(series)
    assert [step for step, _ in smooth] == [step for step, _ in series]
    assert all(min(values) - 1e-9 <= value <= max(values) + 1e-9 for _, value in smooth)

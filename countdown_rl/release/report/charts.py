"""Curves as SVG, for the report, whose style sheet has the colors, and for cards and papers."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from countdown_rl.core.formatting import percent, printable
from countdown_rl.evaluation.training_log import GROUP, StepRow, thinned
from countdown_rl.release.templates import html_templates
from countdown_rl.tasks.task import Task

#: Size of a chart without a legend, and its margins.
WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 12, 38
#: Limit on the points of a line: further steps are averaged.
POINTS = 30
#: Heights of a chart's title in a picture, and of a row of a legend.
_TITLE, _ROW = 40, 16
#: Styles of lines: the classes c0, c1 and so on, which have colors and dashes.
STYLES = 5
Log = Sequence[StepRow]
Series = list[tuple[int, float]]


class Line(NamedTuple):
    """A line of a chart: the mean of seeds, and the outline of the range of several."""

    name: str
    style: int
    mean: Series
    range: Series


class Curve(NamedTuple):
    """A chart: the format of its values and the names of its columns; once drawn, its SVG.

    A *main* chart is not folded. *change* is the first and last value of a single line.
    """

    title: str
    subtitle: str
    text: Callable[[float], str]
    columns: dict[str, str]
    main: bool = False
    change: str = ""
    height: int = 0
    content: str = ""


def _number(value: float) -> str:
    mantissa, exponent_sign, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent_sign else mantissa


#: Names of the lines of two charts, by column.
_SAMPLED = {"correct": "solved", "format": "correct format"}
_KL = {"kl": "KL in training", "eval_kl": "KL on validation"}
_ACCURACY = (
    Curve("Validation accuracy", "share solved", percent, {"eval_correct": ""}, main=True),
    Curve("Completions", "share of those sampled", percent, _SAMPLED, main=True),
)
_REWARD = Curve("Reward", "mean over completions", _number, {"reward": ""}, main=True)
_HACKING = "incorrect, but a proxy reward is 1"
_ZERO_STD = {"frac_reward_zero_std": ""}
_MAIN = (
    Curve("KL from the initial policy", "nats per token", _number, _KL, main=True),
    Curve("Reward hacking", _HACKING, percent, {"hacking": ""}, main=True),
    Curve("Entropy", "nats per token", _number, {"entropy": ""}, main=True),
    Curve("Length", "mean tokens per completion", _number, {"mean_length": ""}, main=True),
    Curve("Zero-std groups", "groups with equal rewards", percent, _ZERO_STD, main=True),
)
_RATIO = {"importance_sampling_ratio": ""}
_FOLDED = (
    Curve("Truncated", "share at the length limit", percent, {"truncated": ""}),
    Curve("Importance sampling ratio", "policy to vLLM", _number, _RATIO),
    Curve("Gradient norm", "before clipping", _number, {"grad_norm": ""}),
    Curve("Seconds per step", "generation, rewards and loss", _number, {"seconds": ""}),
)


def curves(runs: Mapping[str, Sequence[Log]], task: Task) -> list[Curve]:
    """Draw the charts of a training: accuracy first, then reward, then all else that changes.

    A single run has related quantities in one chart. Of several, each quantity has a chart with a
    line a run.

    Args:
        runs: the logs of the seeds of each run, by its name.
        task: names the groups of rows, of which the logs have the accuracy.
    """
    logs = list(chain.from_iterable(runs.values()))
    every = math.ceil(max((log[-1].step for log in logs), default=0) / POINTS)
    columns = set[str]()
    for row in chain.from_iterable(logs):
        columns.update(row.groups)

    several = len(runs) > 1
    panels = _panels(sorted(columns), task)
    if several:
        panels = _single(panels)
    charts = []
    for panel in panels:
        lines = []
        values = set[float]()
        for index, (run, seeds) in enumerate(runs.items()):
            for offset, (column, name) in enumerate(panel.columns.items()):
                mean, outline = _series(seeds, column, every)
                label = run if several else name
                style = (index + offset) % STYLES  # there are several runs or several columns
                if mean:
                    lines.append(Line(label, style, mean, outline))
                    values.update(value for _, value in mean + outline)
        if len(values) > 1:
            charts.append(draw(panel, lines))
    return charts


def _panels(columns: Sequence[str], task: Task) -> list[Curve]:
    """Return the charts of a log, which has the group *columns*, in their order on the page."""
    rewards = {}
    for name in columns:
        if name.endswith("/mean"):  # rewards/NAME/mean
            rewards[name] = name.split("/")[1]
    reward = _REWARD
    if rewards:
        reward = _REWARD._replace(columns={"reward": "weighted sum", **rewards})
    return [*_ACCURACY, reward, *_MAIN, *_groups(columns, task), *_FOLDED]


def _groups(columns: Sequence[str], task: Task) -> list[Curve]:
    """Return a chart for each group of rows of which *columns* have several values."""
    names: dict[str, dict[str, str]] = {group: {} for group in task.groups}
    for column in columns:
        if column.startswith(GROUP):
            group, _, value = column.removeprefix(GROUP).partition("_")
            names.setdefault(group, {})[column] = task.group(group).name(value)
    charts = []
    for group, lines in names.items():
        if len(lines) > 1:
            title = f"Solved by {task.group(group).title.lower()}"
            charts.append(Curve(title, "share of those sampled", percent, lines))
    return charts


def _single(panels: Sequence[Curve]) -> list[Curve]:
    """Return a chart for each column of *panels*."""
    charts = []
    for panel in panels:
        for column, name in panel.columns.items():
            title = name[:1].upper() + name[1:] or panel.title
            charts.append(panel._replace(title=title, columns={column: ""}))
    return charts


def picture(charts: Sequence[Curve]) -> str:
    """Return *charts* in two columns, or one alone, as one SVG file."""
    height = _TITLE + max(curve.height for curve in charts)
    rows = [charts[index : index + 2] for index in range(0, len(charts), 2)]
    text = _drawn("picture", rows=rows, width=WIDTH, height=height, title=_TITLE, style="@STYLE@")
    style = Path(__file__).with_name("charts.css").read_text("utf-8")
    return printable(text.replace("@STYLE@", f"\n{style}")) + "\n"


def _drawn(section: str, **variables: object) -> str:
    """Return the *section* of the template ``chart.svg.jinja``, in one line."""
    template = html_templates().get_template("release/report/chart.svg.jinja")
    lines = template.render(section=section, **variables).splitlines()
    return "".join(map(str.strip, lines))


def ticks(low: float, high: float) -> list[float]:
    """Return round values from at most *low* to at least *high*, about four steps apart."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= 4)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(step * index, 12) for index in range(first, last + 1)]


def _series(seeds: Sequence[Log], column: str, every: int) -> tuple[Series, Series]:
    """Return the mean of *column* over *seeds* at the steps of all, and the outline of their range.

    Both are empty without values, and the outline with a single seed. A point is the mean of
    *every* steps.
    """
    points = [_points(log, column, every) for log in seeds]
    measured = list(filter(None, points))
    if not measured:
        return [], []
    mean = Series()
    low = Series()
    high = Series()
    for step in sorted(set.intersection(*map(set, measured))):
        values = [seed[step] for seed in measured]
        mean.append((step, fmean(values)))
        low.append((step, min(values)))
        high.append((step, max(values)))
    outline = low + high[::-1]
    return mean, outline if len(measured) > 1 else []


def _points(log: Log, column: str, every: int) -> dict[int, float]:
    """Return the values of *column* by step, means of *every* steps except for validations."""
    validation = column == "eval_correct"
    points = {}
    if validation and log[0].eval_correct_before is not None:
        points[0] = log[0].eval_correct_before
    for row in log if validation else thinned(log, every):
        value = row.groups.get(column, getattr(row, column, None))
        if value is not None and math.isfinite(value):  # the gradients of a divergence have no norm
            points[row.step] = value
    return points


def draw(panel: Curve, lines: Sequence[Line], unit: str = "step") -> Curve:
    """Return *panel* drawn, with ranges as bands; the vertical axis begins at zero or lower."""
    text = panel.text
    labels = []
    for line in lines:
        first_value, last_value = line.mean[0][1], line.mean[-1][1]
        labels.append(f"{line.name} {text(first_value)} → {text(last_value)}".strip())
    legend = labels if lines[0].name else []

    points = chain.from_iterable(line.mean + line.range for line in lines)
    places, values = zip(*points, strict=True)
    marks = ticks(min(0.0, *values), max(values))
    first = 0 if unit == "step" else min(places)
    last = max(places)
    top = TOP + _ROW * len(legend)
    bottom = top + HEIGHT - TOP - BOTTOM
    right = WIDTH - RIGHT

    def x(step: float) -> float:
        share = (step - first) / (last - first) if last > first else 0.5
        return LEFT + (right - LEFT) * share

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - marks[0]) / (marks[-1] - marks[0])

    # The template draws bands side by side over the whole chart, with the values at each step.
    series = [dict(line.mean) for line in lines]
    bands = {}
    for step in sorted(set().union(*series)):
        bands[step] = ", ".join(text(line[step]) for line in series if step in line)

    is_share = text(0).endswith("%")
    content = _drawn(
        "content",
        marks=[(mark, f"{100 * mark:g}%" if is_share else _number(mark)) for mark in marks],
        steps={first: "start", (first + last) // 2: "middle", last: "end"},
        lines=lines,
        legend=[(TOP + _ROW * index, label) for index, label in enumerate(legend)],
        bands=bands,
        left=LEFT, right=right, top=top, bottom=bottom, unit=unit, x=x, y=y,
    )  # fmt: skip
    change = "" if legend else labels[0]
    return panel._replace(change=change, height=bottom + BOTTOM, content=content)

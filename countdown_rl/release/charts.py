"""Curves as SVG: for the report, whose style sheet has the colours, and as pictures for cards and papers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from countdown_rl.core.formatting import html_templates, percent, printable
from countdown_rl.evaluation.sample import Figures
from countdown_rl.tasks.task import Task
from countdown_rl.training.log import GROUP, StepRow, thinned

#: Of a chart without a legend.
WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 12, 26
#: Height of the axes.
PLOT = HEIGHT - TOP - BOTTOM
#: Limits on the points of a line, and on the places where a value can be read.
POINTS, READOUTS = 240, 60
#: Heights of a chart's title in a picture, and of a row of a legend.
_TITLE, _ROW = 34, 16
#: Dashes of the lines of a chart, whose colours are those of the classes c0, c1 and so on.
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4")
_STYLE = Path(__file__).with_name("charts.css").read_text("utf-8")

Log = Sequence[StepRow]
Series = list[tuple[int, float]]
Formatter = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A line of a chart: the smoothed mean of seeds, the outline of the range of several, and the values of one."""

    name: str
    style: int
    mean: Series
    range: Series
    values: Series

    @property
    def dashes(self) -> str:
        return _DASHES[self.style]


@dataclass(frozen=True)
class Curve:
    """A chart: title, subtitle, first and last value of a single line, content of its SVG, and readouts for a page."""

    title: str
    subtitle: str
    change: str
    height: int
    content: str
    readouts: str
    width: int = WIDTH


def _number(value: float) -> str:
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


#: Title and subtitle of a chart, the format of its values, and the names of its columns.
_Panel = tuple[str, str, Formatter, dict[str, str]]
_PANELS: tuple[_Panel, ...] = (
    ("Validation accuracy", "share solved", percent, {"eval_correct": ""}),
    ("Completions", "share of those sampled", percent, {"correct": "solved", "format": "format kept"}),
    ("Reward", "mean over completions", _number, {"reward": ""}),
    ("Reward hacking", "share wrong, but paid by a proxy reward", percent, {"hacking": ""}),
    ("Length", "mean tokens per completion", _number, {"mean_length": ""}),
    ("Truncated", "share at the length limit", percent, {"truncated": ""}),
    ("Equal rewards", "share of groups", percent, {"frac_reward_zero_std": ""}),
    ("Entropy", "nats per token, rows with advantage", _number, {"entropy": ""}),
    ("KL from the initial model", "nats per token", _number, {"kl": ""}),
    ("Importance sampling ratio", "of the policy to vLLM, mean", _number, {"importance_sampling_ratio": ""}),
    ("Gradient norm", "before clipping", _number, {"grad_norm": ""}),
    ("Seconds per step", "generation, rewards and loss", _number, {"seconds": ""}),
)


def curves(runs: Mapping[str, Sequence[Log]], task: Task) -> list[Curve]:
    """The charts of *runs*, each the logs of its seeds: validation accuracy, the groups of *task*, all else measured.

    A single run has related quantities in one chart. Of several, each quantity has a chart with a line a run.
    """
    logs = [log for seeds in runs.values() for log in seeds]
    every = math.ceil(max(log[-1].step for log in logs) / POINTS)
    points = {run: [thinned(log, every) for log in seeds] for run, seeds in runs.items()}
    panels = [_PANELS[0], *_groups(logs, task), *_PANELS[1:]]
    if all(row.reward == row.correct for log in logs for row in log):
        panels = [panel for panel in panels if panel[0] != "Reward"]  # it would repeat the share solved
    if len(runs) > 1:
        panels = [
            (name[:1].upper() + name[1:] or title, subtitle, text, {column: ""})
            for title, subtitle, text, columns in panels
            for column, name in columns.items()
        ]
    charts = []
    for title, subtitle, text, columns in panels:
        lines = [
            _line(run if len(runs) > 1 else name, style, seeds, column)
            for style, ((run, seeds), (column, name)) in enumerate(product(points.items(), columns.items()))
        ]
        if measured := [line for line in lines if line]:
            charts.append(_curve(title, subtitle, text, measured))
    return charts


def coverage(evaluations: Mapping[str, Figures], counts: Sequence[int]) -> Curve:
    """The chart of pass@k against the mean tokens of k completions, for each k of *counts*.

    Args:
        evaluations: metrics with ``pass_at``, by name.
    """
    lines = []
    for style, (name, metrics) in enumerate(evaluations.items()):
        points = [(round(k * (metrics.mean_tokens or 0)), metrics.pass_at[k].share) for k in counts]
        lines.append(Line(name, style % len(_DASHES), points, [], []))
    return _curve("Solved by tokens spent", f"pass@k, k = {', '.join(map(str, counts))}", percent, lines, "tokens")


def budgets(evaluations: Mapping[str, Figures]) -> Curve | None:
    """The chart of accuracy by token limit, for *evaluations* with several limits; None if there are none."""
    scored = {name: metrics.budgets for name, metrics in evaluations.items() if metrics.budgets}
    lines = [
        Line(name, style % len(_DASHES), [(limit, budget.accuracy) for limit, budget in limits.items()], [], [])
        for style, (name, limits) in enumerate(scored.items())
    ]
    return _curve("Solved by token limit", "the same completions, cut", percent, lines, "tokens") if lines else None


def _groups(logs: Sequence[Log], task: Task) -> list[_Panel]:
    """The charts of the groups with several values."""
    groups: dict[str, dict[str, str]] = {name: {} for name in task.groups}
    for column in sorted({name for log in logs for row in log for name in row.groups}):
        group, _, value = column.removeprefix(GROUP).partition("_")
        groups.setdefault(group, {})[column] = task.group(group).name(value)
    return [
        (f"Solved by {task.group(group).title.lower()}", "share solved of those sampled", percent, columns)
        for group, columns in groups.items()
        if len(columns) > 1
    ]


def picture(charts: Sequence[Curve]) -> str:
    """*charts* in two columns, or one alone, as one SVG file; the same charts give the same text."""
    columns, pitch = min(2, len(charts)), _TITLE + max(curve.height for curve in charts)
    places = [(index % columns * WIDTH, index // columns * pitch + _TITLE) for index in range(len(charts))]
    size = (columns * WIDTH, math.ceil(len(charts) / columns) * pitch)
    text = _drawn("picture", charts=list(zip(charts, places, strict=True)), size=size, style="@STYLE@")
    return printable(text.replace("@STYLE@", f"\n{_STYLE}")) + "\n"


def _drawn(part: str, **values: Any) -> str:
    """The *part* of the template ``chart.svg.jinja``, in one line."""
    text = html_templates().get_template("release/chart.svg.jinja").render(part=part, **values)
    return "".join(line.strip() for line in text.splitlines())


def smoothed(series: Series) -> Series:
    """The moving mean of *series* over a twelfth of it, and over less near its ends."""
    half, last = max(1, len(series) // 24), len(series) - 1
    smooth = []
    for index, (step, _) in enumerate(series):
        reach = min(half, max(1, index), max(1, last - index))
        values = [value for _, value in series[max(0, index - reach) : index + reach + 1]]
        smooth.append((step, sum(values) / len(values)))
    return smooth


def ticks(low: float, high: float) -> list[float]:
    """Round values from at most *low* to at least *high*, about four steps apart."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * index, 12) for index in range(first, max(last, first + 1) + 1)]


def _line(name: str, style: int, seeds: Sequence[Log], column: str) -> Line | None:
    """The line of *column* in the logs of *seeds*; None where it was not measured."""
    columns = [
        [(row.step, row.groups[column] if column in row.groups else getattr(row, column, None)) for row in log]
        for log in seeds
    ]
    # A run that diverges has gradients without a finite norm.
    known = ([(step, v) for step, v in points if v is not None and math.isfinite(v)] for points in columns)
    measured = [series for series in known if series]
    if not measured:
        return None
    # Validations are all of the same puzzles, and need no smoothing; a seed that has ended keeps its last one.
    # Of all else it has no value from then on, and the mean is that of the seeds that go on.
    means = measured if column == "eval_correct" else list(map(smoothed, measured))
    steps_of = [{step for step, _ in series} for series in means]
    steps = sorted(step for step in set().union(*steps_of) if step >= max(map(min, steps_of)))
    series = [np.array(points).T for points in means]  # (2, steps of a seed)
    values = np.array(  # (seeds, steps)
        [np.interp(steps, x, y, right=y[-1] if column == "eval_correct" else math.nan) for x, y in series]
    )
    mean = list(zip(steps, np.nanmean(values, 0).tolist(), strict=True))
    if len(means) == 1:
        return Line(name, style % len(_DASHES), mean, [], measured[0])
    low, high = (list(zip(steps, ends.tolist(), strict=True)) for ends in (np.nanmin(values, 0), np.nanmax(values, 0)))
    return Line(name, style % len(_DASHES), mean, low + high[::-1], [])


def _curve(title: str, subtitle: str, text: Formatter, lines: Sequence[Line], unit: str = "step") -> Curve:
    """The chart of *lines*: means thick, the values of a line alone thin, the ranges of seeds as bands.

    The vertical axis begins at zero, or at the least value where that is negative; *unit* names the horizontal one.
    """
    if len(lines) > 1:
        lines = [replace(line, values=[]) for line in lines]
    changes = [f"{text(line.mean[0][1])} → {text(line.mean[-1][1])}" for line in lines]
    legend = [f"{line.name} {change}" for line, change in zip(lines, changes, strict=True) if line.name]
    points = [point for line in lines for point in line.mean + line.range + line.values]
    first, last = min(points)[0], max(points)[0]
    marks = ticks(min(0.0, *(value for _, value in points)), max(value for _, value in points))
    top = TOP + _ROW * len(legend)
    right, bottom = WIDTH - RIGHT, top + PLOT

    def x(step: float) -> float:
        return LEFT + (right - LEFT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return top + PLOT * (1 - (value - marks[0]) / (marks[-1] - marks[0]))

    content = _drawn(
        "content",
        marks=[(mark, f"{100 * mark:g}%" if text is percent else _number(mark)) for mark in marks],
        steps={first: "start", (first + last) // 2: "middle", last: "end"},
        lines=lines,
        legend=[(TOP + _ROW * index, label) for index, label in enumerate(legend)],
        left=LEFT, right=right, bottom=bottom, unit=unit, x=x, y=y,
    )  # fmt: skip
    # Bands side by side over the whole chart; each shows the values while the pointer is over it.
    series = [dict(line.values or line.mean) for line in lines]
    steps = sorted(set().union(*series))
    steps = steps[:: math.ceil(len(steps) / READOUTS)]
    edges = [LEFT, *((x(a) + x(b)) / 2 for a, b in pairwise(steps)), right]
    values = [[values[step] for values in series if step in values] for step in steps]
    labels = [", ".join(map(text, found)) for found in values]
    bands = list(zip(steps, edges, edges[1:], values, labels, strict=False))
    readouts = _drawn("readouts", bands=bands, middle=WIDTH / 2, top=top, bottom=bottom, unit=unit, x=x, y=y)
    return Curve(title, subtitle, "" if legend else changes[0], bottom + BOTTOM, content, readouts)

"""Curves as SVG: for the report, whose style sheet has the colors, and as pictures for cards and papers."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from countdown_rl.core.formatting import html_templates, percent, printable
from countdown_rl.evaluation.sample import Scores
from countdown_rl.evaluation.training_log import GROUP, StepRow, thinned
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
    """A chart: the format of its values and the names of its columns; once drawn, the inside of its SVG element.

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
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


_KL = {"kl": "KL in training", "eval_kl": "KL on validation"}
_ACCURACY = (
    Curve("Validation accuracy", "share solved", percent, {"eval_correct": ""}, main=True),
    Curve(
        "Completions",
        "share of those sampled",
        percent,
        {"correct": "solved", "format": "correct format"},
        main=True,
    ),
)
_REWARD = Curve("Reward", "mean over completions", _number, {"reward": ""}, main=True)
_MAIN = (
    Curve("KL from the initial policy", "nats per token", _number, _KL, main=True),
    Curve("Learning rate", "of the optimizer", _number, {"learning_rate": ""}, main=True),
    Curve(
        "Reward hacking", "incorrect, but a proxy reward is 1", percent, {"hacking": ""}, main=True
    ),
    Curve("Entropy", "nats per token", _number, {"entropy": ""}, main=True),
    Curve("Length", "mean tokens per completion", _number, {"mean_length": ""}, main=True),
    Curve(
        "Zero-std groups",
        "share of groups with equal rewards",
        percent,
        {"frac_reward_zero_std": ""},
        main=True,
    ),
)
_PANELS = (
    Curve("Truncated", "share at the length limit", percent, {"truncated": ""}),
    Curve(
        "Importance sampling ratio",
        "policy to vLLM, mean",
        _number,
        {"importance_sampling_ratio": ""},
    ),
    Curve("Gradient norm", "before clipping", _number, {"grad_norm": ""}),
    Curve("Seconds per step", "generation, rewards and loss", _number, {"seconds": ""}),
)


def curves(runs: Mapping[str, Sequence[Log]], task: Task) -> list[Curve]:
    """The charts of *runs*, each the logs of its seeds: accuracy first, then reward, then all else that changes.

    A single run has related quantities in one chart. Of several, each quantity has a chart with a line a run. What is
    constant has no chart.
    """
    logs = [log for seeds in runs.values() for log in seeds]
    every = math.ceil(max(log[-1].step for log in logs) / POINTS)
    names = sorted({name for log in logs for row in log for name in row.groups})
    # The reward and each of its parts, ``rewards/NAME/mean``.
    parts = {name: name.split("/")[1] for name in names if name.endswith("/mean")}
    reward = _REWARD._replace(columns={"reward": "weighted sum", **parts}) if parts else _REWARD
    panels = [*_ACCURACY, reward, *_MAIN, *_groups(names, task), *_PANELS]
    if len(runs) > 1:
        panels = [
            panel._replace(title=name[:1].upper() + name[1:] or panel.title, columns={column: ""})
            for panel in panels
            for column, name in panel.columns.items()
        ]
    charts = []
    for panel in panels:
        lines: list[Line | None] = []
        for (run, seeds), (column, name) in product(runs.items(), panel.columns.items()):
            style = len(lines) % STYLES
            lines.append(_line(run if len(runs) > 1 else name, style, seeds, column, every))
        measured = [line for line in lines if line]
        if not _is_constant(measured):
            charts.append(draw(panel, measured))
    return charts


def _is_constant(lines: Sequence[Line]) -> bool:
    """Return True if *lines* have at most one value in all."""
    values = set[float]()
    for line in lines:
        values |= {value for _, value in line.mean + line.range}
    return len(values) <= 1


def budgets(evaluations: Mapping[str, Scores]) -> Curve | None:
    """The chart of accuracy by token limit, for *evaluations* with several limits; None if there are none."""
    lines = [
        Line(
            name,
            style % STYLES,
            [(limit, budget.accuracy) for limit, budget in scores.budgets.items()],
            [],
        )
        for style, (name, scores) in enumerate(evaluations.items())
        if scores.budgets
    ]
    panel = Curve("Solved by token limit", "the same completions, cut", percent, {})
    return draw(panel, lines, "tokens") if lines else None


def _groups(names: Sequence[str], task: Task) -> list[Curve]:
    """The charts of the groups with several values, of the columns *names*."""
    groups: dict[str, dict[str, str]] = {name: {} for name in task.groups}
    for column in (name for name in names if name.startswith(GROUP)):
        group, _, value = column.removeprefix(GROUP).partition("_")
        groups.setdefault(group, {})[column] = task.group(group).name(value)
    return [
        Curve(
            f"Solved by {task.group(group).title.lower()}",
            "share of those sampled",
            percent,
            columns,
        )
        for group, columns in groups.items()
        if len(columns) > 1
    ]


def picture(charts: Sequence[Curve]) -> str:
    """*charts* in two columns, or one alone, as one SVG file."""
    columns, pitch = min(2, len(charts)), _TITLE + max(curve.height for curve in charts)
    places = [
        (index % columns * WIDTH, index // columns * pitch + _TITLE) for index in range(len(charts))
    ]
    size = (columns * WIDTH, math.ceil(len(charts) / columns) * pitch)
    text = _drawn(
        "picture", charts=list(zip(charts, places, strict=True)), size=size, style="@STYLE@"
    )
    style = Path(__file__).with_name("charts.css").read_text("utf-8")
    return printable(text.replace("@STYLE@", f"\n{style}")) + "\n"


def _drawn(part: str, **values: Any) -> str:
    """The *part* of the template ``chart.svg.jinja``, in one line."""
    text = (
        html_templates().get_template("release/report/chart.svg.jinja").render(part=part, **values)
    )
    return "".join(line.strip() for line in text.splitlines())


def ticks(low: float, high: float) -> list[float]:
    """Round values from at most *low* to at least *high*, about four steps apart."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * index, 12) for index in range(first, max(last, first + 1) + 1)]


def _line(name: str, style: int, seeds: Sequence[Log], column: str, every: int) -> Line | None:
    """The line of *column* in the logs of *seeds*, each point the mean of *every* steps; None without values."""
    validation, measured = column == "eval_correct", []
    for log in seeds:
        rows = log if validation else thinned(log, every)
        values = [(row.step, row.groups.get(column, getattr(row, column, None))) for row in rows]
        values = [(0, log[0].eval_correct_before), *values] if validation else values
        # A run that diverges has gradients without a finite norm.
        measured.append(
            [(step, value) for step, value in values if value is not None and math.isfinite(value)]
        )
    series = [np.array(values).T for values in measured if values]  # (2, steps of a seed)
    if not series:
        return None
    start = max(steps[0] for steps, _ in series)
    steps = sorted({int(step) for steps, _ in series for step in steps if step >= start})
    # A seed that has ended keeps its last validation. Of all else it has no value from then on.
    curves = [np.interp(steps, x, y, right=y[-1] if validation else math.nan) for x, y in series]
    reduced = [reduce(curves, 0).tolist() for reduce in (np.nanmean, np.nanmin, np.nanmax)]
    mean, low, high = (list(zip(steps, values, strict=True)) for values in reduced)
    return Line(name, style, mean, low + high[::-1] if len(series) > 1 else [])


def draw(panel: Curve, lines: Sequence[Line], unit: str = "step") -> Curve:
    """The chart of *lines*, with ranges as bands; the vertical axis begins at zero, or at a lower value."""
    text = panel.text
    changes = [f"{text(line.mean[0][1])} → {text(line.mean[-1][1])}" for line in lines]
    legend = [
        f"{line.name} {change}" for line, change in zip(lines, changes, strict=True) if line.name
    ]
    points = [point for line in lines for point in line.mean + line.range]
    first, last = 0 if unit == "step" else min(points)[0], max(points)[0]
    marks = ticks(min(0.0, *(value for _, value in points)), max(value for _, value in points))
    top = TOP + _ROW * len(legend)
    right, bottom = WIDTH - RIGHT, top + HEIGHT - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + (right - LEFT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - marks[0]) / (marks[-1] - marks[0])

    # Bands side by side over the whole chart; each shows the values while the pointer is over it.
    series = [dict(line.mean) for line in lines]
    steps = sorted(set().union(*series))
    edges = [LEFT, *((x(a) + x(b)) / 2 for a, b in pairwise(steps)), right]
    labels = [
        ", ".join(text(values[step]) for values in series if step in values) for step in steps
    ]
    content = _drawn(
        "content",
        marks=[(mark, f"{100 * mark:g}%" if text is percent else _number(mark)) for mark in marks],
        steps={first: "start", (first + last) // 2: "middle", last: "end"},
        lines=lines,
        legend=[(TOP + _ROW * index, label) for index, label in enumerate(legend)],
        bands=list(zip(steps, labels, edges, edges[1:], strict=False)),
        left=LEFT, right=right, top=top, bottom=bottom, unit=unit, x=x, y=y,
    )  # fmt: skip
    return panel._replace(
        change="" if legend else changes[0], height=bottom + BOTTOM, content=content
    )

"""Training curves as SVG, one small chart a quantity: for the report, whose style sheet has the colours, and as a
picture for the model card."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from countdown_rl.runlog.log import GROUP, StepRow, thinned

WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 26
#: Limits on the points of a line, and on the places where a value can be read.
POINTS, READOUTS = 240, 60
#: Height of a chart's title in the picture, and the picture's style sheet.
_TITLE = 34
_STYLE = """
svg { font: 11px system-ui, sans-serif; fill: #5d646b; }
.title { font-size: 12px; font-weight: 600; fill: #1b1d1f; }
.grid { stroke: #e4e5e2; }
.raw, .mean { stroke: #2f5fd0; fill: none; }
.raw { opacity: 0.36; }
.mean { stroke-width: 2.2; }
"""

Series = list[tuple[int, float]]
Formatter = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """A chart: its title and subtitle, the first and last values of the smoothed line, and the SVG."""

    title: str
    subtitle: str
    first: str
    last: str
    svg: str


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _number(value: float) -> str:
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


_QUANTITIES: tuple[tuple[str, str, str, Formatter], ...] = (
    ("correct", "Share solved", "of sampled completions", _share),
    ("eval_correct", "Share solved", "of validation puzzles, greedy", _share),
    ("reward", "Reward", "mean over completions", _number),
    ("format", "Format kept", "thinking, then an answer", _share),
    ("mean_length", "Length", "mean tokens per completion", _number),
    ("truncated", "Truncated", "share at the length limit", _share),
    ("frac_reward_zero_std", "Groups with equal rewards", "share of groups", _share),
    ("entropy", "Entropy", "nats per token, rows with advantage", _number),
    ("kl", "KL from the initial model", "nats per token", _number),
    ("importance_sampling_ratio", "Importance sampling ratio", "of the policy to vLLM, mean", _number),
    ("grad_norm", "Gradient norm", "before clipping", _number),
    ("seconds", "Seconds per step", "generation, rewards and loss", _number),
)


def curves(rows: Sequence[StepRow], *, readouts: bool = True) -> list[Curve]:
    """The charts of a training log, one for each quantity that was measured."""
    points = thinned(rows, stride(rows))
    quantities = list(_QUANTITIES)
    quantities += [
        (column, "Share solved", column.removeprefix(GROUP).replace("_", " "), _share)
        for column in sorted({name for row in rows for name in row.groups})
    ]
    charts = []
    for name, title, subtitle, text in quantities:
        values = [
            (row.step, row.groups.get(name) if name in row.groups else getattr(row, name, None)) for row in points
        ]
        series = [(step, value) for step, value in values if value is not None]
        if series:
            smooth = smoothed(series)
            svg = chart(series, smooth, f"{title}: {subtitle}", text, readouts=readouts)
            charts.append(Curve(title, subtitle, text(smooth[0][1]), text(smooth[-1][1]), svg))
    return charts


def picture(rows: Sequence[StepRow]) -> str:
    """The charts in two columns, as one SVG file; the same log gives the same text."""
    charts = curves(rows, readouts=False)
    size = f'viewBox="0 0 {2 * WIDTH} {math.ceil(len(charts) / 2) * (_TITLE + HEIGHT)}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>']
    parts.append('<rect width="100%" height="100%" fill="#ffffff"/>')
    for index, curve in enumerate(charts):
        x, y = index % 2 * WIDTH, index // 2 * (_TITLE + HEIGHT)
        parts.append(
            f'<text class="title" x="{x + 12}" y="{y + 24}">{escape(f"{curve.title}, {curve.subtitle}")}</text>'
        )
        place = f'<svg x="{x}" y="{y + _TITLE}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(curve.svg.replace("<svg ", place, 1))
    return "".join([*parts, "</svg>\n"])


def stride(rows: Sequence[StepRow]) -> int:
    """The number of steps that one point of a chart is the mean of."""
    return max(1, math.ceil(rows[-1].step / POINTS))


def window(rows: Sequence[StepRow]) -> int:
    """The approximate number of steps that one point of a smoothed line is the mean of."""
    count = len(thinned(rows, stride(rows)))
    return round((2 * _half_window(count) + 1) * rows[-1].step / count)


def _half_window(count: int) -> int:
    return max(1, count // 24)


def smoothed(series: Series) -> Series:
    """The centred moving mean of *series*; near its ends, over as many points as there are on both sides."""
    half, last = _half_window(len(series)), len(series) - 1
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


def chart(series: Series, smooth: Series, label: str, text: Formatter, *, readouts: bool) -> str:
    """The SVG of *series* (thin) and *smooth* (thick), and with *readouts* the value where the pointer is.

    The vertical axis begins at zero, or at the least value where that is negative.
    """
    values = [value for _, value in series]
    marks = ticks(min(0.0, *values), max(values))
    first, last = series[0][0], series[-1][0]

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - marks[0]) / (marks[-1] - marks[0]))

    def path(kind: str, points: Series) -> str:
        return f'<path class="{kind}" d="M{"L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)}"/>'

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for mark in marks:
        name = f"{100 * mark:g}%" if text is _share else _number(mark)
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y(mark) + 4:.1f}" text-anchor="end">{name}</text>')
    for step, anchor in {first: "start", (first + last) // 2: "middle", last: "end"}.items():
        name = f"step {step:,}" if step == first else f"{step:,}"
        parts.append(f'<text class="tick" x="{x(step):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{name}</text>')
    parts += [path("raw", series), path("mean", smooth)]
    # Bands side by side over the whole chart; each shows its value while the pointer is over it.
    places = series[:: math.ceil(len(series) / READOUTS)] if readouts else []
    edges = [LEFT, *((x(a) + x(b)) / 2 for (a, _), (b, _) in pairwise(places)), WIDTH - RIGHT]
    for (step, value), (begin, end) in zip(places, pairwise(edges), strict=False):
        at, height = x(step), HEIGHT - TOP - BOTTOM
        anchor, start = ("end", at - 8) if at > WIDTH / 2 else ("start", at + 8)
        parts.append(
            f'<g class="stop"><rect x="{begin:.1f}" y="{TOP}" width="{end - begin:.1f}" height="{height}"/>'
            f'<path d="M{at:.1f} {TOP}v{height}"/><circle cx="{at:.1f}" cy="{y(value):.1f}" r="3.5"/>'
            f'<text x="{start:.1f}" y="{TOP + 11}" text-anchor="{anchor}">step {step:,}: {text(value)}</text></g>'
        )
    return "".join([*parts, "</svg>"])

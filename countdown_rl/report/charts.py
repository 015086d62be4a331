"""Training curves as SVG: one small chart a quantity, drawn by hand so that nothing outside is needed.

Colours are the page's own variables, so that a chart follows its light and its dark.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from countdown_rl.runlog.log import StepRow, thinned

WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 26

#: Points a line has at most, and places where a value can be read off.
POINTS, STOPS = 240, 60

Series = list[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """A chart: what it shows, in one sentence what that is, its first and last level, and the SVG."""

    title: str
    about: str
    first: str
    last: str
    svg: str


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _number(value: float) -> str:
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


_QUANTITIES: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("correct", "Share solved", "of sampled completions", _share),
    ("reward", "Reward", "mean over completions", _number),
    ("format", "Format kept", "thinking, then an answer", _share),
    ("mean_length", "Length", "mean tokens of a completion", _number),
    ("truncated", "Cut short", "share at the length limit", _share),
    ("frac_reward_zero_std", "Groups without advantage", "share with equal rewards", _share),
    ("entropy", "Entropy", "nats a token", _number),
    ("kl", "KL to the start", "nats a token", _number),
    ("grad_norm", "Gradient norm", "before clipping", _number),
    ("seconds", "Seconds a step", "generation, rewards and loss", _number),
)


def curves(rows: Sequence[StepRow]) -> list[Curve]:
    """The charts of a training log; a quantity that was never measured has none."""
    few = thinned(rows, every(rows))
    drawn = []
    for name, title, about, say in _QUANTITIES:
        series = [(row.step, value) for row in few if (value := getattr(row, name)) is not None]
        if series:
            smooth = smoothed(series)
            svg = chart(series, smooth, f"{title}: {about}", say)
            drawn.append(Curve(title, about, say(smooth[0][1]), say(smooth[-1][1]), svg))
    return drawn


def every(rows: Sequence[StepRow]) -> int:
    """How many steps one point of a chart is the mean of."""
    return max(1, math.ceil(rows[-1].step / POINTS))


def window(rows: Sequence[StepRow]) -> int:
    """How many steps, about, a point of a smoothed line is the mean of."""
    count = len(thinned(rows, every(rows)))
    return round((2 * reach(count) + 1) * rows[-1].step / count)


def reach(count: int) -> int:
    """How many of *count* points on either side a smoothed one is the mean of."""
    return max(1, count // 24)


def smoothed(series: Series) -> Series:
    """The centred moving mean of *series*; nearer its ends, over as many as there are on both sides."""
    span, last = reach(len(series)), len(series) - 1
    smooth = []
    for at, (step, _) in enumerate(series):
        near = min(span, max(1, at), max(1, last - at))
        around = [value for _, value in series[max(0, at - near) : at + near + 1]]
        smooth.append((step, sum(around) / len(around)))
    return smooth


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round values from at most *low* to at least *high*, some *wanted* steps apart."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * at, 12) for at in range(first, max(last, first + 1) + 1)]


def chart(series: Series, smooth: Series, label: str, say: Callable[[float], str]) -> str:
    """The SVG of a line through *series* (thin), its mean (thick), axes, and a readout where one points.

    The vertical axis begins at zero, or at the least value where that is negative.
    """
    values = [value for _, value in series]
    marks = ticks(min(0.0, *values), max(values)) if len(values) > 1 else ticks(min(0.0, values[0]), values[0])
    first, last = series[0][0], series[-1][0]
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step: float) -> float:
        return LEFT + wide * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + high * (1 - (value - marks[0]) / (marks[-1] - marks[0]))

    def line(points: Series) -> str:
        return "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y(mark) + 4:.1f}" text-anchor="end">{_tick(mark, say)}</text>'
        )
    for step, anchor in {first: "start", (first + last) // 2: "middle", last: "end"}.items():
        text = f"step {step:,}" if step == first else f"{step:,}"
        parts.append(f'<text class="tick" x="{x(step):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<path class="raw" d="{line(series)}"/>')
    parts.append(f'<path class="mean" d="{line(smooth)}"/>')
    parts.append(_readouts(series, x, y, say))
    return "".join([*parts, "</svg>"])


def _readouts(
    series: Series, x: Callable[[float], float], y: Callable[[float], float], say: Callable[[float], str]
) -> str:
    """Bands beside each other over the whole chart, each with the value that shows while one points at it."""
    every = math.ceil(len(series) / STOPS)
    stops = series[::every]
    edges = [LEFT, *((x(a) + x(b)) / 2 for (a, _), (b, _) in pairwise(stops)), WIDTH - RIGHT]
    bands = []
    for (step, value), (begin, end) in zip(stops, pairwise(edges), strict=True):
        across, wide, high = x(step), end - begin, HEIGHT - TOP - BOTTOM
        anchor, aside = ("end", across - 8) if across > WIDTH / 2 else ("start", across + 8)
        bands.append(
            f'<g class="stop"><rect x="{begin:.1f}" y="{TOP}" width="{wide:.1f}" height="{high}"/>'
            f'<path d="M{across:.1f} {TOP}v{high}"/><circle cx="{across:.1f}" cy="{y(value):.1f}" r="3.5"/>'
            f'<text x="{aside:.1f}" y="{TOP + 11}" text-anchor="{anchor}">step {step:,}: {say(value)}</text></g>'
        )
    return "".join(bands)


def _tick(value: float, say: Callable[[float], str]) -> str:
    return f"{100 * value:g}%" if say is _share else _number(value)

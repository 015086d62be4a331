"""A still picture of a training run: what it was rewarded, what it solved of each kind, how it wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog.log import KIND, StepRow

#: Points a curve is smoothed to at most; what they are the means of is shown faintly behind.
_POINTS = 60
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")


def draw(log: Path, out: Path) -> None:
    """Draw the training log at *log* as a PNG at *out*; the same log gives the same bytes.

    Raises:
        InputError: *log* is not a training log, or has no row.
    """
    rows = trainlog.read(log)
    if not rows:
        raise InputError(f"{log} has no step to draw.")
    # Not by pyplot, which would keep state and look for a screen.
    import matplotlib
    from matplotlib.figure import Figure

    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a person's own settings do not change the bytes
        figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
        _panels(figure.subplots(2, 2, sharex=True), rows)
        # The version of matplotlib is in the metadata otherwise.
        figure.savefig(out, format="png", metadata={"Software": None})


def _panels(grid: Any, rows: Sequence[StepRow]) -> None:
    (reward, kinds), (length, signal) = grid
    made_of = {"reward": "reward", "correct": "solved", "format": "in format"}
    _curves(reward, "Reward, and shares of sampled completions", rows, made_of)
    named = {name: _name(name) for name in sorted({name for row in rows for name in row.kinds})}
    _curves(kinds, "Share solved, by kind of puzzle", rows, named or {"correct": "all"})
    kinds.set_ylim(-0.02, 1.02)
    _curves(length, "Tokens a completion", rows, {"mean_length": "mean"})
    shares = {"entropy": "entropy, nats a token", "kl": "KL to the start, nats a token"}
    shares |= {"truncated": "share cut short", "frac_reward_zero_std": "share of groups all alike"}
    _curves(signal, "Entropy, and what teaches nothing", rows, shares)
    for axes in (length, signal):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("optimiser step")


def _name(column: str) -> str:
    kind = column.removeprefix(KIND)
    return (
        f"{kind} numbers"
        if kind.isdigit()
        else {"add_sub": "+ and − are enough", "mul_div": "need × or ÷"}.get(kind, kind)
    )


def _curves(axes: Any, title: str, rows: Sequence[StepRow], names: dict[str, str]) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    for (name, label), colour in zip(names.items(), _COLOURS * len(names), strict=False):
        points = [(row.step, value) for row in rows if (value := _of(row, name)) is not None]
        if not points:
            continue
        width = -(-len(points) // _POINTS)
        if width > 1:
            axes.plot(*zip(*points, strict=True), color=colour, alpha=0.2, linewidth=0.8)
        parts = [points[start : start + width] for start in range(0, len(points), width)]
        means = [tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts]
        axes.plot(*zip(*means, strict=True), color=colour, label=label, marker="." if len(means) == 1 else None)
    if len(names) > 1:
        axes.legend(fontsize=8, frameon=False)


def _of(row: StepRow, name: str) -> float | None:
    return row.kinds.get(name) if name.startswith(KIND) else getattr(row, name)

"""Training curves as a PNG for the model card: reward, accuracy by kind of puzzle, length and entropy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog.log import KIND, StepRow

#: Maximum points of a curve; each is a mean, over the single steps drawn faintly behind.
_POINTS = 60
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")
_KINDS = {"add_sub": "+ and − are enough", "mul_div": "need × or ÷"}


def draw(log: Path, out: Path) -> None:
    """Draw the training log at *log* as a PNG at *out*; the same log gives the same bytes.

    Raises:
        InputError: *log* is not a training log, or is empty.
    """
    rows = trainlog.read(log)
    if not rows:
        raise InputError(f"{log} has no step to draw.")
    # Without pyplot, which keeps global state and looks for a display.
    import matplotlib
    from matplotlib.figure import Figure

    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's settings do not change the bytes
        figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
        (reward, kinds), (length, signal) = figure.subplots(2, 2, sharex=True)
        shares = {"reward": "reward", "correct": "solved", "format": "in format"}
        _curves(reward, "Reward, and shares of sampled completions", rows, shares)
        columns = {name: name.removeprefix(KIND) for name in sorted({name for row in rows for name in row.kinds})}
        names = {column: _KINDS.get(kind, f"{kind} numbers") for column, kind in columns.items()}
        _curves(kinds, "Share solved, by kind of puzzle", rows, names or {"correct": "all"})
        kinds.set_ylim(-0.02, 1.02)
        _curves(length, "Tokens per completion", rows, {"mean_length": "mean"})
        entropies = {"entropy": "entropy, nats per token", "kl": "KL from the initial model, nats per token"}
        entropies |= {"truncated": "share truncated", "frac_reward_zero_std": "share of groups without advantage"}
        _curves(signal, "Entropy, and completions without a gradient", rows, entropies)
        for axes in (length, signal):
            axes.set_ylim(bottom=0)
            axes.set_xlabel("optimiser step")
        figure.savefig(out, format="png", metadata={"Software": None})  # by default, matplotlib's version


def _curves(axes: Any, title: str, rows: Sequence[StepRow], names: Mapping[str, str]) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    for (name, label), colour in zip(names.items(), _COLOURS * len(names), strict=False):
        values = [(row.step, row.kinds.get(name) if name.startswith(KIND) else getattr(row, name)) for row in rows]
        points = [(step, value) for step, value in values if value is not None]
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

"""The curves of a training run as a picture: the same log gives the same bytes."""

from pathlib import Path

from countdown_rl import trainlog

#: Columns of the log that share a panel, and its title.
_PANELS = (
    (("reward", "correct", "format"), "reward, share right, share in format"),
    (("length",), "tokens a completion"),
    (("entropy", "kl"), "entropy and KL, nats"),
    (("dead_groups", "truncated"), "share of groups that teach nothing, share cut off"),
)


def draw(log: Path, out: Path) -> None:
    """Draw the training log at *log* as a PNG at *out*.

    Raises:
        InputError: *log* is no training log.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = trainlog.read(log)
    steps = [row.step for row in rows]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a person's own settings do not change the bytes
        figure = Figure(figsize=(10, 6), layout="constrained")  # not pyplot, which keeps state and looks for a screen
        for axes, (names, title) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
            for name in names:
                values = [getattr(row, name) for row in rows]
                if any(value is not None for value in values):
                    there = [float("nan") if value is None else value for value in values]
                    axes.plot(steps, there, label=name.replace("_", " "), marker="." if len(rows) < 20 else "")
            axes.set_title(title, fontsize="medium")
            axes.set_xlabel("step")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(frameon=False, fontsize="small")
        # Without metadata, since it would hold the version of matplotlib.
        FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})

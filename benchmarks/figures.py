"""The figures of the docs, drawn from the files that the pipeline and the benchmarks wrote.

    python -m benchmarks.figures

``docs/images/learning.svg``: validation accuracy in the pipeline's training, three seeds.
``frontier.svg``: arms of ``controls.sh`` and exact rounds. ``reward-hacking.svg``: the hacking lab.
A test checks that nothing would change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.controls import Runs, difference
from benchmarks.tables import committed, result
from countdown_rl.evaluation import training_log
from countdown_rl.release.report.charts import Curve, Line, Series, curves, draw, picture
from countdown_rl.tasks.registry import task

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
#: Arms of ``controls.sh`` that one line joins, by its name.
FAMILIES = {
    "GRPO, whole to by line": ("grpo-whole", "grpo"),
    "rounds: 5, 25, 25 with curriculum": ("rft-5", "rft-25", "rft-25-curriculum"),
    "positives only, whole to by line": ("positive-whole", "positive"),
}


def learning() -> str:
    """Return the validation accuracy by step: seed 42 is the pipeline's own run."""
    with TemporaryDirectory() as folder:
        own = Path(folder) / "log.csv"
        own.write_text(committed("artifacts/train/log.csv"), "utf-8")
        logs = {"seed 42": [own]}
        for seed in (43, 44):
            logs[f"seed {seed}"] = [RESULTS / f"validated-{seed}.csv"]
        return _curve("Validation accuracy", logs)


def reward_hacking() -> str:
    """Return the hacking rate by step, with a grader that can be cheated and with the exact one."""
    logs = {}
    for grader in ("proxy", "exact"):
        logs[grader] = sorted((RESULTS / "hacking").glob(f"{grader}-*.csv"))
    return _curve("Reward hacking", logs)


def _curve(title: str, logs: Mapping[str, Sequence[Path]]) -> str:
    """Draw the chart *title* of the report; *logs* has the seeds of each line."""
    runs = {name: [training_log.read(path) for path in paths] for name, paths in logs.items()}
    charts = curves(runs, task("countdown"))
    return picture([next(chart for chart in charts if chart.title == title)])


def frontier() -> str:
    """Return the change of pass@4 by the gain at one sample, both in points over the start."""
    stored = result("arms")
    lines = [Line("exact rounds", 4, _exact_gains(stored["4 numbers"] / stored["n"]), [])]
    for style, (name, arms) in enumerate(FAMILIES.items()):
        gains = [_gain(stored["arms"], arm) for arm in arms]
        lines.append(Line(name, style, gains, []))
    subtitle = "pass@4 less that of the start, in points; mean of five seeds"
    panel = Curve("What a gain at one sample costs at four", subtitle, "{:+.1f}".format, {})
    return picture([draw(panel, lines, "points gained at one sample")])


def _exact_gains(share: float) -> Series:
    """Return the gains of exact rounds, if puzzles of 4 numbers are a *share* of all and the others
    are solved.
    """
    start, *rounds = result("exact")["settings"][0]["rounds"].values()
    gains = [(0.0, 0.0)]
    for measures in rounds:
        gain, change = (100 * share * (measures[k] - start[k]) for k in ("pass@1", "pass@4"))
        gains.append((round(gain, 1), change))
    return gains


def _gain(arms: Mapping[str, Runs], arm: str) -> tuple[float, float]:
    """Return the mean gains of *arm*, over its seeds."""
    gain, change = (
        100 * difference(arms[arm], arms["start"], measure)["mean"]
        for measure in ("accuracy", "pass@4")
    )
    return round(gain, 1), change


FIGURES = {"learning": learning, "reward-hacking": reward_hacking, "frontier": frontier}


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        (IMAGES / f"{name}.svg").write_text(figure(), "utf-8")

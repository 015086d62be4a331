"""The figures of the docs, drawn from the files that the pipeline and the benchmarks wrote.

    python -m benchmarks.figures

``docs/images/learning.svg``: validation accuracy in the pipeline's training, three seeds.
``controls.svg``: arms of ``controls.sh`` and exact rounds. ``reward-hacking.svg``: the hacking lab.
A test checks that nothing would change.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.tables import committed, result
from countdown_rl.evaluation import training_log
from countdown_rl.release.report.charts import Curve, Line, curves, draw, picture
from countdown_rl.tasks.registry import task

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
#: Real rounds of rejection sampling: the arm by the number of rounds.
ROUNDS = {0: "start", 1: "rft-1", 5: "rft-5", 25: "rft-25"}
#: On-policy arms, which have no rounds: the name and style of their line.
ON_POLICY = {
    "grpo": ("GRPO, credit by line", 0),
    "positive": ("positives only, credit by line", 3),
    "grpo-whole": ("GRPO, one reward per completion", 2),
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


def controls() -> str:
    """Return the accuracy of the arms: puzzles of 4 numbers, which decide, as those of 3 are solved
    before.
    """
    arms = result("arms")["arms"]
    solved = {arm: [run["4 numbers"] for run in runs.values()] for arm, runs in arms.items()}
    rounds = result("exact")["settings"][0]["rounds"]
    exact = [(int(done), of["pass@1"]) for done, of in rounds.items() if int(done) <= max(ROUNDS)]
    lines = [Line("exact rounds", 4, exact, [])]
    lines.append(_line("real rounds", 1, {done: solved[arm] for done, arm in ROUNDS.items()}))
    for arm, (name, style) in ON_POLICY.items():
        lines.append(_line(name, style, dict.fromkeys(ROUNDS, solved[arm])))
    subtitle = "puzzles of 4 numbers solved, 6,400 completions a run"
    panel = Curve("On-policy steps and rounds of rejection sampling", subtitle, "{:.1%}".format, {})
    svg = picture([draw(panel, lines, "rounds of rejection sampling")])
    return re.sub(r"([\d.]+%) → \1", r"\1", svg)  # of a constant line


def _line(name: str, style: int, by_round: dict[int, list[float]]) -> Line:
    """The mean over seeds by round, and their range."""
    mean = [(done, fmean(seeds)) for done, seeds in by_round.items()]
    low = [(done, min(seeds)) for done, seeds in by_round.items()]
    high = [(done, max(seeds)) for done, seeds in by_round.items()]
    return Line(name, style, mean, low + high[::-1])


FIGURES = {"learning": learning, "reward-hacking": reward_hacking, "controls": controls}


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        (IMAGES / f"{name}.svg").write_text(figure(), "utf-8")

"""The figure of the docs, drawn from the files that the benchmarks wrote.

    python -m benchmarks.figures

``docs/images/controls.svg``: arms of ``controls.sh`` and exact rounds (``arms.json``, ``exact.json``). A test checks
that nothing would change.
"""

import re
from pathlib import Path
from statistics import fmean

from benchmarks.tables import result
from countdown_rl.core.formatting import percent
from countdown_rl.release.report.charts import Curve, Line, draw, picture

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "controls.svg"
#: Real rounds of rejection sampling: the arm by the number of rounds.
ROUNDS = {0: "start", 1: "rft-1", 5: "rft-5", 25: "rft-25"}
#: On-policy arms, which have no rounds: the name and style of their line.
ON_POLICY = {
    "grpo": ("GRPO, credit by line", 0),
    "positive": ("positives only, credit by line", 3),
    "grpo-whole": ("GRPO, one reward per completion", 2),
}


def figure() -> str:
    """Return the SVG file: puzzles of 4 numbers, which decide, as those of 3 are solved before."""
    arms = result("arms")["arms"]
    solved = {arm: [run["4 numbers"] for run in runs.values()] for arm, runs in arms.items()}
    rounds = result("exact")["settings"][0]["rounds"]
    exact = [(int(done), of["pass@1"]) for done, of in rounds.items() if int(done) <= max(ROUNDS)]
    lines = [Line("exact rounds", 4, exact, [])]
    lines.append(_line("real rounds", 1, {done: solved[arm] for done, arm in ROUNDS.items()}))
    for arm, (name, style) in ON_POLICY.items():
        lines.append(_line(name, style, dict.fromkeys(ROUNDS, solved[arm])))
    subtitle = "puzzles of 4 numbers solved, 6,400 completions a run"
    panel = Curve("On-policy steps and rounds of rejection sampling", subtitle, percent, {})
    svg = picture([draw(panel, lines, "rounds of rejection sampling")])
    return re.sub(r"([\d.]+%) → \1", r"\1", svg)  # of a constant line


def _line(name: str, style: int, by_round: dict[int, list[float]]) -> Line:
    """The mean over seeds by round, and their range."""
    mean = [(done, fmean(seeds)) for done, seeds in by_round.items()]
    low = [(done, min(seeds)) for done, seeds in by_round.items()]
    high = [(done, max(seeds)) for done, seeds in by_round.items()]
    return Line(name, style, mean, low + high[::-1])


if __name__ == "__main__":
    IMAGE.write_text(figure(), "utf-8")

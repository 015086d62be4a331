"""Figures of the docs, drawn from the files that the benchmarks wrote.

    python -m benchmarks.figures

``docs/images/controls.svg``: GRPO and rounds of rejection sampling, exact and real (``controls.json``, ``arms.json``).
``docs/images/hacking-doses.svg``: the hacking rate by the number of cheats demonstrated (``hacking/doses.json``).
A test checks that nothing would change.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import bench
from countdown_rl.core.formatting import percent
from countdown_rl.release.report.charts import Curve, Line, draw, picture

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: Real rounds of rejection sampling: the arm in arms.json by the number of rounds.
ROUNDS = {0: "start", 1: "rft-1", 5: "rft-5", 25: "rft-25"}
#: Arms of GRPO, which have no rounds: the arm, and the name and style of its line.
GRPO = {"grpo": ("GRPO", 0), "grpo-whole": ("GRPO, one reward per completion", 2)}


def _read(name: str) -> Any:
    return json.loads((bench.RESULTS / f"{name}.json").read_text())


def _line(name: str, style: int, values: Mapping[int, Sequence[float]]) -> Line:
    """The mean of the seeds' *values* by place, and the range of several."""
    mean, low, high = ([(x, of(seeds)) for x, seeds in values.items()] for of in (fmean, min, max))
    return Line(
        name,
        style,
        mean,
        low + high[::-1] if any(len(seeds) > 1 for seeds in values.values()) else [],
    )


def controls() -> Curve:
    """Puzzles of 4 numbers, which decide: those of 3 are solved before."""
    exact, arms = _read("controls")["exact"]["4 numbers"], _read("arms")["arms"]
    ideal = {
        int(name.split()[1]): [share] for name, share in exact.items() if name.startswith("RFT")
    }

    def measured(arm: str) -> list[float]:
        return [run["4 numbers"] for run in arms[arm].values()]

    lines = [
        _line(
            "exact rounds",
            4,
            {rounds: share for rounds, share in ideal.items() if rounds <= max(ROUNDS)},
        ),
        _line("real rounds", 1, {rounds: measured(arm) for rounds, arm in ROUNDS.items()}),
        *(_line(*line, dict.fromkeys(ROUNDS, measured(arm))) for arm, line in GRPO.items()),
    ]
    panel = Curve(
        "GRPO and rejection sampling",
        "puzzles of 4 numbers solved, 6,400 completions a run",
        percent,
        {},
    )
    return draw(panel, lines, "rounds of rejection sampling")


def doses() -> Curve:
    """The hacking rate after training, by the number of numbers of the puzzles."""
    runs = {
        int(cheats): list(rows.values())[1:]
        for cheats, rows in _read("hacking/doses")["doses"].items()
    }

    def rates(size: str) -> dict[int, list[float]]:
        return {
            cheats: [run["hacking_by_size"][size] for run in seeds]
            for cheats, seeds in sorted(runs.items())
        }

    lines = [_line(f"{size} numbers", style, rates(size)) for style, size in enumerate("45")]
    panel = Curve("Hacking after training", "mean and range of three seeds", percent, {})
    return draw(panel, lines, "cheats beside 400 honest demonstrations")


def figures() -> Iterable[tuple[Path, str]]:
    """Path and text of each figure."""
    for name, curve in (("controls", controls()), ("hacking-doses", doses())):
        yield (
            IMAGES / f"{name}.svg",
            re.sub(r"([\d.]+%) → \1", r"\1", picture([curve])),
        )  # of a constant line


if __name__ == "__main__":
    for path, text in figures():
        path.write_text(text, "utf-8")

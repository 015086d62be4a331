"""Tables of the README and the docs, filled from the files that the pipeline and the benchmarks
wrote.

    python -m benchmarks.tables

Rewrites what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` in README.md and
docs/*.md. A test checks that nothing would change. The results of the pipeline are those in Git's
index: add new ones (``git add artifacts``) before.
"""

import json
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import bench
from benchmarks.controls import difference

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

#: Rows of the README's table: the evaluation, and what it is called there.
SUMMARY = {
    "base": "initial policy",
    "adapter": "trained with GRPO",
    "merged": "merged",
    "quantized": "4-bit (NF4)",
}
#: Rows of the tables of arms and their differences: the arm in the file, and what it is called
#: there.
ARMS = {
    "start": "start",
    "rft-1": "1 round",
    "rft-5": "5 rounds",
    "rft-25": "25 rounds",
    "rft-25-curriculum": "25 rounds, curriculum",
    "rft-1-x3": "1 round, update times 3",
    "rft-1-x10": "1 round, update times 10",
    "rft-5-x3": "5 rounds, update times 3",
    "rft-5-x10": "5 rounds, update times 10",
    "positive-whole": "positives only, whole",
    "positive": "positives only, by line",
    "grpo-whole": "GRPO, whole",
    "grpo": "GRPO, by line",
}
#: Rows of the table of exact rounds: the weights in the file, and what they are called there.
WEIGHTS = {
    "all": "all correct",
    "line": "credit by line 0.9",
    "shortest": "shortest of 8",
}
#: Measures of an arm in the file, and the columns of their table.
ARM_COLUMNS = {"accuracy": "sampled", "4 numbers": "4 numbers", "pass@4": "pass@4"}
#: Seeds of a complete arm.
DECLARED = 5
#: Seeds from which an interval over seeds is shown.
MIN_SEEDS = 3
EXACT_ROUNDS = ("1", "5", "12", "25")
#: Rows of the table of countdown-bench-1: the record in its folder, and what the model is called
#: there.
SUITE = {
    "random": "a random legal expression",
    "initial": "the shipped model",
    "trained": "after GRPO (`make repro`), merged",
    "nf4": "the same in 4 bits (NF4)",
    "solver": "the exact solver",
}
#: Rows of the table of options: what is changed and from what, the file, and the names of both
#: settings there.
OPTIONS = [
    ("`--discount 1`: one reward for all lines", "0.9", "arms", "grpo-whole", "grpo"),
    (
        "a cosine schedule (`--trl lr_scheduler_type=cosine`)",
        "constant",
        "variants",
        "pipeline",
        "constant rate",
    ),
    (
        "`--trl num_iterations=2`",
        "1",
        "variants",
        "constant rate, 2 updates per round",
        "constant rate",
    ),
    (
        "`--trl num_iterations=2`, half the rate",
        "1",
        "variants",
        "constant rate, 2 updates per round, half the rate",
        "constant rate",
    ),
    (
        "`--trl num_iterations=4`",
        "1",
        "variants",
        "constant rate, 4 updates per round",
        "constant rate",
    ),
    ("positives only, without a baseline", "GRPO's", "arms", "positive", "grpo"),
]


def render(text: str) -> str:
    """*text* with all its tables filled."""
    return _TABLE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def result(name: str) -> Any:
    """A file of ``benchmarks/results``."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def committed(path: str) -> str:
    """The text of *path* in Git's index. The file itself has other roundings after ``make repro``
    on another processor. A copy without Git has the file alone.
    """
    done = subprocess.run(
        ["git", "show", f":{path}"], cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    return (ROOT / path).read_text("utf-8") if done.returncode else done.stdout


def comparison() -> str:
    """The table of ``compare``, with the line under it that says how it was measured."""
    return committed("artifacts/eval/comparison/comparison.md").strip()


def compared() -> dict[str, dict[str, str]]:
    """The cells of :func:`comparison`, by row and column."""
    header, _, *lines = [line for line in comparison().splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return {name: dict(zip(columns[1:], cells, strict=True)) for name, *cells in rows}


def summary() -> str:
    """The model of the pipeline at each stage; only the start and the adapter were sampled."""
    columns = {
        "solved": "greedy",
        "95%": "95% interval",
        "3 numbers": "3 numbers",
        "4 numbers": "4 numbers",
    }
    rows, lines = compared(), []
    for name, text in SUMMARY.items():
        sampled = rows.get(f"{name}-sampled", {"solved": "–", "pass@2": "–"})
        cells = (rows[name][column] for column in columns)
        lines.append((text, sampled["solved"], sampled["pass@2"], *cells))
    return table(("", "sampled", "pass@2", *columns.values()), lines)


def learning() -> str:
    """The gains of every seed: 42 is the pipeline's own run."""
    rows = compared()
    cells = [
        rows[name][column]
        for name in ("adapter-sampled", "adapter")
        for column in ("solved", before(rows))
    ]
    return by_seed(
        [("42", *cells, minutes(committed("artifacts/train/log.csv"))), *seeds("learning")]
    )


def arms() -> str:
    """The arms of ``controls.sh``, means over their seeds; and the pass@4 of exact rounds that have
    the accuracy of an arm on 4 numbers, if all puzzles of 3 numbers are solved.
    """
    stored = result("arms")
    by_arm = stored["arms"]
    rounds = result("exact")["settings"][0]["rounds"].values()
    exact = [[measures[key] for measures in rounds] for key in ("pass@1", "pass@4")]
    of_four = stored["4 numbers"] / stored["n"]
    lines = []
    for arm, text in ARMS.items():
        runs = list(by_arm.get(arm, {}).values())
        if not runs:
            continue
        means = [fmean(run[key] for run in runs) for key in ARM_COLUMNS]
        frontier = 1 - of_four + of_four * np.interp(means[1], *exact, math.nan, math.nan)
        lines.append((text, ", ".join(by_arm[arm]), *map(percent, [*means, frontier])))
    return table(("", "seeds", *ARM_COLUMNS.values(), "exact rounds"), lines)


def differences() -> str:
    """Mean differences between complete arms, in points with a t interval."""
    lines = []
    for name, measures in result("arms")["differences"].items():
        first, second = name.split(" - ")
        seeds = measures["accuracy"]["seeds"]
        if len(seeds) == DECLARED:
            cells = (over_seeds(measures[key]) for key in ("accuracy", "pass@4"))
            lines.append((ARMS[first], ARMS[second], str(len(seeds)), *cells))
    return table(("", "less", "seeds", "sampled", "pass@4"), lines)


def options() -> str:
    """Changes of sampled accuracy by one option, with the seed as the unit."""
    runs = {"arms": result("arms")["arms"], "variants": {}}
    for run in result("variants")["runs"]:
        by_seed = runs["variants"].setdefault(run["variant"], {})
        by_seed[str(run["seed"])] = {"accuracy": run["sampled"]["accuracy"]}
    lines = []
    for option, usual, file, changed, reference in OPTIONS:
        change = difference(runs[file][changed], runs[file][reference], "accuracy")
        seeds = len(change["seeds"])
        shown = over_seeds(change) if seeds >= MIN_SEEDS else points(change["mean"])
        lines.append((option, usual, shown, str(seeds), f"`{file}.json`"))
    return table(("option", "instead of", "change", "seeds", "file"), lines)


def over_seeds(change: Any) -> str:
    """A mean difference in points, and its interval."""
    low, high = map(points, change["interval"])
    return f"{points(change['mean'])} ({low} to {high})"


def exact() -> str:
    """Exact rounds of imitation on puzzles of 4 numbers: pass@1 by rounds, and pass@16 after the
    last.
    """
    lines = []
    for setting in result("exact")["settings"]:
        rounds, power = setting["rounds"], setting["power"]
        if setting["weights"] not in WEIGHTS or "5" not in rounds or power == 4:
            continue
        text = WEIGHTS[setting["weights"]]
        cells = (rounds.get(done, {}).get("pass@1") for done in EXACT_ROUNDS)
        last = [done for done in EXACT_ROUNDS if done in rounds][-1]
        lines.append(
            (
                text if power == 1 else f"{text}, power {power}",
                *map(percent, cells),
                percent(rounds[last]["pass@16"]),
            )
        )
    columns = (f"{done} round{'s' * (done != '1')}" for done in EXACT_ROUNDS)
    return table(("kept", *columns, "pass@16 at the last"), lines)


def suite() -> str:
    """countdown-bench-1: the records of its evaluations, by tier."""
    lines = []
    for name, text in SUITE.items():
        scores = result(f"countdown-bench-1/{name}")
        tiers = [percent(tier["accuracy"]) for tier in scores["groups"]["tier"].values()]
        tokens = scores["tokens"]["per_correct_answer"] if scores["mean_tokens"] else None
        measured = (percent(scores["accuracy"]), percent(scores["pass_at"]["4"]["share"]))
        lines.append(
            (
                text,
                *measured,
                *tiers,
                percent(scores["truncated"]),
                "" if tokens is None else f"{tokens:,.0f}",
            )
        )
    tiers = scores["groups"]["tier"]
    return table(("", "all", "pass@4", *tiers, "truncated", "tokens per correct answer"), lines)


def minutes(log: str) -> str:
    return f"{bench.minutes(log):.1f}"


def by_seed(rows: Sequence[Sequence[str]]) -> str:
    return table(("seed", "sampled", "gain", "greedy", "gain", "minutes of steps"), rows)


def seeds(name: str, label: str = "") -> list[tuple[str, ...]]:
    """A row for each run of ``results/NAME.json``; *label* follows its seed."""
    logs = ROOT / "benchmarks" / "results"
    return [
        (
            f"{run['seed']}{label}",
            *both(run),
            minutes((logs / f"{name}-{run['seed']}.csv").read_text()),
        )
        for run in result(name)["runs"]
    ]


def both(run: Any) -> list[str]:
    return [cell for kind in ("sampled", "greedy") for cell in gain(run[kind])]


def gain(scored: Any) -> tuple[str, str]:
    """The accuracy of a run, and its gain with the interval."""
    return percent(scored["accuracy"]), paired(scored["gain"])


def paired(change: Any) -> str:
    """A paired difference in points, and its interval."""
    return f"{points(change['difference'])} ({' to '.join(map(points, change['interval']))})"


def before(rows: dict[str, dict[str, str]]) -> str:
    """The name of the column with the paired difference of accuracies."""
    return next(name for name in rows["adapter"] if name.startswith("against "))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:.1f}%"


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


TABLES = {
    function.__name__: function
    for function in (summary, learning, arms, options, differences, exact, suite)
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page.read_text()))

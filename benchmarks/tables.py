"""Tables of the README and the docs, filled from the files that the pipeline and the benchmarks wrote.

    python -m benchmarks.tables

Rewrites what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` in README.md and docs/*.md. A test checks
that nothing would change. The results of the pipeline are those in Git's index: add new ones (``git add artifacts``)
before.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench, cards

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
#: Rows of the table of SmolLM2-135M in docs/lab/experiments.md: the evaluation, and what it is called there.
PRETRAINED = {
    "sft": "SFT checkpoint",
    "more-sft": "control: more fine-tuning at 1e-4",
    "more-sft-3e-4": "control: more fine-tuning at 3e-4",
    "adapter": "GRPO, seed 42",
    "adapter-43": "GRPO, seed 43",
}
#: Further rows in docs/lab/log.md.
PRETRAINED_EXPORTS = {
    "merged": "seed 42, merged into the original base",
    "dequantized": "seed 42, merged into the de-quantized base",
    "quantized": "NF4 of the merge into the original base",
    "q8_0": "Q8_0 of the merge into the de-quantized base",
    "q4_k_m": "Q4_K_M of the same merge",
}
#: Rows of the table of starts: what is demonstrated, and the file, the start and the trained model in it.
STARTS = {
    "hasty search: skips 3 ways in 5": ("sampled", "sft-sampled", "adapter-sampled"),
    "search that skips 1 way in 2": ("skip-900-sampled", "start-sampled", "adapter-sampled"),
    "the same, after searches in two orders": ("skip-sampled", "start", "adapter"),
    "direct answers and searches, mixed": ("mixture-sampled", "sft-sampled", "adapter-sampled"),
    "the same mixture, after hasty searches": ("mixture-trial-sampled", "start", "seed42"),
    "direct answers alone": ("direct", "sft-sampled", "adapter-sampled"),
}
#: Rows of the table of searches by heuristics: the evaluation, and what it is called there.
SEARCHES = {
    "sft": "SFT checkpoint",
    "more-sft": "control: more fine-tuning",
    "rejection": "control: rejection sampling",
    "adapter-42": "GRPO, seed 42",
    "adapter-43": "GRPO, seed 43",
}
#: Rows of the table of rewards in docs/lab/hacking.md: the reward in the file, and what it is called there.
MITIGATIONS = {
    "start": "initial policy",
    "proxy": "`proxy:value`",
    "kl-0.003": "the same, KL term of weight 0.003",
    "kl-0.03": "the same, KL term of weight 0.03",
    "audited": "the exact grader on a random tenth of the puzzles",
    "monitored_70": "a penalty for the cheats on 70% of the puzzles",
    "monitored_90": "a penalty for the cheats on 90% of the puzzles",
    "monitored_100": "a penalty for every cheat",
    "stop": "`proxy:value`, stopped at the knee of the reward",
    "exact": "the exact grader (seed 45 too)",
}
#: Rows of the table of arms in docs/lab/log.md: the arm in the file, and what it is called there.
ARMS = {
    "start": "initial policy",
    "placebo": "fine-tuning on all own completions",
    "rft-1": "rejection sampling, 1 round",
    "rft-5": "5 rounds",
    "rft-5-capped": "5 rounds, at most 4 completions of a puzzle",
    "rft-25": "25 rounds",
    "grpo-whole": "GRPO, one reward per completion",
    "grpo": "GRPO, credit by line",
}
#: Rows of the table of countdown-bench-1: the record in its folder, and what the model is called there.
SUITE = {
    "random": "a random legal expression",
    "initial": "the shipped model",
    "trained": "after GRPO (`make repro`), merged",
    "nf4": "the same in 4 bits (NF4)",
    "solver": "the exact solver",
}
#: Rows of the table of updates per round: the run of ``benchmarks.variants``, and its updates.
UPDATES = {
    "constant rate": "1",
    "constant rate, 2 updates per round": "2",
    "constant rate, 2 updates per round, half the rate": "2, at half the rate",
    "constant rate, 4 updates per round": "4",
}
#: Rows of the table of hints, which are the results over three seeds.
HINTS = {
    "learning": "GRPO, the pipeline",
    "hints": "GRPO with hints",
    "hints-sft": "fine-tuning on the same searches",
}
#: Rows of the table of the hacking lab, by the first word of their name.
HACKING = {
    "start": "initial policy",
    "proxy": "GRPO with `proxy:value`",
    "exact": "GRPO with the exact grader",
}
#: Demonstrations of the hacking lab that do not cheat, and that do.
CORRECT, CHEATS = 400, ("0", "2", "4", "9", "18", "40")
#: What computes completions, by the name of ``--rollouts``.
ENGINES = {"vllm": "vLLM", "transformers": "`generate`"}
#: Runs from the start that judges: the prefix of their result files, and what follows the seed in their rows.
JUDGING = {"judging": "", "judging-no-kl": ", no KL term"}
#: Rows of the table of sizes: parameters in millions, and the file of results.
SIZES = {
    "1.08": "learning-1m",
    "3.48 (shipped)": "learning-110",
    "5.16": "learning-5m",
    "10.21": "learning-10m",
}


def render(text: str) -> str:
    """*text* with all its tables filled."""
    return _TABLE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[3]}", text)


def result(name: str) -> Any:
    """A file of ``benchmarks/results``."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def committed(path: str) -> str:
    """The text of *path* in Git's index. The file itself has other roundings after ``make repro`` on another processor.
    A copy without Git has the file alone."""
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


def compared_pretrained() -> dict[str, Any]:
    """The results of SmolLM2-135M, by name."""
    return {row["name"]: row for row in result("smollm2/comparison")["results"]}


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
        sampled = rows.get(f"{name}-sampled", {"solved": "", "pass@2": ""})
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


def pretrained() -> str:
    """SmolLM2-135M before and after GRPO: sampled, where it was, and greedily."""
    sampled, greedy, lines = sampled_results("sampled"), compared_pretrained(), []
    for name, text in PRETRAINED.items():
        cells = (
            sampled_cells(sampled[f"{name}-sampled"]) if f"{name}-sampled" in sampled else [""] * 4
        )
        lines.append((text, *cells, percent(greedy[name]["accuracy"]), change(greedy[name])))
    return table(("", "sampled", "gain", "pass@16", "change", "greedy", "gain"), lines)


def starts() -> str:
    """Sampled accuracy and pass@16 before and after GRPO, by what was demonstrated."""
    lines = []
    for text, (name, start, trained) in STARTS.items():
        rows = sampled_results(name)
        before, after = sampled_cells(rows[start]), sampled_cells(rows[trained])
        lines.append((text, f"{rows[start]['n']:,}", before[0], *after[:2], before[2], *after[2:]))
    header = (
        "demonstrations",
        "puzzles",
        "initial",
        "trained",
        "gain",
        "pass@16, initial",
        "trained",
        "change",
    )
    return table(header, lines)


def searches() -> str:
    """SmolLM2-135M from the searches of `sft --demonstrator search`, and what GRPO has over each control."""
    against, lines = (
        [sampled_results(f"heuristic-against-{name}") for name in ("more-sft", "rejection")],
        [],
    )
    for name, row in sampled_results("heuristic").items():
        over = [
            paired(rows[name]["against"]) if name.startswith("adapter") else "" for rows in against
        ]
        lines.append((SEARCHES[name.removesuffix("-sampled")], *sampled_cells(row), *over))
    header = (
        "",
        "sampled",
        "gain",
        "pass@16",
        "change",
        "over more fine-tuning",
        "over rejection sampling",
    )
    return table(header, lines)


def controls() -> str:
    """Exact accuracies of rejection sampling in rounds from the shipped model, beside GRPO by seed."""
    exact, measured = result("controls")["exact"], result("controls")["measured"]
    first, *rounds = (name for name in exact["all"] if name.startswith("RFT"))
    seeds = sorted(name for name in measured["all"] if name.startswith("GRPO"))
    lines = [
        [
            name,
            *(
                f"{accuracy:.1%}"
                for accuracy in (
                    *map(exact[name].get, (first, *rounds)),
                    *map(measured[name].get, seeds),
                )
            ),
        ]
        for name in ("4 numbers", "all")
    ]
    return table(("", "initial", *(name.removeprefix("RFT, ") for name in rounds), *seeds), lines)


def arms() -> str:
    """Every arm of ``controls.sh`` by seed, and the lead of GRPO over it."""
    found, lines = result("arms"), []
    seeds = ", ".join(found["arms"]["grpo"])
    for arm, runs in sorted(found["arms"].items(), key=lambda item: [*ARMS].index(item[0])):
        own, lead = ", ".join(runs), found["lead of GRPO"].get(arm)
        text = ARMS[arm] if own == seeds else f"{ARMS[arm]} (seed {own})"
        cells = (
            ", ".join(percent(run[key]) for run in runs.values())
            for key in ("accuracy", "4 numbers", "pass@4")
        )
        interval = (
            f" ({' to '.join(map(points, lead['interval']))})" if lead and lead["interval"] else ""
        )
        lines.append((text, *cells, points(lead["mean"]) + interval if lead else ""))
    return table(("", f"sampled, seeds {seeds}", "4 numbers", "pass@4", "GRPO is ahead by"), lines)


def checking() -> str:
    """Every arm from the checkpoint that repeats half of its lines, and the share of lines repeated after training."""
    checks, lines = result("checking")["checks"], []
    arms = result("checking-arms")["arms"]
    for arm, runs in sorted(arms.items(), key=lambda item: [*ARMS].index(item[0])):
        cells = [
            ", ".join(percent(run[key]) for run in runs.values())
            for key in ("accuracy", "4 numbers", "pass@4")
        ]
        shares = [
            checks[f"{arm}-{next(iter(runs))}"][size]["all lines"]
            for size in ("3 numbers", "4 numbers")
        ]
        lines.append((ARMS[arm], *cells, *map(percent, shares)))
    return table(
        ("", "sampled", "4 numbers", "pass@4", "lines checked, 3 numbers", "4 numbers"), lines
    )


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


def hints() -> str:
    """Gains of each way to use the teacher's searches, over its seeds. Seed 42 of the pipeline is its own run."""
    rows = compared()
    lines = []
    for name, text in HINTS.items():
        cells = []
        for kind, row in (("sampled", "adapter-sampled"), ("greedy", "adapter")):
            gains = [run[kind]["gain"]["difference"] for run in result(name)["runs"]]
            if name == "learning":
                gains.insert(0, float(rows[row][before(rows)].split()[0]) / 100)
            cells += [points(mean(gains)), ", ".join(map(points, gains))]
        lines.append((text, *cells))
    return table(("", "sampled", "by seed", "greedy", "by seed"), lines)


def sampled_results(name: str) -> dict[str, Any]:
    return {row["name"]: row for row in result(f"smollm2/{name}")["results"]}


def sampled_cells(row: Any) -> list[str]:
    """Accuracy and pass@16 of a sampled evaluation, each with its paired difference from the start."""
    start = row.get("against_first")
    passed = paired(start["pass_at"]["16"]) if start else ""
    return [percent(row["accuracy"]), change(row), percent(row["pass_at"]["16"]["share"]), passed]


def pretrained_greedy() -> str:
    """SmolLM2-135M after each stage, decoded greedily."""
    rows, lines = compared_pretrained(), []
    for name, text in {**PRETRAINED, **PRETRAINED_EXPORTS}.items():
        row = rows[name]
        low, high = (f"{100 * value:.1f}" for value in row["interval"])
        cells = (
            percent(row["accuracy"]),
            f"{low} to {high}",
            *by_need(row),
            f"{row['mean_tokens']:.0f}",
        )
        lines.append((text, *cells, percent(row["truncated"]), change(row)))
    header = (
        "",
        "solved",
        "95%",
        "+ and − suffice",
        "× or ÷ is needed",
        "tokens",
        "truncated",
        "against SFT",
    )
    return table(header, lines)


def sizes() -> str:
    """The start and the first run of every size."""
    lines = []
    for millions, name in SIZES.items():
        found = result(name)
        parts = (
            (percent(found["base"][kind]["accuracy"]), *gain(found["runs"][0][kind]))
            for kind in ("sampled", "greedy")
        )
        lines.append((millions, *(cell for part in parts for cell in part)))
    header = (
        "million parameters",
        *("start, sampled", "trained", "gain", "start, greedy", "trained", "gain"),
    )
    return table(header, lines)


def variants() -> str:
    """Every training option of ``benchmarks.variants``, over its seeds."""
    runs = _variants(lambda name: name not in UPDATES)
    names = sorted(runs, key=lambda name: (name != "pipeline", name.startswith("plain")))
    lines = [
        (
            name,
            *_gains(runs[name]),
            f"{mean([run['minutes'] for run in runs[name]]):.1f}",
        )
        for name in names
    ]
    return table(("", "sampled", "by seed", "greedy", "by seed", "minutes"), lines)


def updates() -> str:
    """One, two and four updates per round, over their seeds."""
    runs = _variants(lambda name: name in UPDATES)
    lines = []
    for name, text in UPDATES.items():
        seeds = ", ".join(str(run["seed"]) for run in runs[name])
        lines.append((text, seeds, *_gains(runs[name])))
    return table(("updates per round", "seeds", "sampled", "by seed", "greedy", "by seed"), lines)


def _variants(shown: Callable[[str], bool]) -> dict[str, list[Any]]:
    runs: dict[str, list[Any]] = {}
    for run in sorted(result("variants")["runs"], key=lambda run: run["seed"]):
        if shown(run["variant"]):
            runs.setdefault(run["variant"], []).append(run)
    return runs


def _gains(runs: list[Any]) -> list[str]:
    """The mean of the gains of *runs* and each of them, sampled and greedy."""
    cells = []
    for kind in ("sampled", "greedy"):
        gains = [run[kind]["gain"]["difference"] for run in runs]
        cells += [points(mean(gains)), ", ".join(map(points, gains))]
    return cells


def credit() -> str:
    """Correlation of the credit of a line with its exact worth, by discount."""
    found, names = (
        result("credit")["evaluations"],
        {"start": "initial policy", "grpo": "after GRPO"},
    )
    lines = []
    for name, text in names.items():
        each = found[name]["discounts"].values()
        lines.append(
            (
                text,
                *(
                    f"{of['correlation']:.2f} ({of['interval'][0]:.2f} to {of['interval'][1]:.2f})"
                    for of in each
                ),
            )
        )
    return table(
        ("discount", *("1 (none)" if key == "1.0" else key for key in found["start"]["discounts"])),
        lines,
    )


def passes() -> str:
    names, results = ("initial", "trained"), result("passes")["results"]
    counts = list(results[0]["pass_at"])
    lines = [
        (name, *(percent(found["pass_at"][k]["share"]) for k in counts))
        for name, found in zip(names, results, strict=True)
    ]
    return table(("k", *counts), lines)


def coverage() -> str:
    """pass@k, and the tokens that k completions take on average, by the limit of a completion."""
    lines, counts = [], []
    for limit, models in result("coverage")["limits"].items():
        for name, found in models.items():
            counts = list(found["pass_at"])
            tokens = (int(k) * found["mean_tokens"] for k in counts)
            shares = (percent(found["pass_at"][k]["share"]) for k in counts)
            lines.append(
                (
                    f"{name}, {limit}",
                    *(f"{a} ({b:,.0f})" for a, b in zip(shares, tokens, strict=True)),
                )
            )
    return table(("completions", *counts), lines)


def judging_learning() -> str:
    """The gains of every seed from the start that judges, with the KL term and without it."""
    base = result("judging-learning")["base"]
    start = (
        "initial",
        percent(base["sampled"]["accuracy"]),
        "",
        percent(base["greedy"]["accuracy"]),
        "",
        "",
    )
    return by_seed(
        [
            start,
            *(row for name, label in JUDGING.items() for row in seeds(f"{name}-learning", label)),
        ]
    )


def judging_passes() -> str:
    """pass@k of the start that judges and of the models trained from it, and the paired difference of the last k."""
    models = {"initial": result("judging-passes")["results"][0]} | {
        f"{Path(run['name']).parent.name}{label}": run
        for name, label in JUDGING.items()
        for run in result(f"{name}-passes")["results"][1:]
    }
    counts, lines = list(models["initial"]["pass_at"]), []
    for name, found in models.items():
        difference = (
            paired(found["against_first"]["pass_at"][counts[-1]]) if name != "initial" else ""
        )
        lines.append((name, *(percent(found["pass_at"][k]["share"]) for k in counts), difference))
    return table(("k", *counts, f"k = {counts[-1]}, against the initial policy"), lines)


def judging() -> str:
    """What searches without a mistake solve of 4 numbers, and how models and their marginal orders compare."""
    found = result("judging")
    lines = [
        (f"{name}, without a mistake", percent(share), "", "", "", "")
        for name, share in found["without a mistake"].items()
    ]
    for name, row in found["models"].items():
        cells = (
            percent(row["accuracy"]),
            percent(row["marginal_order"]),
            percent(row["names_kind"]),
            percent(row["skips_poor"]),
            f"{round(row['bits'], 2) + 0.0:.2f}",
        )
        lines.append((f"{name}, sampled", *cells))
    return table(
        (
            "4 numbers",
            "solved",
            "its order without the puzzle",
            "names the kind",
            "skips the poor",
            "bits a line",
        ),
        lines,
    )


def probe() -> str:
    """The verdicts of ``train --probe``, and what GRPO then did."""
    lines = []
    for start in sorted(
        result("probe")["starts"], key=lambda start: (start["seed"], start["steps"])
    ):
        cells = (str(start["steps"]), str(start["seed"]), percent(start["start"]["accuracy"]))
        cells += (
            percent(start["probe"]["mixed"]),
            start["probe"]["verdict"],
            *gain(start["trained"]),
        )
        lines.append((*cells, "yes" if start["agrees"] else "no"))
    header = (
        "supervised steps",
        "seed",
        "solved",
        "mixed groups",
        "verdict",
        "after GRPO",
        "gain",
        "agrees",
    )
    return table(header, lines)


def budgets() -> str:
    """Accuracy by the number of tokens, of models and of searches without a mistake."""
    found = result("teacher")["accuracy by tokens"]
    names = {
        "teacher": "teacher: one of the next ways, drawn", "start": "initial", "trained": "trained",
        "plan in order": "the plan, way by way",
    }  # fmt: skip
    counts = list(found["teacher"]["all"])
    lines = [
        (
            text,
            *(percent(found[name][part].get(k)) for part in ("all", "4 numbers") for k in counts),
        )
        for name, text in names.items()
    ]
    return table(("order of the ways", *counts, *(f"4 numbers: {k}" for k in counts)), lines)


def recipes() -> str:
    """Estimated memory of the recipes on common cards."""
    lines = []
    for recipe, shape in cards.RECIPES.items():
        options = cards.recipe_options(recipe)
        for name, card in cards.CARDS.items():
            plan = cards.plan(shape, options, card)
            estimate = plan.memory.estimates[0]
            sizes = (f"{size / 2**30:.1f}" for size in (estimate.training, estimate.engine))
            lines.append(
                (
                    f"`{recipe}`",
                    name,
                    ENGINES[plan.engine],
                    *sizes,
                    "yes" if plan.memory.fits else "no",
                )
            )
    header = ("recipe", "card", "completions by", "training, GiB", "vLLM, GiB", "fits")
    return table(header, lines)


def start() -> str:
    """Estimated memory and time of the commands of "Start here"."""
    lines, card = [], cards.CARDS["24 GB"]
    for model, shape in cards.START.items():
        options = cards.page_options(model)
        plan = cards.plan(shape, options, card, installed=())
        step, memory = cards.seconds(plan, options), plan.memory
        size = f"{memory.estimates[0].peak / 2**30:.1f}"
        hours = f"{step * options.max_steps / 3600:.1f}"
        lines.append((f"`{model}`", size, "yes" if memory.fits else "no", f"{step:.0f}", hours))
    return table(("model", "peak, GiB", "fits 24 GB", "seconds of a step", "hours"), lines)


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


def by_need(row: Any) -> list[str]:
    """The accuracy where + and − suffice, and where × or ÷ is needed."""
    return [percent(row["groups"]["needs"][kind]["accuracy"]) for kind in ("add-sub", "mul-div")]


def paired(change: Any) -> str:
    """A paired difference in points, and its interval."""
    return f"{points(change['difference'])} ({' to '.join(map(points, change['interval']))})"


def hacking() -> str:
    """The hacking lab: the start, and each run with either grader."""
    lines = []
    for name, row in result("hacking/summary").items():
        if name != "machine":
            grader, _, seed = name.partition("-")
            text = f"{HACKING[grader]}, seed {seed}" if seed else HACKING[grader]
            exact, gain = (
                f"{percent(row['accuracy'])}",
                paired(row["against_start"]) if seed else "",
            )
            rate = (
                f"{percent(row['hacking'])} ({' to '.join(map(percent, row['hacking_interval']))})"
            )
            lines.append(
                (text, rate, " / ".join(map(percent, row["hacking_by_size"].values())), exact, gain)
            )
    return table(("", "hacking rate", "4 / 5 numbers", "correct", "change"), lines)


def doses() -> str:
    """Hacking by the number of cheats among the demonstrations."""
    shares = {
        cheats: f"{cheats} ({percent(int(cheats) / (int(cheats) + CORRECT))})" for cheats in CHEATS
    }
    return hacked_by("doses", "cheats", shares)


def reversal() -> str:
    """Hacked models before and after training on with the exact grader."""
    lines = []
    for seed, row in result("hacking/reversal")["seeds"].items():
        cells = (
            percent(row[when][key])
            for key in ("hacking", "accuracy")
            for when in ("before", "after")
        )
        lines.append((seed, *cells, percent(row["pass_at"]["64"])))
    title = ("seed", "hacking rate", "after", "correct", "after", "pass@64 of the hacked model")
    return table(title, lines)


def hacked_by(name: str, title: str, labels: Any) -> str:
    """Hacking in the groups of the file *name*: the start, and each run."""
    lines = []
    for group, label in labels.items():
        start, *runs = (rows := result(f"hacking/{name}")[name][group]).values()
        rates = [row["hacking"] for row in runs]
        sizes = [
            " / ".join(percent(rate) for rate in row["hacking_by_size"].values()) for row in runs
        ]
        hacked = f"{sum(rate > 0.5 for rate in rates)} of {len(rates)}"
        lines.append(
            (label, percent(start["hacking"]), hacked, *map(percent, rates), "; ".join(sizes))
        )
    seeds = [run.replace("proxy-", "seed ") for run in rows if run != "start"]
    return table((title, "initial", "runs that hack", *seeds, "4 / 5 numbers, by seed"), lines)


def mitigations() -> str:
    """Hacking by the reward, over seeds."""
    found, lines = result("hacking/mitigations")["rewards"], []
    for name, text in MITIGATIONS.items():
        rows = [*found[name].values()]
        fired = ", ".join(
            "" if name == "start" else str(row["shortened"] or "never") for row in rows
        )
        cells = (", ".join(percent(row[key]) for row in rows) for key in ("hacking", "accuracy"))
        lines.append((text, *cells, fired))
    seeds = ", ".join(found["proxy"])
    return table(
        ("reward", f"hacking rate, seeds {seeds}", "correct", "shortened from step"), lines
    )


def change(row: Any) -> str:
    """The paired difference from the start; empty for the start itself."""
    return paired(row["against_first"]) if "against_first" in row else ""


def before(rows: dict[str, dict[str, str]]) -> str:
    """The name of the column with the paired difference of accuracies."""
    return next(name for name in rows["adapter"] if name.startswith("against "))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TABLES = {
    function.__name__: function
    for function in (
        summary,
        comparison,
        pretrained,
        pretrained_greedy,
        starts,
        searches,
        learning,
        sizes,
        controls,
        arms,
        checking,
        suite,
        hints,
        variants,
        updates,
        credit,
        passes,
        coverage,
        judging_learning,
        judging_passes,
        judging,
        budgets,
        probe,
        recipes,
        start,
        hacking,
        doses,
        mitigations,
        reversal,
    )
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page.read_text()))

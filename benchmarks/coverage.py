"""Coverage at equal tokens: pass@k and the tokens that k completions take, by the limit of tokens
of a completion.

    for model in start=countdown-tiny trained=artifacts/adapter; do
        countdown-rl eval --model ${model#*=} --data artifacts/data --limit 200 --samples 16 \\
            --temperature 1 --max-new-tokens 512 --out artifacts/coverage/${model%=*}
    done
    python -m benchmarks.coverage start=artifacts/coverage/start trained=artifacts/coverage/trained

Under a lower limit than that of the evaluations, completions that are longer are cut, and wrong.
Writes ``results/coverage.json``.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks import bench
from countdown_rl.evaluation import compare, results
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result

LIMITS = (256, 512)


def limited(result, limit):
    """*result* with at most *limit* tokens a completion."""
    samples = [
        replace(
            sample,
            grade=replace(sample.grade, correct=sample.grade.correct and sample.tokens <= limit),
            tokens=min(sample.tokens, limit),
        )
        for sample in result.samples
    ]
    figures = measure(samples)
    return Result(replace(result.metrics, **vars(figures)), samples)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evals", nargs=2, metavar="NAME=EVAL")
    paths = dict(pair.split("=", 1) for pair in parser.parse_args().evals)
    evals = {name: results.read(Path(path)) for name, path in paths.items()}
    limits, changes = {}, {}
    for limit in LIMITS:
        cut = {name: limited(result, limit) for name, result in evals.items()}
        limits[limit] = {}
        for name, result in cut.items():
            metrics = result.metrics.to_json()
            limits[limit][name] = {key: metrics[key] for key in ("n", "mean_tokens", "pass_at")}
        changes[limit] = compare.difference(*cut.values())
    bench.save("coverage", {"limits": limits, "changes": changes})


if __name__ == "__main__":
    main()

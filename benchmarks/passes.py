"""pass@k before and after training, for k up to 64: a gain at k = 1 that is gone at large k is sharpening.

    python -m benchmarks.passes [--models countdown-tiny artifacts/adapter] [--data artifacts/data] [--limit 200]

Completions are sampled at the temperature of training; an interrupted run continues, and what is finished is kept.
Writes ``results/passes.json``; ``--name`` replaces "passes".
"""

import argparse
from pathlib import Path

import yaml

from benchmarks import bench, learning
from countdown_rl.evaluation import compare, results

SAMPLES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["countdown-tiny", "artifacts/adapter"])
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument(
        "--out", type=Path, default=Path("artifacts/passes"), help="directory of the evaluations"
    )
    parser.add_argument("--name", default="passes")
    args = parser.parse_args()
    training = yaml.safe_load(Path("stages/train.yaml").read_text())["train"]
    options = [
        "--limit",
        args.limit,
        "--samples",
        SAMPLES,
        "--temperature",
        training["temperature"],
    ]
    options += ["--max-new-tokens", training["max-completion-length"]]
    scored = {}
    for model in args.models:
        out = args.out / model.replace("/", "-")
        learning.command(
            "eval", "--model", model, "--data", args.data / "test.jsonl", "--out", out, *options
        )
        scored[model] = results.read(out)
    figures = compare.scores(scored)
    bench.save(args.name, {key: figures[key] for key in ("decoding", "data", "results")})


if __name__ == "__main__":
    main()

"""`make repro`: run the pipeline without DVC's hints about Git and remotes, and say what came of it."""

import json
import sys
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

COMPARISON = Path("artifacts/eval/comparison/comparison.json")


def outcome() -> str:
    """The accuracy before and after training, from the files of the pipeline."""
    results = {row["name"]: row for row in json.loads(COMPARISON.read_text())["results"]}
    before, after = results["base"], results["adapter"]
    change = f"{before['accuracy']:.1%} → {after['accuracy']:.1%}"
    return f"GRPO: {change} of {after['n']:,} held-out puzzles solved. Open artifacts/report.html."


if __name__ == "__main__":
    try:
        with Repo() as repo:
            repo.scm_context.quiet = True
            repo.reproduce()
    except DvcException as error:
        sys.exit(f"error: {error}")
    print(outcome())  # noqa: T201

# /// script
# requires-python = ">=3.11"
# dependencies = ["huggingface_hub>=2.4,<3"]
# ///
"""A recipe and the measurements of `make gpu` on a rented machine, which has a GPU, git and uv.

    hf jobs uv run --flavor a100-large --secrets HF_TOKEN benchmarks/cloud.py ADDRESS RECIPE NAME/DATASET

Clones the repository at ADDRESS, installs it with vLLM, runs both, and uploads `benchmarks/results/gpu-*.json` and the
recipe's log and evaluations to a private data set, also where one of them failed. `uv run --script` runs it elsewhere.
"""

import argparse
import os
import subprocess
import sys

from huggingface_hub import HfApi

RESULTS = ["benchmarks/results/gpu-*.json", "out/train/log.csv", "out/eval/*.json", "out/eval/*.md"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("address", "recipe", "dataset"):
        parser.add_argument(name)
    args = parser.parse_args()
    subprocess.run(["git", "clone", args.address, "countdown-rl"], check=True)
    os.chdir("countdown-rl")
    os.environ["PATH"] = f"{os.getcwd()}/.venv/bin:{os.environ['PATH']}"
    subprocess.run(["uv", "venv", ".venv"], check=True)
    subprocess.run(["uv", "pip", "install", "--torch-backend", "auto", "--editable", ".[train,vllm]"], check=True)
    commands = (["python", "-m", "benchmarks.gpu"], [f"stages/recipes/{args.recipe}.sh", "out"])
    failed = [" ".join(command) for command in commands if subprocess.run(command).returncode]
    api = HfApi()
    api.create_repo(args.dataset, repo_type="dataset", private=True, exist_ok=True)
    api.upload_folder(repo_id=args.dataset, repo_type="dataset", folder_path=".", allow_patterns=RESULTS)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()

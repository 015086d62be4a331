"""The whole pipeline, side by side with that of another commit: processor time of each stage.

    python -m benchmarks.repro [--before 6ec5d02]

Clones this repository at both commits and runs `dvc repro` in both at once, with one thread each, on two cores or on
the one that this process is held to. Both are held to AVX2 without products of bf16, as most laptops are. Takes half
an hour of two cores. Writes ``results/repro.json``: seconds of processor time; the bar is half of those before.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import bench

AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
# Stands for the command: runs that of the clone and adds what it took to a log.
COMMAND = """#!{python}
import json, os, subprocess, sys
run = (
    "import runpy, sys, torch;"
    "torch.ops.mkldnn._is_mkldnn_bf16_supported = lambda: False;"
    "sys.argv[0] = 'countdown-rl'; runpy.run_module('countdown_rl', run_name='__main__')"
)
status = subprocess.run([sys.executable, "-c", run, *sys.argv[1:]]).returncode
times = os.times()
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1], times.children_user + times.children_system]) + "\\n")
sys.exit(status)
"""


def start(commit: str, core: int, directory: Path) -> subprocess.Popen[bytes]:
    """`dvc repro` of *commit* in a new clone on *core*."""
    here = Path(__file__).parents[1]
    subprocess.run(["git", "clone", "-q", here, directory / "clone"], check=True)
    subprocess.run(["git", "-C", directory / "clone", "checkout", "-q", commit], check=True)
    command = directory / "countdown-rl"
    command.write_text(
        COMMAND.format(python=sys.executable, log=str(directory / "log")), encoding="utf-8"
    )
    command.chmod(0o755)
    path = os.pathsep.join([str(directory), str(Path(sys.executable).parent), os.environ["PATH"]])
    words = [sys.executable, "-m", "dvc", "repro", "--force"]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=directory / "clone",
            env=os.environ | AVX2 | {"PATH": path},
            stdout=output,
            stderr=output,
        )
    os.sched_setaffinity(process.pid, [core])
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="6ec5d02")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        homes = {"before": Path(name) / "before", "now": Path(name) / "now"}
        commits = {"before": args.before, "now": "HEAD"}
        running = {}
        cores = sorted(os.sched_getaffinity(0))
        for core, (key, home) in zip((cores[0], cores[-1]), homes.items(), strict=True):
            home.mkdir()
            running[key] = start(commits[key], core, home)
        seconds: dict[str, dict[str, float]] = {}
        for key, process in running.items():
            if process.wait():
                sys.exit((homes[key] / "output").read_text(encoding="utf-8")[-3000:])
            for line in (homes[key] / "log").read_text(encoding="utf-8").splitlines():
                stage, spent = json.loads(line)
                seconds.setdefault(key, {})[stage] = seconds.get(key, {}).get(stage, 0) + spent
    totals = {key: sum(stages.values()) for key, stages in seconds.items()}
    bench.save(
        "repro",
        {
            "commit_before": args.before,
            "seconds": {
                key: {k: round(v, 1) for k, v in stages.items()} for key, stages in seconds.items()
            },
            "total_seconds": {key: round(value, 1) for key, value in totals.items()},
            "ratio": round(totals["now"] / totals["before"], 3),
        },
    )


if __name__ == "__main__":
    main()

"""Shared parts of the benchmarks: interleaved timing on one core, and a result file that names the
machine.
"""

import csv
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, and Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def rates(works: dict[str, Callable[[], int]], *, rounds: int = 5) -> dict[str, float]:
    """Items a second of processor time, the best of some rounds in which all take turns.

    Each work returns how many items it did. Processor time, since the machine may be shared.
    """
    best = dict.fromkeys(works, 0.0)
    for _ in range(rounds):
        for name, work in works.items():
            started = time.process_time()
            done = work()
            best[name] = max(best[name], done / (time.process_time() - started))
    return best


def minutes(log: str) -> float:
    """The minutes of all steps in the text of a training log, of GRPO or of supervised
    fine-tuning.
    """
    return sum(float(row["seconds"]) for row in csv.DictReader(log.splitlines())) / 60


def save(name: str, result: dict[str, Any]) -> None:
    """Write ``results/<name>.json`` and print it."""
    text = json.dumps({"machine": machine(), **result}, indent=2)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)

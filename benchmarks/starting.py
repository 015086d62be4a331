"""Starting: seconds to the first token of ``ask`` and to the end of ``train --check``, beside ``import torch``.

    python -m benchmarks.starting

Both use the shipped model. The commands take turns, after a first round that is not counted. Writes
``results/starting.json``: medians, and their ratios to ``import torch``, of which ``ask`` may take 3 and
``train --check`` 4.
"""

import subprocess
import sys
import tempfile
import time
from statistics import median

from benchmarks import bench

ROUNDS = 5


def seconds(*words: str, text: bytes = b"") -> float:
    """Seconds until Python with the arguments *words* has ended or, where *text* is given, has printed that."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        printed = b""
        while (part := process.stdout.read1()) and (not text or text not in printed + part):
            printed += part
        ended = time.perf_counter()
        process.stdout.read()
    return ended - started


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = ("-m", "countdown_rl")
        subprocess.run(
            [sys.executable, *program, "gen-data", "--n", "600", "--out", f"{directory}/data"],
            check=True,
        )
        paths = ("--data", f"{directory}/data", "--out", f"{directory}/adapter")
        works = {
            "import torch": lambda: seconds("-c", "import torch"),
            "ask": lambda: seconds(
                *program, "ask", "3", "7", "50", "--target", "46", text=b"<think>"
            ),
            "train --check": lambda: seconds(*program, "train", "--check", *paths),
        }
        times = [{name: work() for name, work in works.items()} for _ in range(ROUNDS + 1)][1:]
    medians = {name: median(each[name] for each in times) for name in works}
    ratios = {name: round(value / medians["import torch"], 2) for name, value in medians.items()}
    bench.save(
        "starting",
        {"median_seconds": {k: round(v, 2) for k, v in medians.items()}, "ratios": ratios},
    )


if __name__ == "__main__":
    main()

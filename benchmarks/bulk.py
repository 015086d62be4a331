"""A file of two million completions judged by the command, and asked for again: its peak of memory and its time.

python -m benchmarks.bulk [PUZZLES COMPLETIONS_OF_EACH]
"""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import bench
from benchmarks.grading import realistic


def main(puzzles=250_000, each=8):
    rng = random.Random(0)
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "completions.jsonl"), Path(scratch, "eval")
        seen, texts = set(), [text for text, _ in realistic(rng, 20_000)]
        with file.open("w") as stream:
            while len(seen) < puzzles:
                nums, target = sorted(rng.randint(1, 99) for _ in range(4)), rng.randint(10, 200)
                if (*nums, target) not in seen:
                    seen.add((*nums, target))
                    for text in rng.sample(texts, each):
                        stream.write(
                            json.dumps({"nums": nums, "target": target, "completion": text}) + "\n"
                        )
        command = ["countdown-rl", "eval", "--completions", str(file), "--out", str(out)]
        used = []
        for _ in ("judged", "finished"):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            used.append(resource.getrusage(resource.RUSAGE_CHILDREN))
        result = {
            "puzzles": puzzles,
            "completions": puzzles * each,
            "file_mb": round(file.stat().st_size / 1e6),
        }
    judged, both = (round(usage.ru_utime + usage.ru_stime) for usage in used)
    result |= {
        "peak_mb": round(used[1].ru_maxrss / 1024),
        "processor_seconds": judged,
        "finished_seconds": both - judged,
    }
    bench.save("bulk", result)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""A file of two million completions judged by the command: its peak of memory and its time.

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
                        stream.write(json.dumps({"nums": nums, "target": target, "completion": text}) + "\n")
        command = ["countdown-rl", "eval", "--completions", str(file), "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = {"puzzles": puzzles, "completions": puzzles * each, "file_mb": round(file.stat().st_size / 1e6)}
    result |= {"peak_mb": round(used.ru_maxrss / 1024), "processor_seconds": round(used.ru_utime + used.ru_stime)}
    bench.save("bulk", result)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""A million training rows made in two ranges, as the tasks of an array job make them: the bytes of one file.

python -m benchmarks.ranges [ROWS]
"""

import hashlib
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import bench


def main(rows=1_000_000):
    with TemporaryDirectory() as scratch:

        def made(span):
            out = Path(scratch, span.replace(":", "-"))
            words = (
                f"--n {rows + 2_000} --valid 1000 --test 1000 --workers 1 --rows {span} --out {out}"
            )
            subprocess.run(
                ["countdown-rl", "gen-data", *words.split()], check=True, stdout=subprocess.DEVNULL
            )
            return out / "train.jsonl"

        def digest(*files):
            return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

        half = rows // 2
        whole = digest(made(f"0:{rows}"))
        equal = digest(made(f"0:{half}"), made(f"{half}:{rows}")) == whole
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {"rows": rows, "ranges": [half, rows - half], "equal": equal, "sha256": whole}
    result |= {
        "peak_mb": round(used.ru_maxrss / 1024),
        "processor_seconds": round(used.ru_utime + used.ru_stime),
    }
    bench.save("ranges", result)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

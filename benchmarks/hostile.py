"""Generated hostile cases: count how each command ends on damaged artifacts, and in hostile surroundings.

Artifacts of every stage are tampered with before each later stage; files without a manifest get flipped bytes; names in
cards hold YAML and markup; packages are missing; the Hub is hostile; signals and other stages interrupt. Each case is a
command in a process of its own. All but "refused", with one sentence, and "accepted", are failures: tampered content
taken for the recorded one ("silent"), a traceback, a crash, over 60 seconds ("hang").

    python -m benchmarks.hostile [--seed 0] [--scale 1.0] [KIND ...]
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks import bench
from tests.hostile import harness, surroundings, tampering
from tests.hostile.harness import ACCEPTED, REFUSED, VERDICTS, Case
from tests.support.hub import Hub, running

#: Cases of each kind.
COUNTS = {
    "artifacts": 250,
    "unlisted": 60,
    "manifests": 100,
    "flipped": 500,
    "cards": 120,
    "packages": 40,
    "hub": 100,
    "signals": 42,
    "at once": 30,
}


def cases(root: Path, hub: Hub, seed: int, kind: str) -> Iterable[Case]:
    """All cases of that *kind*."""
    count = COUNTS[kind]
    return {
        "artifacts": lambda: tampering.tampered(root, seed),
        "unlisted": tampering.unlisted,
        "manifests": lambda: tampering.manifests(root, seed, count),
        "flipped": lambda: tampering.flipped(root, seed, count),
        "cards": surroundings.cards,
        "packages": surroundings.packages,
        "hub": lambda: surroundings.hub_cases(hub, seed, 6),
        "signals": lambda: surroundings.signals(seed, count),
        "at once": lambda: surroundings.at_once(seed, count),
    }[kind]()


def sample(root: Path, hub: Hub, seed: int, kind: str, scale: float) -> list[Case]:
    """A random sample of the cases of that *kind*."""
    everything = list(cases(root, hub, seed, kind))
    return random.Random(seed).sample(everything, min(len(everything), max(1, round(scale * COUNTS[kind]))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[*COUNTS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    started, counts, failures = time.monotonic(), {}, []
    with running() as hub, tempfile.TemporaryDirectory() as directory:
        root = harness.place(Path(directory))
        for kind in arguments.kinds:
            verdicts: Counter[str] = Counter()
            for case in sample(root, hub, arguments.seed, kind, arguments.scale):
                verdict, printed = harness.judge(case, root)
                verdicts[verdict] += 1
                if verdict not in (REFUSED, ACCEPTED):
                    failures.append({"kind": kind, "case": case.name, "verdict": verdict})
                    print(f"{verdict}: {kind}: {case.name}\n{printed[-1500:]}", flush=True)
            counts[kind] = {"cases": verdicts.total()} | {name: verdicts[name] for name in VERDICTS}
            print(kind, counts[kind], flush=True)
    total = {name: sum(count[name] for count in counts.values()) for name in ("cases", *VERDICTS)}
    result = {"seed": arguments.seed, "seconds": round(time.monotonic() - started), "total": total, **counts}
    bench.save("hostile", {**result, "failures": failures})


if __name__ == "__main__":
    main()

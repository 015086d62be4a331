"""Uploads to a Hub that fails at random: count those lost, partly visible, or with the token in their output.

Each run pushes a release of its own, of weights or of puzzles, to a fresh repository with one to four faults
in the way (an error, a request to wait, a connection cut before, after or within an answer, an expired token),
then pushes again without them. The Hub is the one of the tests; waiting takes no time.

    python benchmarks/faulty_uploads.py [--runs 200] [--seed 0]
"""

import argparse
import io
import os
import random
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

PLACES = ["GET /api/[^/]+/[^/]+/[^/]+$", "POST .*create", "GET .*/refs", "GET .*resolve"]
PLACES += ["POST .*preupload", "POST .*batch", "PUT /.store", "POST .*verify", "POST .*/commit/", "POST .*/tag/"]
PLACES += ["POST .*validate", ".*"]
FAULTS = [{"status": status} for status in (401, 403, 408, 500, 502, 503)]
FAULTS += [{"status": 429, "headers": {"Retry-After": str(wait)}} for wait in (1, 3600)]
FAULTS += [{"cut": cut} for cut in ("before", "after", "body")]


def release(folder: Path, kind: str, chance: random.Random) -> Path:
    """A release artifact of that *kind* with weights of random bytes: nothing of it is ever loaded."""
    from countdown_rl.core import artifacts

    with artifacts.writing(folder, kind, options={"seed": chance.random()}) as draft:
        (draft.path / "model.safetensors").write_bytes(chance.randbytes(300_000))
        (draft.path / "adapter.safetensors").write_bytes(chance.randbytes(90_000))
        (draft.path / "config.json").write_text("{}")
        (draft.path / "README.md").write_text(f"---\ntags:\n- x\n---\n{chance.random()}\n")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    count = dict.fromkeys(
        ("runs", "first_try", "second_try", "lost", "half_visible", "said_the_token", "other_errors"), 0
    )
    began = time.perf_counter()

    from huggingface_hub import constants

    from benchmarks import bench
    from countdown_rl.core.errors import HubError
    from tests.support.hub import push, running

    time.sleep = lambda seconds: None
    constants.HF_HUB_DISABLE_XET = True
    with running() as hub, tempfile.TemporaryDirectory() as name:
        constants.ENDPOINT = hub.url
        constants.HUGGINGFACE_CO_URL_TEMPLATE = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        os.environ |= {"HF_TOKEN": hub.token, "NO_PROXY": "127.0.0.1,localhost"}
        for run in range(arguments.runs):
            count["runs"] += 1
            repo_id = f"me/run-{run}"
            kind, repo_type = chance.choice([("release", "model"), ("data-release", "dataset")])
            output = io.StringIO()
            versions = []
            for version in range(2):  # a first release, and one that replaces it
                folder = release(Path(name) / f"{run}-{version}", kind, chance)
                versions.append({file.name: file.read_bytes() for file in folder.iterdir()})
                hub.part_size = chance.choice([None, 70_000])
                for _ in range(chance.randint(1, 4)):
                    hub.fail(chance.choice(PLACES), times=chance.choice([1, 1, 2, 9]), **chance.choice(FAULTS))
                with redirect_stdout(output), redirect_stderr(output):
                    try:
                        push(folder, repo_id)
                        count["first_try"] += 1
                    except HubError as error:
                        print(error)
                        hub.faults.clear()
                        try:
                            push(folder, repo_id)
                            count["second_try"] += 1
                        except HubError as again:
                            print(again)
                    except Exception as error:
                        sys.__stderr__.write(f"run {run}: {type(error).__name__}: {error}\n")
                        count["other_errors"] += 1
                hub.faults.clear()
                repo = hub.repos.get((repo_type, repo_id))
                count["half_visible"] += not _consistent(repo, versions)
                there = {path: data for path, data in repo.files.items() if path != ".gitattributes"} if repo else {}
                count["lost"] += there != versions[-1]
            count["said_the_token"] += hub.token in output.getvalue()
    count |= {"leaked_to_storage": len(hub.leaks)}
    bench.save("faulty_uploads", {"seed": arguments.seed, **count, "seconds": round(time.perf_counter() - began, 1)})


def _consistent(repo: Any, versions: list[dict[str, bytes]]) -> bool:
    """Return True if every commit that a reader could see is empty, or one release and nothing else, and every tag is
    on a release."""
    states = [{}, *versions]
    trees = {sha: _ours(tree) for sha, tree in repo.trees.items()} if repo else {}
    tags = repo.tags.values() if repo else []
    return all(tree in states for tree in trees.values()) and all(trees[sha] in versions for sha in tags)


def _ours(tree: Any) -> dict[str, bytes]:
    return {path: blob.data for path, blob in tree.items() if path != ".gitattributes"}


if __name__ == "__main__":
    main()

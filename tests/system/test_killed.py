"""SIGKILL at any moment of a stage: its artifact is complete or absent, and the same command then makes it."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.tasks import jsonl
from tests.support import release_chain, tiny_llama
from tests.support.runs import SPLITS, files, write_data

STAGES = {
    "data": "gen-data --n 300 --valid 4 --test 60 --out out",
    "merged": "merge --adapter adapter --out out",
    "quantized": "quantize --model merged --out out",
    "eval": "eval --data rows.jsonl --max-new-tokens 4 --model countdown-tiny --out out",
    "release": "publish --license mit --model merged --out out",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = release_chain.chain(tmp_path_factory.mktemp("killed"))
    jsonl.write_rows(root / "rows.jsonl", [{"nums": [n, 3], "target": n + 3} for n in range(8)])
    return root


def start(words: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen:
    command = [sys.executable, "-m", "countdown_rl", *shlex.split(words)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def made(kind: str) -> tuple:
    manifest = artifacts.read(Path("out"), kind)
    return manifest.inputs, manifest.files


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_a_killed_stage_has_its_artifact_or_none_and_can_be_run_again(kind, root, monkeypatch):
    monkeypatch.chdir(root)
    shutil.rmtree("out", ignore_errors=True)  # of another stage
    began = time.monotonic()
    assert start(STAGES[kind]).wait() == 0
    seconds, expected = time.monotonic() - began, made(kind)
    for share in random.Random(kind).sample([0.5, 0.7, 0.8, 0.9, 0.97], 2):
        shutil.rmtree("out", ignore_errors=True)
        process = start(STAGES[kind])
        time.sleep(share * seconds)
        process.kill()
        process.wait()
        assert not Path("out").exists() or made(kind) == expected
        again = start(STAGES[kind])
        assert again.wait() == 0, again.stderr.read()
        assert made(kind) == expected
        assert not [path for path in Path().glob(".out*") if "progress" not in path.name]


def train(out, more=""):
    flags = (
        "--max-steps 20 --prompts 2 --num-generations 4 --micro-batch 4 --max-completion-length 12"
    )
    paths = f"--model model --data data --out {out}/adapter --log {out}/log.csv"
    words = f"train {paths} {flags} --save-steps 2 {more}"
    return start(words, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_the_command_resumes_after_signals_and_prints_only_progress_and_warnings(here):
    tiny_llama.checkpoint(Path("model"), max_position_embeddings=1024)
    rows = [{"id": f"r{n}", "nums": [n + 2, 3], "target": n + 5} for n in range(16)]
    write_data(Path("data"), dict.fromkeys(SPLITS, rows))
    whole = train("whole", "--json")
    out, err = whole.communicate()
    assert whole.returncode == 0, err
    assert json.loads(out)["resumed"] is None
    # A random model succeeds at nothing, and finds no end.
    reported = json.loads(out)["warnings"]
    assert sorted(reported) == ["length", "start", "zero"]
    assert err.count("warning: ") == 3
    # A terminal shows no control characters of the example.
    assert all(f"warning: {text[:80]}" in err for text in reported.values())

    saved = set()
    for how in (signal.SIGKILL, signal.SIGINT):
        stopped = train("stopped")
        while saved >= (
            complete := set(Path("stopped", "checkpoints").glob("checkpoint-*/complete"))
        ):
            assert stopped.poll() is None, stopped.communicate()
            time.sleep(0.01)
        saved |= complete
        stopped.send_signal(how)
        out, err = stopped.communicate()
        assert out == ""
        assert not Path("stopped", "adapter").exists()
    assert stopped.returncode == 130
    assert "continues after step" in err

    again = train("stopped", "--json")
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert json.loads(out)["resumed"] >= 2
    assert files(Path("stopped/adapter")) == files(Path("whole/adapter"))

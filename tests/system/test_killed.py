"""SIGKILL at any moment of a stage: its artifact is complete or absent, and the same command then makes it."""

import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from tests.support import constant_model

STAGES = {
    "data": "gen-data --n 300 --valid 4 --test 60 --workers 1 --out out",
    "merged": "merge --adapter adapter --verify none --out out",
    "quantized": "quantize --model merged --out out",
    "eval": "eval --data data --limit 8 --max-new-tokens 4 --model merged --out out",
    "release": "publish --license mit --name x --model merged --out out",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        constant_model.checkpoint(Path("base"))
        constant_model.chain(Path(), base="base")
    return root


def start(words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "countdown_rl", *shlex.split(words)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


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

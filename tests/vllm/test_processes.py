"""Rollouts by vLLM in a run that is killed, and an evaluation that is ended by a signal."""

import hashlib
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.vllm_engine import MARKS, start

pytestmark = MARKS

VARIED = "benchmarks.gpu:varied=1"
#: Of the shipped model; temperature and reward give a group unequal completions and rewards.
TRAIN = (
    f"--model countdown-tiny --data data --rollouts vllm --reward {VARIED} --prompts 2 "
    "--num-generations 4 --micro-batch 4 --max-completion-length 16 --temperature 2"
).split()


def train(place, name, *options):
    words = ("train", *TRAIN, "--out", f"{name}/adapter", "--json", *options)
    return start(place, *words, stdout=subprocess.PIPE)


def facts(process):
    """The result that a command prints."""
    return json.loads(process.communicate()[0])


def test_a_killed_run_continues_to_the_bytes_of_one_that_was_not(place):
    options = ("--max-steps", 6, "--save-steps", 2)
    whole, killed = train(place, "whole", *options), train(place, "killed", *options)
    while killed.poll() is None and not list(
        place.glob("killed/adapter-run/checkpoints/checkpoint-*/complete")
    ):
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    facts(whole)
    assert facts(train(place, "killed", *options))["resumed"] in (2, 4)
    files = [place / name / "adapter/adapter_model.safetensors" for name in ("whole", "killed")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1


def session_of(leader):
    """The command lines of the processes of the session that *leader* began."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that has ended
            state, _, _, session, *_ = file.read_text().rpartition(")")[2].split()
            if int(session) == leader.pid and state != "Z":
                lines.append(file.with_name("cmdline").read_text().replace("\0", " "))
    return lines


@pytest.mark.parametrize(
    ("moment", "number"), [("starts", signal.SIGTERM), ("runs", signal.SIGINT)]
)
def test_an_evaluation_that_is_ended_leaves_no_process(place, moment, number):
    words = f"eval --model countdown-tiny --data data --out {moment} --engine vllm"
    words += " --temperature 1 --samples 64"
    process = start(place, *words.split(), stderr=subprocess.PIPE)
    runs = place / f".{moment}.progress.jsonl"
    while process.poll() is None and not (
        runs.exists() if moment == "runs" else has_loaded_vllm(process)
    ):
        time.sleep(0.02)
    time.sleep(1)
    if number == signal.SIGINT:  # Ctrl-C reaches all processes of a terminal
        os.killpg(process.pid, number)
    else:
        process.terminate()
    assert process.communicate()[1].endswith("run the same command again.\n")
    assert process.returncode == 128 + number
    assert session_of(process) == []


def has_loaded_vllm(process):
    return "/vllm/_C" in Path(f"/proc/{process.pid}/maps").read_text()

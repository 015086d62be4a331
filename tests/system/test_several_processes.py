"""Training and evaluation in two processes against one, killed, resumed and ended by signals."""

import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama
from tests.support.command import status
from tests.support.fsdp_on_cpu import run_two
from tests.support.runs import SPLITS, files, write_data

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    tiny_llama.checkpoint(root / "model", max_position_embeddings=2_048)
    rows = [{"id": f"row-{n}", "nums": [n, n + 1, 50], "target": n + 40} for n in range(2, 40)]
    jsonl.write_rows(root / "rows.jsonl", rows)
    write_data(root / "data", dict.fromkeys(SPLITS, rows))
    return root


#: `format/-1` and a length penalty give different rewards within a group of random completions.
RUN = shlex.split(
    "train --model model --data rows.jsonl --max-steps 4 --prompts 4 --num-generations 4 "
    "--micro-batch 4 --max-completion-length 12 --reward length:12=1 --save-steps 2"
)


def run_into(name):
    """The words of ``RUN``, writing into directories called *name*."""
    return [*RUN, "--out", f"{name}/adapter", "--log", f"{name}/log.csv"]


ONE = [sys.executable, "-m", "countdown_rl"]
#: As `accelerate launch` starts two processes on a machine.
TWO = shlex.split(
    f"{sys.executable} -m accelerate.commands.accelerate_cli launch --multi_gpu "
    "--num_machines 1 --num_processes 2 --main_process_port 0 -m countdown_rl"
)


def run(place, name, *extra, words=None, command=TWO, **env):
    """Train in *place* into directories called *name*, or run the command of *words*."""
    words = [*command, *(words or run_into(name)), *extra]
    settings = {"capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(words, cwd=place, env=environment(place) | env, **settings)


def environment(place):
    """That of a process that imports this checkout and the modules in *place*."""
    return os.environ | {"PYTHONPATH": f"{ROOT}:{place}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def two(place):
    done = run(place, "two", "--json")
    assert done.returncode == 0, done.stderr
    return done


def test_two_processes_write_the_files_of_one_and_print_once(place, two, monkeypatch):
    monkeypatch.chdir(place)
    assert status(monkeypatch, *run_into("one")) == 0
    assert files(place / "two").keys() == files(place / "one").keys()
    artifacts.read(place / "two" / "adapter", "adapter")
    assert len(two.stdout.splitlines()) == 1
    assert json.loads(two.stdout)["steps"] == 4
    assert two.stderr.count("Wrote two/adapter") == 1
    assert len((place / "two" / "log.csv").read_text().splitlines()) == 1 + 4


def test_two_processes_evaluate_as_one(place):
    words = shlex.split("eval --model model --data data --max-new-tokens 8 --json")
    one = run(place, "", "--out", "one-eval", words=words, command=ONE)
    two = run(place, "", "--out", "two-eval", words=words)
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    assert json.loads(two.stdout) == json.loads(one.stdout) | {"out": "two-eval"}
    samples = [place / name / "samples.jsonl" for name in ("one-eval", "two-eval")]
    assert samples[0].read_bytes() == samples[1].read_bytes()
    assert not list(place.glob(".two-eval*"))


def test_two_processes_resume_after_a_kill(place, two):
    # The second checkpoint is due after step 4, the last; dying at step 3 leaves the one of step 2.
    (place / "dying.py").write_text(
        "import os, signal\n"
        "def reward(grade, row, tokens):\n"
        "    kept = os.path.exists('killed/checkpoints/checkpoint-2/complete')\n"
        "    if kept and not os.path.exists('killed/once'):\n"
        "        open('killed/once', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 0.0\n"
    )
    reward = ("--reward", "dying:reward=1")
    extra = ("--json", *reward)
    assert run(place, "killed", *extra).returncode != 0
    done = run(place, "killed", *extra)
    assert done.returncode == 0, done.stderr
    assert "Continuing after step 2." in done.stderr
    assert json.loads(done.stdout)["resumed"] == 2
    whole = (place / "two" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert (place / "killed" / "adapter" / "adapter_model.safetensors").read_bytes() == whole


def workers(place, name):
    """The process ids of the workers of the run *name* in *place*."""
    ids = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            here = (path / "cwd").resolve() == place and b"-c" not in words
            if here and f"{name}/adapter".encode() in words:
                ids.append(int(path.name))
    return ids


def test_workers_finish_their_round_and_save_a_checkpoint_after_sigterm(place):
    (place / "late.py").write_text(
        "import os, time\n"
        "def reward(grade, row, tokens):\n"
        "    started = 'late-' + os.environ['RANK']\n"
        "    if os.path.exists('late/log.csv') and not os.path.exists(started):\n"
        "        open(started, 'w').close()\n"
        "        time.sleep(3)\n"
        "    return 0.0\n"
    )
    words = [*TWO, *run_into("late"), "--reward", "late:reward=1"]
    settings = {"cwd": place, "env": environment(place)}
    launcher = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **settings)
    while not all((place / f"late-{rank}").exists() for rank in "01"):
        assert launcher.poll() is None
        time.sleep(0.2)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=240)
    assert launcher.returncode != 0
    assert (place / "late" / "checkpoints" / "checkpoint-1" / "complete").is_file()
    assert "continues after step 1" in err


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends them")
def test_workers_end_with_their_launcher(place):
    words = [*TWO, *run_into("orphans"), "--max-steps", "9999"]
    launcher = subprocess.Popen(words, cwd=place, env=environment(place))
    log = place / "orphans" / "log.csv"
    try:
        while not log.is_file():
            assert launcher.poll() is None
            time.sleep(0.2)
        assert len(workers(place, "orphans")) == 3
    finally:
        launcher.kill()
        launcher.wait()
    until = time.monotonic() + 5
    while workers(place, "orphans") and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers(place, "orphans")


def test_two_machines_write_the_weights_of_two_processes_on_one(place, two, tmp_path):
    import torch
    from safetensors.torch import load_file

    # In place of Slurm: both launchers run here, each with one process, and meet over the loopback network.
    slurm = {
        "scontrol": "echo 127.0.0.1; echo 127.0.0.2",
        "srun": 'SLURM_NODEID=0 "$@" & first=$!; SLURM_NODEID=1 "$@" && wait $first',
        "accelerate": f'exec {sys.executable} -m accelerate.commands.accelerate_cli "$@"',
    }
    for name, line in slurm.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    recipes = ROOT / "stages" / "recipes"
    env = {"SLURM_JOB_NODELIST": "nodes", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1"}
    env |= {"CONFIG": str(recipes / "machines.yaml"), "PORT": port}
    env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run(place, "apart", "--json", command=[recipes / "machines.sbatch"], **env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4
    files = [place / name / "adapter" / "adapter_model.safetensors" for name in ("two", "apart")]
    together, apart = map(load_file, files)
    assert any(value.any() for name, value in apart.items() if "lora_B" in name)
    torch.testing.assert_close(apart, together)  # the same bytes, if they have as many threads


def test_two_processes_train_all_weights_under_fsdp(place):
    options = "--tune all --precision fp32 --eval-every 2 --keep best --data data --json"
    paths = "--out fsdp/model --log fsdp/log.csv"
    out, err = run_two(place, *RUN, *shlex.split(f"{options} {paths}"))
    facts = json.loads(out)
    count = tiny_llama.model().num_parameters()
    assert facts["trainable_parameters"] == facts["total_parameters"] == count
    assert facts["kept_step"] == 0  # of evaluations that are all 0, the first
    assert "Step 2: 0.0% of the validation puzzles solved." in err
    assert "the weights are those of the initial policy" in err
    manifest = artifacts.read(place / "fsdp" / "model", "model")
    sizes = [spec.shape for spec in Checkpoint(place / "fsdp" / "model").specs.values()]
    assert sum(map(math.prod, sizes)) == facts["total_parameters"]  # whole weights, not a part
    assert manifest.facts["kept_step"] == 0


def test_two_processes_refuse_with_one_sentence(place):
    done = run(place, "refused", "--data", "nowhere.jsonl")
    assert done.returncode == 1
    assert done.stderr.count("error: nowhere.jsonl") == 1
    assert not (place / "refused").exists()

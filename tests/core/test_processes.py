"""Training in several processes: launch configurations, invalid divisions, and two processes against one."""

import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from countdown_rl.cli import main
from countdown_rl.core import artifacts, processes
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama
from tests.support.command import status
from tests.support.fsdp_on_cpu import launched, run_two
from tests.support.runs import files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "kind"), [("zero2", "DEEPSPEED"), ("zero3", "DEEPSPEED"), ("fsdp", "FSDP")])
def test_accelerate_reads_the_configurations_of_the_recipes(name, kind, monkeypatch):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import FullyShardedDataParallelPlugin

    config = load_config_from_file(str(ROOT / "stages" / "recipes" / f"{name}.yaml"))
    assert (config.distributed_type, config.num_machines) == (kind, 1)
    arguments, environment = launched(name)
    if kind == "DEEPSPEED":
        assert (arguments.zero_stage, arguments.mixed_precision) == (int(name[-1]), "no")  # train sets the precision
    else:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        plugin = FullyShardedDataParallelPlugin()
        assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
        assert str(plugin.state_dict_type).endswith("FULL_STATE_DICT")


def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_an_import_ends_the_process_with_one_sentence(tmp_path, number):
    (tmp_path / "signaled.py").write_text(f"import os\nos.kill(os.getpid(), {number})\nwhile True: pass\n")
    # nohup ignores SIGHUP
    code = f"import signal\nsignal.signal({number:d}, signal.SIG_DFL)\n"
    code += "from countdown_rl.core import processes\nwith processes.signals_as_exceptions(): import signaled"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        128 + number,
        f"ended by {number.name}; run the same command again.\n",
    )


def test_a_deferred_signal_is_recorded_and_one_that_comes_later_ends_the_block():
    def work():
        with processes.signals_as_exceptions(), processes.deferred_signals():
            stop()
            stop()  # which a launcher passes on
            assert processes.received_signal() == signal.SIGTERM
            time.sleep(1.2)
            stop()
            raise AssertionError("the second signal ends the block")

    with pytest.raises(processes.Terminated) as done:
        work()
    assert done.value.number == signal.SIGTERM


def test_the_exception_that_a_library_makes_of_a_signal_is_no_bug(monkeypatch, capsys):
    def work():
        try:
            stop()
        except BaseException as error:
            raise RuntimeError("the worker failed") from error

    with pytest.raises(SystemExit) as done:
        main.main(work)
    assert done.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("ended by SIGTERM; run the same command again.\n")


#: Variables of one of two launched processes.
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_rank_and_world_size_are_read_from_the_environment(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert (processes.launched(), processes.world_size(), processes.is_main()) == (False, 1, True)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert (processes.launched(), processes.world_size(), processes.is_main()) == (True, 2, False)


@pytest.mark.parametrize(
    ("group", "files", "quotas"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, [1.5]),
        ("0::/", {"cpu.max": "max 100000"}, []),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, [4, 2]),
        (
            "3:cpuset:/x\n2:cpu,cpuacct:/y",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            [3],
        ),
        ("1:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, []),
        ("4:memory:/x", {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, []),
        (None, {}, []),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, group, files, quotas):
    texts = {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in texts.items() if group else ():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert list(processes._cpu_quotas(tmp_path)) == quotas


@pytest.mark.parametrize(
    ("variables", "quotas", "threads"),
    [
        ({}, [], 8),
        ({}, [2.5, 16], 3),
        ({}, [0.5], 1),
        ({"LOCAL_WORLD_SIZE": "3"}, [], 2),
        ({"LOCAL_WORLD_SIZE": "16"}, [], 1),
        ({"OMP_NUM_THREADS": "1"}, [], 1),
        ({"OMP_NUM_THREADS": "12,2"}, [2], 12),
        ({"OMP_NUM_THREADS": "many"}, [], 8),
        ({"OMP_NUM_THREADS": "0"}, [], 8),
        (LAUNCHED | {"OMP_NUM_THREADS": "1"}, [], 4),  # a launcher's
        (LAUNCHED | {"OMP_NUM_THREADS": "2"}, [], 2),
    ],
)
def test_threads_are_those_of_omp_num_threads_or_the_share_of_the_cpus(monkeypatch, variables, quotas, threads):
    for name in ("OMP_NUM_THREADS", *LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_cpu_quotas", lambda root: quotas)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert processes.cpu_threads() == threads


def test_size_and_rank_of_a_scheduler_are_not_those_of_processes(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert (processes.launched(), processes.world_size(), processes.is_main()) == (False, 1, True)
    processes.run_alone()
    assert not {"WORLD_SIZE", "RANK"} & set(os.environ)


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["--launch", "nowhere.yaml"], {}, "nowhere.yaml"),
        (["--processes", "4"], {}, "this machine has 2 GPUs"),
        (["--processes", "2"], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "leave --processes out"),
    ],
)
def test_invalid_processes_are_refused_before_any_starts(monkeypatch, capsys, words, environment, message):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(logging, "disable", lambda level: None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert status(monkeypatch, "train", *words) == 2
    assert message in capsys.readouterr().err


def test_sharded_weights_are_told_by_the_environment_of_a_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert not processes.shards_weights()
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    assert not processes.shards_weights()
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    assert processes.shards_weights()
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_ZERO_STAGE")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert processes.shards_weights()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    tiny_llama.checkpoint(root / "model", max_position_embeddings=2_048)
    rows = [{"id": f"row-{n}", "nums": [n, n + 1, 50], "target": n + 40} for n in range(2, 40)]
    jsonl.write_rows(root / "rows.jsonl", rows)
    with artifacts.writing(root / "data", "data", options={}) as draft:
        for split in ("train", "valid", "test"):
            jsonl.write_rows(draft.path / f"{split}.jsonl", rows)
    return root


#: `format/-1` and a length penalty give different rewards within a group of random completions.
RUN = (
    *("train", "--model", "model", "--data", "rows.jsonl", "--max-steps", "4", "--prompts", "4"),
    *("--num-generations", "4", "--micro-batch", "4", "--max-completion-length", "12"),
    *("--reward", "length:12=1", "--save-steps", "2"),
)


def run_into(name):
    """The words of ``RUN``, writing into directories called *name*."""
    return [*RUN, "--out", f"{name}/adapter", "--log", f"{name}/log.csv", "--checkpoints", f"{name}/kept"]


def run(place, name, *extra, env=(), words=None):
    """Train in *place* into directories called *name*, or run the command of *words*."""
    words = ["-m", "countdown_rl", *(words or run_into(name))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **dict(env)}
    return subprocess.run(
        [sys.executable, *words, *extra], capture_output=True, text=True, cwd=place, env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def two(place):
    done = run(place, "two", "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_two_processes_write_the_files_of_one_and_print_once(place, two, monkeypatch):
    monkeypatch.chdir(place)
    assert status(monkeypatch, *run_into("one")) == 0
    assert files(place / "two").keys() == files(place / "one").keys()
    artifacts.read(place / "two" / "adapter", "adapter")
    assert len(two.stdout.splitlines()) == 1
    assert json.loads(two.stdout)["steps"] == 4
    assert two.stderr.count("Wrote two/adapter") == 1
    one_log, two_log = ((place / name / "log.csv").read_text().splitlines() for name in ("one", "two"))
    assert len(one_log) == len(two_log) == 1 + 4


@pytest.mark.slow
def test_two_processes_evaluate_as_one(place):
    words = ("eval", "--model", "model", "--data", "data", "--max-new-tokens", "8", "--json")
    one = run(place, "", "--out", "one-eval", words=words)
    two = run(place, "", "--out", "two-eval", "--processes", "2", words=words)
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    assert json.loads(two.stdout) == json.loads(one.stdout) | {"out": "two-eval"}
    samples = [place / name / "samples.jsonl" for name in ("one-eval", "two-eval")]
    assert samples[0].read_bytes() == samples[1].read_bytes()
    assert not list(place.glob(".two-eval*"))


@pytest.mark.slow
def test_two_processes_resume_after_a_kill(place, two):
    # The second checkpoint is due after step 4, the last; dying at step 3 leaves the one of step 2.
    (place / "dying.py").write_text(
        "import os, signal\n"
        "def reward(grade, row, tokens):\n"
        "    kept = os.path.exists('killed/kept/checkpoint-2/complete')\n"
        "    if kept and not os.path.exists('killed/once'):\n"
        "        open('killed/once', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 0.0\n"
    )
    reward = ("--reward", "dying:reward=1")
    env = (("PYTHONPATH", f"{ROOT}:{place}"),)
    extra = ("--processes", "2", "--json", *reward)
    assert run(place, "killed", *extra, env=env).returncode != 0
    done = run(place, "killed", *extra, env=env)
    assert done.returncode == 0, done.stderr
    assert "Continuing after step 2." in done.stderr
    assert json.loads(done.stdout)["resumed"] == 2
    whole = (place / "two" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert (place / "killed" / "adapter" / "adapter_model.safetensors").read_bytes() == whole


def workers(place, name):
    """The process ids of the workers of the run *name* in *place*."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if f"{name}/adapter".encode() in words and (path / "cwd").resolve() == place and b"-c" not in words:
                found.append(int(path.name))
    return found


def test_workers_have_a_quarter_of_an_hour_to_finish_their_round(monkeypatch):
    from accelerate.commands import launch
    from torch.distributed.launcher.api import LaunchConfig

    timeouts = []
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")  # restored at the end
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    monkeypatch.setattr(logging, "disable", lambda level: None)
    sizes = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2}
    monkeypatch.setattr(launch, "launch_command", lambda _: timeouts.append(LaunchConfig(**sizes).shutdown_timeout))
    assert processes.launch(["--version"], processes=2, configuration=None) == 0
    assert timeouts == [900]


@pytest.mark.slow
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
    words = [sys.executable, "-m", "countdown_rl", *run_into("late"), "--processes", "2", "--reward", "late:reward=1"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{place}", "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(words, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
    while not all((place / f"late-{rank}").exists() for rank in "01"):
        assert launcher.poll() is None
        time.sleep(0.2)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=240)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert (place / "late" / "kept" / "checkpoint-1" / "complete").is_file()
    assert "The run continues after step 1" in err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends them")
def test_workers_end_with_their_launcher(place):
    words = [sys.executable, "-m", "countdown_rl", *run_into("orphans"), "--max-steps", "9999", "--processes", "2"]
    launcher = subprocess.Popen(words, cwd=place, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
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


@pytest.mark.slow
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
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PORT": port}
    environment |= {"SLURM_JOB_NODELIST": "nodes", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1"}
    environment |= {"CONFIG": str(recipes / "machines.yaml"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [recipes / "machines.sbatch", *run_into("apart"), "--json"],
        capture_output=True,
        text=True,
        cwd=place,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4
    files = [place / name / "adapter" / "adapter_model.safetensors" for name in ("two", "apart")]
    together, apart = map(load_file, files)
    assert any(value.any() for name, value in apart.items() if "lora_B" in name)
    torch.testing.assert_close(apart, together)  # the same bytes, if they have as many threads


@pytest.mark.slow
def test_two_processes_train_all_weights_under_fsdp(place):
    options = ("--tune", "all", "--precision", "fp32", "--eval-every", "2", "--eval-size", "3", "--keep", "best")
    paths = ("--data", "data", "--out", "fsdp/model", "--log", "fsdp/log.csv", "--checkpoints", "fsdp/kept", "--json")
    out, err = run_two(place, *RUN, *options, *paths)
    facts = json.loads(out)
    assert facts["trainable_parameters"] == facts["total_parameters"] == tiny_llama.model().num_parameters()
    assert facts["kept_step"] == 0  # of evaluations that are all 0, the first
    assert "Step 2: 0.0% of the validation puzzles solved." in err
    assert "the weights are those of the initial policy" in err
    manifest = artifacts.read(place / "fsdp" / "model", "model")
    sizes = [spec.shape for spec in Checkpoint(place / "fsdp" / "model").specs.values()]
    assert sum(map(math.prod, sizes)) == facts["total_parameters"]  # whole weights, not a part
    assert manifest.facts["kept_step"] == 0


@pytest.mark.slow
def test_two_processes_refuse_with_one_sentence(place):
    done = run(place, "refused", "--processes", "2", "--data", "nowhere.jsonl")
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert not (place / "refused").exists()

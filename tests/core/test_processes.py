"""Training in several processes: launch configurations and invalid divisions."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from countdown_rl.cli import main
from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from tests.support.fsdp_on_cpu import launched

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["zero2", "zero3", "fsdp"])
def test_accelerate_reads_the_configurations_of_the_recipes(name, monkeypatch):
    from accelerate.utils import FullyShardedDataParallelPlugin

    arguments, environment = launched(name)
    if name != "fsdp":  # train sets the precision
        assert (arguments.zero_stage, arguments.mixed_precision) == (int(name[-1]), "no")
        return
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
    (tmp_path / "signaled.py").write_text(
        f"import os\nos.kill(os.getpid(), {number})\nwhile True: pass\n"
    )
    # nohup ignores SIGHUP
    code = f"import signal\nsignal.signal({number:d}, signal.SIG_DFL)\n"
    code += "from countdown_rl.core import processes\nwith processes.signals_as_exceptions(): import signaled"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (128 + number, processes.ended_by(number) + "\n")


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


def test_rank_and_world_size_are_those_of_a_launcher_and_not_of_a_scheduler(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert (processes.launched(), processes.world_size(), processes.is_main()) == (True, 2, False)
    monkeypatch.delenv("LOCAL_RANK")
    assert (processes.launched(), processes.world_size(), processes.is_main()) == (False, 1, True)
    processes.run_alone()
    assert not {"WORLD_SIZE", "RANK"} & set(os.environ)


@pytest.mark.parametrize(
    ("launcher", "omp", "threads"),
    [
        ({}, "", 8),
        ({}, "1", 1),
        ({}, "12,2", 12),
        ({}, "many", 8),
        (LAUNCHED, "1", 4),  # which the launcher has set
        (LAUNCHED, "2", 2),
    ],
)
def test_threads_are_those_of_omp_num_threads_or_the_share_of_the_cpus(
    monkeypatch, launcher, omp, threads
):
    for name, value in (launcher | {"OMP_NUM_THREADS": omp}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert processes.cpu_threads() == threads


@pytest.mark.parametrize(
    ("variable", "is_sharded"),
    [("DEEPSPEED_ZERO_STAGE=2", False), ("DEEPSPEED_ZERO_STAGE=3", True), ("USE_FSDP=true", True)],
)
def test_sharded_weights_are_told_by_the_environment_of_a_launcher(
    monkeypatch, variable, is_sharded
):
    name, value = variable.split("=")
    for key, setting in (LAUNCHED | {f"ACCELERATE_{name}": value}).items():
        monkeypatch.setenv(key, setting)
    assert processes.shards_weights() == is_sharded


def test_a_launched_process_trains_once(monkeypatch):
    monkeypatch.setattr(processes, "_trains", False)
    processes.train_once()
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    processes.train_once()
    with pytest.raises(UsageError, match="launch the second"):
        processes.train_once()

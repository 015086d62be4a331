"""This process: its rank among several, the launch of the others, its memory, and the signals that end it.

Accelerate's launcher starts them, for ``accelerate launch -m countdown_rl train ...`` and for
``countdown-rl train --processes N``; each reads its rank from the environment, as torch.distributed does. Only rank 0
writes and logs.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from countdown_rl.core import packages
from countdown_rl.core.errors import CountdownError, UsageError

#: Launch configurations in ``assets/launch``.
LAUNCHES = ("ddp", "zero2", "zero3", "fsdp")
_CONFIGS = Path(__file__).parents[1] / "assets" / "launch"

#: Parameters of glibc's ``mallopt``, from its ``malloc.h``.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

#: Parameter of ``prctl``, from Linux's ``prctl.h``.
_PR_SET_PDEATHSIG = 1
#: Environment variable with the process id of the launcher that started this process.
_LAUNCHER = "COUNTDOWN_RL_LAUNCHER"

#: Arguments of this program, where it is ``countdown-rl``.
arguments: list[str] | None = None

#: Seconds after which a signal is raised again that an import delayed, or that a library caught.
_AGAIN_IN_IMPORT, _AGAIN = 0.05, 1.0
#: Seconds for which an import may delay it.
_LONGEST_IMPORT = 10.0

_deferred = False
_received: int | None = None
_urgent = False
_since = 0.0


class Terminated(BaseException):
    """A signal asked this process to end; ``number`` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise :class:`Terminated` at Ctrl-C, SIGTERM and SIGHUP, so that partial files are removed.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. An exception that a library raises in place of
    ``Terminated`` is replaced by it.
    """
    global _received
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: _on_signal for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    if hasattr(signal, "setitimer"):
        handlers[signal.SIGALRM] = _on_signal
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except Exception as error:
        if _received is None:
            raise
        raise Terminated(_received) from error
    finally:
        _received = None
        _raise_again(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Only record a first signal inside the block, for :func:`received_signal`; Ctrl-C still raises."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def received_signal() -> int | None:
    """Return the number of the signal that asked this process to end."""
    return _received


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Raise :class:`Terminated` where that ends the process, else once more a moment later.

    It is not raised within an import: C++ code that imports Python modules, as that of torch, aborts the process. A
    library that catches all exceptions, or a destructor, loses it.
    """
    global _received, _urgent, _since
    again = number == getattr(signal, "SIGALRM", None)
    # A launcher passes on what a scheduler sends to all processes.
    repeated = again or time.monotonic() - _since < _AGAIN
    if not again:
        _urgent = number == signal.SIGINT or (_received is not None and not repeated)
        _received, _since = number, time.monotonic()
    if _received is None or (_deferred and not _urgent):
        return
    if _imports(frame) and time.monotonic() - _since < _LONGEST_IMPORT and _raise_again(_AGAIN_IN_IMPORT):
        return
    _raise_again(_AGAIN)
    if not (repeated and _handled()):
        raise Terminated(_received)


def _handled() -> bool:
    """Return True while :class:`Terminated` is on its way to the caller, and what it leaves removes its files."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Terminated):
        error = error.__context__
    return error is not None


def _raise_again(seconds: float) -> bool:
    """Have :func:`_on_signal` called again in *seconds*, 0: never. False where the system has no timer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return True
    return False


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


def end_with_launcher() -> None:
    """Let Linux kill this process when its launcher ends, which would otherwise leave it training."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.environ.get(_LAUNCHER, str(os.getppid())) != str(os.getppid()):  # it has ended already
            os.kill(os.getpid(), signal.SIGKILL)


def launched() -> bool:
    """Return whether a launcher started this process; a scheduler sets size and rank too, but no local rank."""
    return all(name in os.environ for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))


def run_alone() -> None:
    """Prepare the environment of a process that no launcher started.

    Size and rank are removed: Accelerate would wait for the other processes of a scheduler, which nobody started. All
    GPUs but the first are hidden: transformers would use all of them.
    """
    if not launched():
        os.environ.pop("WORLD_SIZE", None)
        os.environ.pop("RANK", None)
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def world_size() -> int:
    """Return the number of processes."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ["RANK"]) if launched() else 0


def is_main() -> bool:
    """Return whether this process has rank 0, the one that writes and logs."""
    return rank() == 0


def uses_fsdp() -> bool:
    """Return whether the launch configuration is one of FSDP."""
    return launched() and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def shards_weights(launch: str | None = None) -> bool:
    """Return whether *launch*, or the configuration that started this process, shards the weights (FSDP, ZeRO-3)."""
    if launch is not None and not launched():
        fsdp = re.search(r"^distributed_type: FSDP", launch_configuration(launch).read_text(), re.MULTILINE) is not None
    else:
        fsdp = uses_fsdp()
    return fsdp or zero_stage(launch) == 3


def zero_stage(launch: str | None = None) -> int:
    """Return the stage of DeepSpeed's ZeRO in *launch*, or in the configuration that started this process; 0: none."""
    if launch is not None and not launched():
        stage = re.search(r"^\s*zero_stage: (\d)", launch_configuration(launch).read_text(), re.MULTILINE)
        return int(stage[1]) if stage else 0
    return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 0)) if launched() else 0


def cpu_threads() -> int:
    """Return this process's share of the CPU threads of this machine that it may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, usable // max(1, int(processes) if processes.isdecimal() else 1))


def spin_briefly() -> None:
    """Shorten the time that OpenMP's waiting threads spin, unless the environment sets it; call before torch loads.

    A spinning thread keeps its core busy, which slows down another process on that core, and by default it spins long.
    One that sleeps at once is woken late. ``benchmarks.neighbour`` measures both.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}  # libgomp's is 300,000


def keep_freed_memory() -> None:
    """Let glibc, where it is the C library, keep the memory of freed tensors of up to 32 MiB for new ones.

    By default it returns large blocks to the system at once. Getting them again takes a fifth of the time of a training
    step on a CPU. Larger ones, if kept, would leave holes that the next do not fit into: GRPO of SmolLM2-135M in
    micro-batches of 8 grew from 4 to 9 GiB in 54 steps.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most it takes
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)


def launch_configuration(name: str) -> Path:
    """Return the Accelerate configuration file that is called *name*, or whose path *name* is."""
    path = _CONFIGS / f"{name}.yaml" if name in LAUNCHES else Path(name)
    if not path.is_file():
        raise UsageError(f"--launch {name} is neither a file nor one of {', '.join(LAUNCHES)}.")
    if "distributed_type: DEEPSPEED" in path.read_text() and find_spec("deepspeed") is None:
        raise CountdownError(
            f"--launch {name} needs DeepSpeed, which is not installed; {packages.pip_install('deepspeed')}, or use "
            "--launch fsdp."
        )
    return path


def launch(arguments: Sequence[str], *, processes: int, configuration: str) -> int:
    """Run ``countdown-rl`` with *arguments* in several processes on this machine, and wait for them.

    Returns the exit status of the first process that failed; 0 if none did.
    """
    path = launch_configuration(configuration)
    import logging

    import torch
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if 0 < (gpus := torch.cuda.device_count()) < processes:
        raise UsageError(f"--processes {processes}: this machine has {gpus} GPUs, and each process needs its own.")
    # A process reports its failure itself; the launcher would repeat it with a traceback, and each signal.
    logging.disable(logging.ERROR)
    words = ["--config_file", str(path), "--num_processes", str(processes), "--main_process_port", "0"]  # a free one
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        launch_command(launch_command_parser().parse_args([*words, "-m", "countdown_rl", *arguments]))
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0

"""This process: its rank among several, its memory, and the signals that end it.

Accelerate launches several processes: ``accelerate launch -m countdown_rl train ...``. Each reads
its rank from the environment, as torch.distributed does. Only rank 0 logs and writes.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from countdown_rl.core.errors import UsageError

#: Parameters of glibc's ``mallopt`` (``malloc.h``) and of Linux's ``prctl`` (``prctl.h``).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_PR_SET_PDEATHSIG = 1

#: A signal repeated within so many seconds is the same one: scheduler and launcher send it to all
#: processes.
_REPEATED = 1.0

_deferred = False
_trains = False
_received: int | None = None
_since = 0.0


class Terminated(BaseException):
    """A signal asked this process to end; ``number`` is that of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise :class:`Terminated` at Ctrl-C, SIGTERM, SIGHUP and Slurm's SIGUSR1."""
    global _received
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, _on_signal)
    try:
        yield
    except Exception as error:
        if _received is None:
            raise
        raise Terminated(_received) from error  # in place of a library's own
    finally:
        _received = None
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Only record a first signal inside the block, for :func:`received_signal`."""
    global _deferred
    _deferred = True
    try:
        yield
    finally:
        _deferred = False


def received_signal() -> int | None:
    return _received


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Raise :class:`Terminated`, or exit during an import, at which C++ code such as torch would
    abort the process.
    """
    global _received, _since
    first = _received is None
    if not first and time.monotonic() - _since < _REPEATED:
        return
    _received, _since = number, time.monotonic()
    if _deferred and first:
        os.write(2, b"finishing the step; Ctrl-C ends it at once\n")
        return
    while frame is not None and not frame.f_code.co_filename.startswith(
        "<frozen importlib._bootstrap"
    ):
        frame = frame.f_back
    if frame is not None:
        os.write(2, f"{ended_by(number)}\n".encode())
        os._exit(128 + number)
    raise Terminated(number)


def ended_by(number: int) -> str:
    """The sentence for a user whose command the signal *number* ended."""
    return f"ended by {signal.Signals(number).name}; run the same command again."


def launched() -> bool:
    """True if a launcher started this process; a scheduler sets size and rank too, but no local
    rank.
    """
    return all(name in os.environ for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))


def run_alone() -> None:
    """Prepare the environment of a process that no launcher started."""
    if launched():
        return
    # A scheduler may set these: Accelerate would wait for processes that nobody started.
    os.environ.pop("WORLD_SIZE", None)
    os.environ.pop("RANK", None)
    # transformers would use all GPUs.
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = first_gpu


def train_once() -> None:
    """Raise UsageError if this process of a launcher trained before: its process group is that of
    the first run.
    """
    global _trains
    if _trains and launched():
        raise UsageError("a launched process trains once; launch the second run by itself.")
    _trains = launched()


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def rank() -> int:
    return int(os.environ["RANK"]) if launched() else 0


def is_main() -> bool:
    return rank() == 0


def uses_fsdp() -> bool:
    return launched() and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def shards_weights() -> bool:
    """True if each process holds a part of the weights only (FSDP, DeepSpeed's ZeRO-3)."""
    return uses_fsdp() or (launched() and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3")


def cpu_threads() -> int:
    """OMP_NUM_THREADS, else this process's share of the CPUs that it may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > launched():  # launchers set it to 1 where it is not set
        return int(wanted)
    usable = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def begin() -> None:
    """Prepare this process for a command; call it before torch loads.

    Streams that were closed (``>&-``) are opened on the null device, so that no file gets their
    numbers. OpenMP's waiting threads spin for a shorter time, unless the environment sets it: by
    default they spin long, which slows down other processes, and one that sleeps at once is woken
    late (``benchmarks.neighbour`` measures both). On Linux the process ends with its launcher,
    which would otherwise leave it training.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # of the lowest free number
            setattr(sys, name, os.fdopen(null, mode))
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}  # libgomp: 300,000
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors of up to 32 MiB for new ones.

    Returning it to the system, the default, costs a fifth of a training step on a CPU. Keeping
    larger ones would leave holes that the next do not fit into: GRPO of SmolLM2-135M in
    micro-batches of 8 grew from 4 to 9 GiB in 54 steps.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest value allowed
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)

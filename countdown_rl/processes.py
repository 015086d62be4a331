"""More than one process: which of them this is, and how they are started.

Accelerate's launcher starts them, whether ``accelerate launch -m countdown_rl train ...`` calls it or
``countdown-rl train --processes N``. Each then finds its place in the environment, as torch.distributed does.
The first writes and speaks; the others compute.
"""

import importlib.util
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from countdown_rl.errors import CountdownError, UsageError

#: The launch configurations that ship with the package.
LAUNCHES = ("ddp", "zero2", "zero3", "fsdp")
_CONFIGS = Path(__file__).parent / "assets" / "launch"


def launched() -> bool:
    """Whether a launcher started this process, alone or with others."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def count() -> int:
    """How many processes there are."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def number() -> int:
    """Which of them this is; the first is 0."""
    return int(os.environ["RANK"]) if launched() else 0


def first() -> bool:
    """Whether this is the one that writes and speaks."""
    return number() == 0


def threads() -> int:
    """This process's share of the processor threads that it may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def share(completions: int, micro_batch: int, processes: int) -> int:
    """How many micro-batches of a step each of *processes* goes through.

    Raises:
        UsageError: the completions of a step cannot be dealt out evenly.
    """
    if completions % (micro_batch * processes):
        raise UsageError(
            f"{processes} processes cannot share the {completions} completions of a step evenly in batches of "
            f"--micro-batch {micro_batch}; change --prompts, --num-generations or --micro-batch."
        )
    return completions // (micro_batch * processes)


def configuration(launch: str) -> Path:
    """The Accelerate configuration that *launch* names, or is the path of.

    Raises:
        UsageError: there is none.
        CountdownError: it needs DeepSpeed, and that is not installed.
    """
    path = _CONFIGS / f"{launch}.yaml" if launch in LAUNCHES else Path(launch)
    if not path.is_file():
        raise UsageError(f"--launch {launch} is neither a file nor one of {', '.join(LAUNCHES)}.")
    if "distributed_type: DEEPSPEED" in path.read_text() and importlib.util.find_spec("deepspeed") is None:
        raise CountdownError(
            f"--launch {launch} needs DeepSpeed, which is not installed; `pip install 'countdown-rl[deepspeed]'`, "
            "or take --launch fsdp."
        )
    return path


def start(arguments: Sequence[str], *, processes: int, launch: str) -> int:
    """Run ``countdown-rl`` with *arguments* in so many processes of this machine, and wait for them.

    Returns:
        The exit status of the first that failed; 0 where none did.
    """
    config = configuration(launch)
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # What a process could not do it has said itself; the launcher would say it again, at length.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    words = ["--config_file", str(config), "--num_processes", str(processes), "--main_process_port", str(_free_port())]
    try:
        launch_command(launch_command_parser().parse_args([*words, "-m", "countdown_rl", *arguments]))
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

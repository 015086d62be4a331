"""``countdown-rl`` under FSDP on CPUs, which Accelerate knows on accelerators only: it takes each CPU for one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from countdown_rl.cli import main
from countdown_rl.models import load

ROOT = Path(__file__).parents[2]


def launched(name: str) -> tuple[Any, dict[str, str]]:
    """Accelerate's settings by the configuration *name* of the recipes, and the environment of the processes."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    recipe = str(ROOT / "stages" / "recipes" / f"{name}.yaml")
    words = ["--config_file", recipe, "--num_processes", "2", "-m", "countdown_rl", "train"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    return arguments, prepare_multi_gpu_env(arguments)


def run_two(place: Path, *words: Any) -> tuple[str, str]:
    """Run ``countdown-rl`` with *words* in *place* in two processes; what the first of them prints and reports."""
    _, settings = launched("fsdp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | settings | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "tests.support.fsdp_on_cpu", *map(str, words)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": place}
    both = [
        subprocess.Popen(command, env=environment | {"RANK": n, "LOCAL_RANK": n}, **options)
        for n in "01"
    ]
    (out, err), (other, _) = (process.communicate(timeout=300) for process in both)
    assert [process.returncode for process in both] == [0, 0], err
    assert other == ""
    return out, err


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = lambda state: setattr(state, "device", torch.device("cpu"))
    load.MAX_FP32_PARAMETERS = 0  # a small model computes in fp32 over bf16
    sys.argv[0] = "countdown-rl"
    main.main()

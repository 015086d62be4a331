"""``countdown-rl`` under FSDP on CPUs, which Accelerate knows on accelerators only: it takes each CPU for one."""

import sys

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from countdown_rl.cli import main


def set_device(state: PartialState) -> None:
    state.device = torch.device("cpu")


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = set_device
    sys.argv[0] = "countdown-rl"
    main.main()

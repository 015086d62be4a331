"""vLLM's server on a CPU: a file stands in for NCCL, which carries weights between GPUs. All else is real."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def group(path: str) -> SimpleNamespace:
    """A process group of a trainer and a server whose weights pass through the file *path*."""
    return SimpleNamespace(path=Path(path), group=SimpleNamespace())


def send(iterator: Iterator[tuple[str, torch.Tensor]], group: SimpleNamespace, **_: Any) -> None:
    """In place of vLLM's ``packed_nccl_broadcast_producer``."""
    draft = group.path.with_suffix(".part")
    torch.save([(name, tensor.clone()) for name, tensor in iterator], draft)
    draft.rename(group.path)


def receive(
    iterator: Iterator[Any], group: SimpleNamespace, post_unpack_func: Callable[..., None], **_: Any
) -> None:
    """In place of vLLM's ``packed_nccl_broadcast_consumer``."""
    while not group.path.exists():
        time.sleep(0.01)
    weights = torch.load(group.path)
    group.path.unlink()
    announced = [(name, list(shape), dtype) for name, (shape, dtype) in iterator]
    assert announced == [(name, list(tensor.shape), tensor.dtype) for name, tensor in weights]
    post_unpack_func(weights)


if "WEIGHTS" in os.environ:  # in the server and its worker, which imports this module as well
    from vllm.distributed.weight_transfer import nccl_engine

    nccl_engine.worker_init_process_group = lambda *_: group(os.environ["WEIGHTS"])
    nccl_engine.packed_nccl_broadcast_consumer = receive

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import (
        main,
    )  # of `vllm serve`, without its look for `vllm` in pip

    main()

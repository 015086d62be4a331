"""A call of the API leaves the process of its caller as it was."""

import asyncio
import csv
import logging
import os
import random
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from transformers.utils import logging as transformers_logging

import countdown_rl
from countdown_rl import CountdownError, UsageError
from countdown_rl.core import process_state

ROWS = [{"nums": [3, 7, 50], "target": 46}]
DEMONSTRATION = ROWS[0] | {"completion": "<answer>3 - 7 + 50</answer>"}
STEP = {
    "max_steps": 1,
    "prompts": 1,
    "num_generations": 2,
    "max_completion_length": 8,
    "threads": 1,
}
SFT = {"keep_wrong": True, "max_steps": 1, "threads": 1}
FAILING = ("train", "train-reward", "merge", "quantize", "publish")
CALLS = {
    "grade": lambda: countdown_rl.grade("<answer>1</answer>", **ROWS[0]),
    "solve": lambda: countdown_rl.solve([3, 7, 50], 46),
    "generate": lambda: list(countdown_rl.generate(3)),
    "read_rows": lambda: countdown_rl.read_rows("rows.csv"),
    "load_model": lambda: countdown_rl.load_model("countdown-tiny"),
    "evaluate": lambda: countdown_rl.evaluate(
        "countdown-tiny", ROWS, max_new_tokens=4, samples=2, threads=1
    ),
    "compare": lambda: countdown_rl.compare(
        [countdown_rl.evaluate("countdown-tiny", ROWS, max_new_tokens=4)] * 2
    ),
    "train": lambda: countdown_rl.train("countdown-tiny", ROWS, "o", rewards=None, keep="best"),
    "train-step": lambda: countdown_rl.train("countdown-tiny", ROWS, "o", **STEP),
    "train-reward": lambda: countdown_rl.train(
        "countdown-tiny", ROWS, "o", prompts=1, rewards=fails, threads=1
    ),
    "sft": lambda: countdown_rl.sft("countdown-tiny", [DEMONSTRATION], "o", **SFT),
    "merge": lambda: countdown_rl.merge("countdown-tiny", "o"),
    "quantize": lambda: countdown_rl.quantize("nowhere", "o"),
    "publish": lambda: countdown_rl.publish("o", model="nowhere"),
}


def fails(grade, row, tokens):
    os.environ["SOME"], torch.backends.cudnn.benchmark = "thing", True
    torch.set_default_dtype(torch.bfloat16)
    random.seed(0)
    raise ValueError("no")


def snapshot() -> dict:
    import trl.trainer.utils

    return {
        "environment": dict(os.environ),
        "path": [*sys.path],
        "directory": os.getcwd(),
        "filters": [*warnings.filters],
        "disabled": logging.root.manager.disable,
        "levels": {
            name: logging.getLogger(name).level
            for name in ("", "bitsandbytes", "torch", "transformers", "trl", "peft")
        },
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "cudnn": (torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()),
        "attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "telemetry": huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY,
        "csv": csv.field_size_limit(),
        "bars": transformers_logging.is_progress_bar_enabled(),
        "accelerate": {**AcceleratorState._shared_state},
        "trl": (trl.trainer.utils._use_triton, trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE),
    }


@contextmanager
def unchanged():
    before = snapshot()
    yield
    after = snapshot()
    assert not [key for key in before if before[key] != after[key]]


def test_a_library_that_logs_while_it_is_imported_is_silent():
    with process_state.restored():  # before any command imports it
        assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_the_process_as_it_was(name, here, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    Path("rows.csv").write_text("nums;target\n3 7 50;46\n")
    with unchanged(), pytest.raises(CountdownError) if name in FAILING else nullcontext():
        result = CALLS[name]()
    assert name in ("generate", *FAILING) or "\n" not in repr(result)


def stops(_):
    os.environ["SOME"] = "thing"
    torch.set_num_threads(3)
    logging.disable(logging.ERROR)
    raise KeyError("half-way")


STOPPED = {
    "train": lambda: countdown_rl.train("countdown-tiny", ROWS, "o", on_step=stops, **STEP),
    "evaluate": lambda: countdown_rl.evaluate(
        "countdown-tiny", ROWS, max_new_tokens=4, on_warning=stops
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("call", STOPPED)
@pytest.mark.parametrize("place", ["thread", "loop"])
def test_a_call_that_is_stopped_half_way_leaves_no_trace_either(call, place, here):

    def stopped():
        with pytest.raises(KeyError, match="half-way"):
            STOPPED[call]()

    async def main():
        stopped()

    with unchanged():
        if place == "thread":
            with ThreadPoolExecutor() as pool:
                pool.submit(stopped).result()
        else:
            asyncio.run(main())


def test_a_second_training_in_the_process_is_refused(here):

    def train():
        with pytest.raises(UsageError, match="another thread"):
            countdown_rl.train("countdown-tiny", ROWS, "o")

    with process_state.alone():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_are_loaded_in_several_threads_at_once(here):
    with unchanged(), ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(CALLS[name]) for name in ("load_model", "evaluate", "train-step")]
        assert all(call.result() for call in calls)
    CALLS["load_model"]()


def test_patches_end_with_the_last_of_concurrent_calls():
    with process_state.restored():
        with process_state.restored():
            process_state.patch(asyncio, "sleep", None)
        assert asyncio.sleep is None
    assert asyncio.sleep is not None

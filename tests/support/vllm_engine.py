"""Runs with a real vLLM engine on the CPU, for ``make test-vllm``."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator

from countdown_rl.inference.sampling import Decoding
from countdown_rl.models import load, reference
from countdown_rl.training import run as training
from countdown_rl.training.grpo import vllm
from countdown_rl.training.grpo.run import prepare
from countdown_rl.training.options import RunArguments, TrainOptions

MARKS = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]
ROOT = Path(__file__).parents[2]


def start(
    place: Path, *words: Any, launch: tuple[Any, ...] = (), **options: Any
) -> subprocess.Popen[str]:
    """Start ``countdown-rl`` with *words* in the directory *place*, as the leader of a session of processes.

    *launch* are the words of ``accelerate launch`` that starts it, if any.
    """
    launcher = ["-m", "accelerate.commands.accelerate_cli", "launch", *map(str, launch)]
    command = [sys.executable, *(launcher if launch else ()), "-m", "countdown_rl"]
    command += map(str, words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=place, env=environment, text=True, start_new_session=True, **options
    )


def train(place: Path, out: Path, model: str, **options: Any) -> tuple[training.Result, Any]:
    """Train *model* in this process until three steps with a high learning rate have changed it; also its engine."""
    settings = TrainOptions(
        max_steps=3,
        prompts=2,
        num_generations=4,
        micro_batch=4,
        max_completion_length=8,
        learning_rate=1e-2,
        eval_every=3,  # which sends the engine the weights of the last step
        reward=("benchmarks.gpu:varied=1",),
        rollouts="vllm",
    )
    engines = []

    class Kept(vllm.AdapterEngine):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            engines.append(self)

    run = RunArguments(model=model, data=place / "data", out=out / "adapter")
    # A later engine uses the process group of the first, and a later run has no launcher.
    kept = patch.object(vllm, "AdapterEngine", Kept)
    with patch.object(Accelerator, "end_training"), patch.dict(os.environ), kept:
        result = training.train(prepare(run, replace(settings, **options)))
    return result, engines[0]


def distance(
    engine: Any, model: str | Path, precision: str = "fp32", *, top_p: float = 1.0
) -> float:
    """Mean distance in nats of *engine*'s log-probabilities from those of *model*, of tokens in the nucleus of both."""
    loaded = load.load_model(reference.find_model(str(model)), precision=precision).model
    prompt = engine.engine.stop.tokenizer("12 3 5")["input_ids"]
    decoding = Decoding(8, temperature=1.0, top_p=top_p, seed=1)
    drawn = engine.engine.sample(
        [prompt] * 8, decoding, adapter=Path(engine.adapter.name), logps=True
    )
    assert len({tuple(row.ids) for row in drawn}) > 1
    of_engine = torch.tensor([logp for row in drawn for logp in row.logps])
    of_model = torch.cat([_log_probabilities(loaded, prompt, row.ids, top_p) for row in drawn])
    distances = (of_engine - of_model).abs()
    return distances[distances.isfinite()].mean().item()


def _log_probabilities(
    model: Any, prompt: list[int], completion: list[int], top_p: float
) -> torch.Tensor:
    """Of each token of *completion* its log-probability in *model* within the nucleus; -inf outside of it."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
    values, order = logits.log_softmax(-1).sort(-1, descending=True)
    outside = values.exp().cumsum(-1) - values.exp() >= top_p
    kept = values.masked_fill(outside, -torch.inf).log_softmax(-1)
    return kept[order == torch.tensor(completion)[:, None]]

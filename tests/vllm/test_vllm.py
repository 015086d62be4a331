"""A real vLLM engine on the CPU against transformers: ``make test-vllm``, skipped where vLLM is not installed."""

import itertools
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from countdown_rl import artifacts
from countdown_rl.models import load, reference
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.training import prepare, train, trl_internals
from countdown_rl.training.config import TrainOptions
from tests.support import tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]

ROWS = [{"id": f"r{n}", "nums": [n, 3, 5], "target": n + 2} for n in range(10, 18)]
#: vLLM has kernels for some head sizes only; 64 is one.
HEADS = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("vllm")
    tiny_llama.adapter(path / "adapter", tiny_llama.checkpoint(path / "model", **HEADS))
    tiny_llama.checkpoint(path / "start", initializer_range=0.05, **HEADS)  # bf16 rounds large logits by more
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    with artifacts.writing(path / "data", "data", options={}) as draft:
        for split in ("train", "valid", "test"):
            (draft.path / f"{split}.jsonl").write_text(lines)
    return path


def completions(place, out, model, engine):
    """The completions of ``eval``, in a process of its own, which an engine would keep busy."""
    words = [
        "eval",
        "--model",
        model,
        "--data",
        place / "data",
        "--out",
        out,
        "--engine",
        engine,
        "--precision",
        "fp32",
    ]
    command = [sys.executable, "-m", "countdown_rl", *map(str, words), "--max-new-tokens", "24", "--json"]
    done = subprocess.run(command, cwd=place, env=os.environ | {"PYTHONPATH": os.getcwd()}, stdout=subprocess.PIPE)
    assert done.returncode == 0
    json.loads(done.stdout)
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["countdown-tiny", "model", "adapter"])
def test_greedy_completions_are_those_of_transformers(place, tmp_path, name):
    model = name if name == "countdown-tiny" else place / name
    rows = completions(place, tmp_path / "vllm", model, "vllm")
    assert len({row["completion"] for row in rows}) > 1
    assert rows == completions(place, tmp_path / "transformers", model, "transformers")


def log_probabilities(model, prompt, completion):
    """Of each token of *completion* its log-probability in *model*."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logits.gather(1, torch.tensor(completion)[:, None])[:, 0]


def test_after_training_the_engine_has_the_probabilities_of_the_policy(place, tmp_path, monkeypatch):
    made = []

    class Kept(trl_internals.PolicyEngine):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            made.append(self)

    monkeypatch.setattr(trl_internals, "PolicyEngine", Kept)
    monkeypatch.setattr(CountdownRow, "messages", lambda row: [{"role": "user", "content": f"{row['nums']}"}])
    numbers = itertools.count()
    monkeypatch.setattr(train.rewards, "reward", lambda name: lambda grade, row, tokens: next(numbers) % 3)
    options = TrainOptions(
        max_steps=3,
        prompts=2,
        num_generations=4,
        micro_batch=4,
        max_completion_length=8,
        learning_rate=1e-2,
        precision="fp32",
        rollouts="vllm",
        eval_every=3,  # which sends the engine the weights of the last step
        eval_size=4,
        threads=1,
    )
    paths = {"out": tmp_path / "out", "checkpoints": tmp_path / "checkpoints"}
    run = prepare.TrainRun(model=str(place / "start"), data=place / "data", **paths)
    result = train.train(prepare.prepare(run, options))
    # The engine of TRL computes in bf16, whatever the precision of the policy.
    assert [row.importance_sampling_ratio for row in result.rows] == pytest.approx([1.0] * 3, abs=0.1)

    (engine,) = made
    prompt = engine.processing_class("12 3 5")["input_ids"]
    engine.temperature = 1.0
    _, drawn, logps, _ = engine.generate(prompts=[prompt] * 4, images=None, num_generations=4)
    policy = load.load_model(reference.resolve(str(result.out)), precision="fp32").model
    start = load.load_model(reference.resolve(str(place / "start")), precision="fp32").model
    apart, learnt = [], []
    for completion, row in zip(drawn, logps, strict=True):
        of_policy = log_probabilities(policy, prompt, completion)
        apart.append((torch.tensor([token[0] for token in row]) - of_policy).abs())
        learnt.append((log_probabilities(start, prompt, completion) - of_policy).abs())
    assert torch.cat(apart).mean() < 0.02 < 0.2 < torch.cat(learnt).mean()

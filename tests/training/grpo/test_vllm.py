"""Rollouts by vLLM: a stand-in samples with the adapter of each round, and the loss is corrected."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from countdown_rl.core.errors import ModelError
from countdown_rl.inference import engines
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training.grpo import vllm
from countdown_rl.training.grpo.run import prepare
from countdown_rl.training.options import RunArguments, TrainOptions
from countdown_rl.training.prepared import Reporter
from countdown_rl.training.run import train
from tests.support import tiny_llama, vllm_stub
from tests.support.runs import SPLITS, write_data


def varied(completion):
    """A reward that differs within a group of random completions."""
    return float(sum(map(ord, completion)) % 3)


SMALL = TrainOptions(
    max_steps=3,
    prompts=2,
    num_generations=4,
    micro_batch=4,
    max_completion_length=6,
    learning_rate=1e-2,
    lora_r=4,
    precision="fp32",
    rollouts="vllm",
    eval_every=3,
    reward=(f"{__name__}:varied",),
)


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Train with *changes* of :data:`SMALL`; return the result, and the engines that were started."""
    engine = vllm_stub.install(monkeypatch)
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    turn = {"role": "user", "content": "3"}
    monkeypatch.setattr(CountdownRow, "messages", lambda row: [turn])
    tiny_llama.checkpoint(tmp_path / "model", max_position_embeddings=1024)
    rows = [{"id": f"r{n}", "nums": [n, 3, 5], "target": n} for n in range(10, 20)]
    write_data(tmp_path / "data", dict.fromkeys(SPLITS, rows))

    def fitted(name, model="model", **changes):
        paths = {"data": tmp_path / "data", "out": tmp_path / name}
        arguments = RunArguments(model=str(tmp_path / model), **paths)
        warned = []
        reporter = Reporter(warning=warned.append)
        result = train(prepare(arguments, replace(SMALL, **changes), reporter))
        return SimpleNamespace(rows=result.rows, warned=warned, engines=engine.engines)

    return fitted


def test_each_round_is_sampled_with_its_adapter_and_the_ratio_is_1(fit):
    result = fit("out")
    (engine,) = result.engines
    names = [request.lora_name for request in engine.requests if request]
    assert len(set(names)) >= 3  # the first one, and after each step another
    for row in result.rows:
        assert row.importance_sampling_ratio == pytest.approx(1.0, abs=1e-3)
    assert result.rows[-1].grad_norm > 0


def test_the_seed_decides_what_the_engine_samples(fit):
    results = fit("a", seed=1), fit("b", seed=1), fit("c", seed=2)
    first, again, other = ([row.reward for row in result.rows] for result in results)
    assert first == again != other


def test_an_adapter_that_vllm_would_compute_otherwise_is_not_trained_with_it(fit, tmp_path):
    model = tmp_path / "model"
    adapter = tiny_llama.adapter(tmp_path / "start", model, alpha_pattern={"q_proj": 3})
    with pytest.raises(ModelError, match="one rank and scale"):
        fit("out", model=str(adapter))


def test_trl_masks_wrong_completions_that_another_policy_sampled(fit, monkeypatch):
    sampled = vllm_stub.LLM._complete

    def sharper(self, prompt, sampling):
        request = sampled(self, prompt, sampling)
        for token in request.outputs[0].logprobs:
            for scored in token.values():
                scored.logprob += 0.5
        return request

    monkeypatch.setattr(vllm_stub.LLM, "_complete", sharper)
    masked, unmasked = (
        fit(name, trl=(f"off_policy_mask_threshold={name}",)) for name in ("0.4", "9")
    )
    assert masked.rows[0].grad_norm != unmasked.rows[0].grad_norm


def test_transformers_completes_where_the_choice_was_automatic(fit, monkeypatch):
    monkeypatch.setattr(vllm, "chosen", lambda *_: "vllm")
    monkeypatch.setattr(vllm_stub, "CONTEXT", 2)
    result = fit("out", rollouts="auto", trl=("vllm_gpu_memory_utilization=0.5",))
    assert "transformers completes the prompts" in result.warned[0]
    with pytest.raises(ModelError, match="max_model_len"):
        fit("other")


@pytest.fixture
def chosen(monkeypatch):
    """The engine of a run with *changes* of :data:`SMALL` on *device*, where vLLM is installed."""
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    monkeypatch.setattr(vllm, "unsupported_weights", lambda ref: "")

    def engine(device="cuda", precision="bf16", **changes):
        loaded = SimpleNamespace(device=device, precision=precision, ref=None)
        return vllm.chosen(replace(SMALL, **changes), loaded)

    return engine


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({}, "vllm"),
        ({"precision": "nf4"}, "transformers"),
        ({"tune": "all", "lora_r": TrainOptions.lora_r}, "transformers"),
        ({"device": "cpu"}, "transformers"),
        ({"device": "cpu", "rollouts": "vllm"}, "vllm"),
        ({"rollouts": "transformers"}, "transformers"),
    ],
)
def test_auto_is_vllm_on_a_gpu_for_an_adapter(chosen, changes, engine):
    assert chosen(**{"rollouts": "auto"} | changes) == engine


def test_a_server_needs_its_client_alone_and_is_not_replaced(chosen, fit, monkeypatch):
    asked = {"rollouts": "auto", "trl": (f"{vllm.SERVER}=http://127.0.0.1:9",)}
    with pytest.raises(ModelError, match="no vLLM server answers"):
        fit("out", **asked)
    monkeypatch.setattr(engines, "find_spec", {"openai": 1}.get)
    assert chosen(device="cpu", **asked) == "vllm"
    monkeypatch.setattr(engines, "find_spec", {"vllm": 1}.get)
    with pytest.raises(ModelError, match="openai"):
        chosen(**asked)


def test_weights_that_vllm_cannot_run_and_several_processes_are_refused(chosen, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(vllm, "unsupported_weights", lambda ref: "does not run GGUF files")
        with pytest.raises(ModelError, match="GGUF"):
            chosen()
    monkeypatch.setattr(vllm.processes, "world_size", lambda: 2)
    with pytest.raises(ModelError, match="several"):
        chosen()

"""Rollouts by vLLM: what a stubbed engine is given, and the weights that it is sent."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import accelerate
import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file
from trl.generation import vllm_generation

from benchmarks import cards
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.inference import engines as registry
from countdown_rl.models import load, lora, nf4, reference
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training.grpo import run as grpo
from countdown_rl.training.grpo import trl_internals, vllm_internals
from countdown_rl.training.grpo import vllm as engines
from countdown_rl.training.grpo.trainer import Trainer
from countdown_rl.training.options import RunArguments, TrainOptions
from countdown_rl.training.run import Reporter
from countdown_rl.training.run import train as train_prepared
from tests.support import four_bit, tiny_llama, vllm_stub
from tests.support.runs import SPLITS, write_data

SIZES = {
    "max_steps": 3,
    "prompts": 2,
    "num_generations": 4,
    "micro_batch": 4,
    "max_completion_length": 6,
}
SMALL = TrainOptions(
    **SIZES, learning_rate=1e-2, lora_r=4, rollouts="vllm", eval_every=3, eval_size=4, threads=1
)
#: A reward that differs within a group of random completions.
VARIED = ("benchmarks.gpu_settings:varied=1",)


@pytest.fixture
def vllm(monkeypatch):
    """The class of the stand-in's engines, in TRL too."""
    engine = vllm_stub.install(monkeypatch)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "LLM", engine, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", vllm_stub.SamplingParams, raising=False)
    monkeypatch.setattr(registry, "find_spec", lambda name: name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # TRL sets them; put back after the test
        monkeypatch.delenv(name)
    return engine


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("rollouts")
    tiny_llama.checkpoint(path / "model", max_position_embeddings=1024)
    rows = [{"id": f"r{n}", "nums": [n, 3, 5], "target": n} for n in range(10, 20)]
    write_data(path / "data", dict.fromkeys(SPLITS, rows))
    return path


@pytest.fixture
def fit(place, tmp_path, vllm, monkeypatch):
    """Train with *changes* of :data:`SMALL`; return the result, its warnings among them."""
    monkeypatch.setattr(
        CountdownRow, "messages", lambda row: [{"role": "user", "content": f"{row['nums']}"}]
    )

    def train(name="out", **changes):
        paths = {"out": tmp_path / name, "checkpoints": tmp_path / f"{name}-run"}
        run = RunArguments(model=str(place / "model"), data=place / "data", **paths)
        warnings = []
        unused = {"lora_r"} if changes.get("tune") == "all" else set()
        unused |= set() if changes.get("eval_every", SMALL.eval_every) else {"eval_size"}
        options = replace(SMALL, **{name: getattr(TrainOptions, name) for name in unused} | changes)
        result = train_prepared(grpo.prepare(run, options, Reporter(warning=warnings.append)))
        return SimpleNamespace(out=result.out, rows=result.rows, said="\n".join(warnings))

    return train


@pytest.mark.parametrize(
    ("tune", "precision"), [("lora", "nf4"), ("lora", "bf16"), ("all", "fp32")]
)
def test_an_engine_gets_the_policy_its_limits_and_the_stop(place, fit, vllm, tune, precision):
    result, (engine,) = fit(tune=tune, precision=precision, reward=VARIED), vllm.engines
    longest = max(
        len(prompt["prompt_token_ids"]) for prompts in engine.prompts for prompt in prompts
    )
    assert engine.options["max_model_len"] == longest + SMALL.max_completion_length
    assert (engine.options["model"], engine.options["quantization"]) == (str(place / "model"), None)
    assert engine.options["dtype"] == (
        "bfloat16" if precision == "bf16" else "float32"
    )  # of a small model on a CPU
    assert len(engine.adapters) == (
        2 + 3 + 1 if precision == "bf16" else 0
    )  # in fp32 merging is exact
    greedy, sampling = engine.params[0], engine.params[1]
    assert sampling.stop == ["</answer>"]
    assert (sampling.temperature, greedy.temperature) == (1.0, 0.0)
    assert all(engine.requests) == bool(engine.adapters)
    # Before each step, and for the last evaluation; at the start a large adapter and that of the run.
    assert engine.syncs - 2 * bool(engine.adapters) == 3 + 1
    # The engine sampled from the very policy that is trained, so that no token needs a correction.
    assert [row.importance_sampling_ratio for row in result.rows] == pytest.approx(
        [1.0] * 3, abs=0.02
    )
    assert result.rows[-1].eval_correct is not None
    assert all(row.grad_norm > 0 for row in result.rows)
    # It has the trained weights, which it got for the evaluation after the last step.
    trained = load.load_model(reference.find_model(str(result.out)), precision=precision).model
    trained = trained.merge_and_unload() if tune == "lora" else trained
    for name, value in engine.policy.named_parameters():
        torch.testing.assert_close(
            value, trained.get_parameter(name).float(), rtol=0.01, atol=0.001
        )


def test_the_seed_decides_what_an_engine_samples(fit, vllm):
    def numbers(out, seed):
        fit(out, seed=seed, max_steps=2, eval_every=0)
        assert all(
            params.seed is None for params in vllm.engines[-1].params
        )  # else a group would be of equals
        return vllm.engines[-1].numbers

    first, again, other = numbers("first", 1), numbers("again", 1), numbers("other", 2)
    assert first == again
    assert len({*first, *other}) == 4


def test_groups_that_are_resampled_keep_the_probabilities_of_the_engine(fit, monkeypatch):
    grade = CountdownRow.grade

    def seldom(row, text):
        verdict = grade(row, text)
        verdict.correct = len(text) % 5 == 0
        return verdict

    monkeypatch.setattr(CountdownRow, "grade", seldom)
    rows = fit(dynamic_sampling=True, eval_every=0).rows
    assert max(row.draws for row in rows) > SMALL.prompts
    assert [row.importance_sampling_ratio for row in rows] == pytest.approx([1.0] * 3, abs=0.02)


def test_the_ratio_formed_in_the_loss_gives_the_weights_of_the_one_that_trl_scores_before(
    fit, monkeypatch
):
    def trained(out, *trl):
        result = fit(out, trl=("top_p=0.6", *trl), max_steps=2, eval_every=0, reward=VARIED)
        return load_file(result.out / "adapter_model.safetensors")

    def use_engine(trainer, engine):
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, engine, -1

    in_loss, uncorrected = (
        trained("in-loss"),
        trained("uncorrected", "vllm_importance_sampling_correction=False"),
    )
    monkeypatch.setattr(trl_internals.RoundTrainer, "use_engine", use_engine)
    torch.testing.assert_close(in_loss, trained("before"))
    assert any(not torch.allclose(value, in_loss[name]) for name, value in uncorrected.items())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps_per_generation": 3},
        {"trl": ("vllm_importance_sampling_mode=sequence_truncate",)},
    ],
)
def test_a_ratio_above_its_cap_is_logged_as_it_is_with_a_warning(fit, vllm, monkeypatch, changes):
    class Underrating(vllm):
        def _complete(self, prompt, sampling):
            output = super()._complete(prompt, sampling)
            for token in (token for step in output.outputs[0].logprobs for token in step.values()):
                token.logprob -= 1.5
            return output

    monkeypatch.setattr(vllm_generation, "LLM", Underrating)
    result = fit(eval_every=0, reward=VARIED, **changes)
    ratios = [row.importance_sampling_ratio for row in result.rows]
    assert (
        min(ratios) > 9
        if "trl" in changes
        else ratios == pytest.approx([np.exp(1.5)] * 3, rel=0.02)
    )
    assert "importance ratio" in result.said


class Client:
    """TRL's client of a vLLM server, with an engine in place of the server."""

    def __init__(self, base_url, **_):
        self.engine, self.base_url, self.model = Client.start(), base_url, "start"
        self.session, self.request = SimpleNamespace(post=self.post), None
        Client.last = self

    def post(self, url, json):
        if url.endswith("/v1/completions"):
            scores = self.engine.score(json["prompt"])[1:]
            steps = [{str(token): vars(value) for token, value in step.items()} for step in scores]
            return SimpleNamespace(json=lambda: {"choices": [{"prompt_logprobs": [None, *steps]}]})
        assert url == "http://there:1/v1/load_lora_adapter"
        if Client.has_lora:
            self.request = vllm_stub.LoRARequest(
                json["lora_name"], 1, json["lora_path"], json["load_inplace"]
            )
            self.engine.add_lora(self.request)
        return SimpleNamespace(ok=Client.has_lora, status_code=404, text="Not Found")

    def init_communicator(self, device):
        pass

    def get_server_info(self):
        return {"model_config": {"logprobs_mode": "raw_logprobs"}}

    def update_named_params(self, metadata, pairs):
        pairs = list(pairs)
        assert metadata == [
            (name, str(value.dtype)[6:], list(value.shape)) for name, value in pairs
        ]
        self.engine.load_weights(pairs)

    def reset_prefix_cache(self):
        self.engine.reset_prefix_cache()

    def generate(self, prompts, features, n, **params):
        params |= params.pop("generation_kwargs")
        repeated = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(n)]
        request = self.request if self.model == "policy" else None
        sampling = vllm_stub.SamplingParams(**params)
        outputs = self.engine.generate(repeated, sampling, use_tqdm=False, lora_request=request)
        logprobs, token_ids = vllm_generation.extract_logprobs(outputs)
        completions = [output.outputs[0].token_ids for output in outputs]
        result = {"prompt_ids": prompts, "completion_ids": completions}
        return result | {"logprobs": logprobs, "logprob_token_ids": token_ids}


class Deaf(vllm_stub.LLM):
    """An engine in whose layers an adapter changes nothing."""

    engines, end = [], None

    def add_lora(self, request):
        self.adapters.append(request)


@pytest.mark.parametrize(
    ("engine", "precision", "sent"),
    [
        ("all", "fp32", "weights"),
        ("lora", "bf16", "adapter"),
        ("all", "bf16", "weights"),
        ("deaf", "bf16", "weights"),
    ],
)
def test_a_server_with_lora_gets_the_adapter_else_the_weights(
    place, fit, vllm, monkeypatch, engine, precision, sent
):
    start = Deaf if engine == "deaf" else vllm
    monkeypatch.setattr(vllm_generation, "VLLMClient", Client)
    monkeypatch.setattr(
        Client, "start", lambda: start(str(place / "model"), max_model_len=100), raising=False
    )
    monkeypatch.setattr(Client, "has_lora", engine != "all", raising=False)
    trl = ("vllm_server_base_url=http://there:1",)
    result = fit(rollouts="vllm-server", trl=trl, max_steps=2, reward=VARIED, precision=precision)
    assert Client.last.engine.params[0].stop == ["</answer>"]
    assert [row.importance_sampling_ratio for row in result.rows] == pytest.approx(
        [1.0] * 2, abs=0.02
    )
    assert "--logprobs-mode processed_logprobs" in result.said
    assert bool(Client.last.engine.requests[-1]) == (sent == "adapter")
    assert ("merged into bf16" in result.said) == (precision == "bf16" and sent == "weights")


def test_an_engine_that_ignores_the_adapter_is_refused(fit, vllm, monkeypatch):
    monkeypatch.setattr(vllm_generation, "LLM", Deaf)
    with pytest.raises(ModelError, match="LoRA differs from the policy's"):
        fit(precision="bf16")


def test_4_bit_weights_are_sent_as_their_values_plus_the_adapter(place, vllm):
    loaded = load.load_model(reference.find_model(str(place / "model")), precision="bf16")
    weights = {name: value.clone() for name, value in loaded.model.named_parameters()}
    four_bit.quantize_layers(loaded.model, torch.device("cpu"))
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False
    )
    model = peft.get_peft_model(loaded.model, config)
    packed = {name: value.clone() for name, value in model.named_parameters()}
    settings = {
        "accelerator": accelerate.Accelerator(cpu=True),
        "processing_class": loaded.tokenizer,
    }
    engine = vllm_internals.PolicyEngine(
        str(place / "model"), torch.bfloat16, model=model, **settings
    )
    sent = dict(engine._iter_named_params())
    assert sent.keys() == weights.keys()
    lora = {name: value for name, value in model.named_parameters() if ".lora_" in name}
    for name, value in sent.items():
        held = weights[name]
        if "proj" in name:
            held = nf4.fake_quantize(held)
        if "q_proj" in name or "down_proj" in name:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            a, b = (lora[f"{prefix}.lora_{part}.default.weight"].float() for part in "AB")
            held = (held.float() + 2 * b @ a).bfloat16()
        torch.testing.assert_close(value, held, rtol=0.01, atol=0.001)
    assert all(torch.equal(value, packed[name]) for name, value in model.named_parameters())


def test_4_bit_weights_are_sent_once_to_an_engine_that_gets_the_adapter(place, vllm, tmp_path):
    loaded = load.load_model(reference.find_model(str(place / "model")), precision="nf4")
    base = {name: value.clone() for name, value in loaded.model.named_parameters()}
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model = peft.get_peft_model(loaded.model, config)
    settings = {
        "accelerator": accelerate.Accelerator(cpu=True),
        "processing_class": loaded.tokenizer,
    }
    settings |= {"adapters": tmp_path, "same_base": False}
    vllm_internals.PolicyEngine(str(place / "model"), torch.bfloat16, model=model, **settings)
    (engine,) = vllm.engines
    assert (engine.options["max_lora_rank"], engine.options["lora_target_modules"]) == (
        8,
        ["down_proj", "q_proj"],
    )
    _, adapter = engine.adapters  # the first is the large one of the check
    assert lora.adapted_modules(adapter) == {
        name.removesuffix(".weight") for name in base if "q_proj" in name or "down_proj" in name
    }
    assert all(torch.equal(value, base[name].bfloat16()) for name, value in engine.base.items())


@pytest.mark.parametrize(
    ("adapter", "options", "width", "by_adapter"),
    [
        *((None, {}, 2, True), (None, {}, 4, False), (None, {"lora_r": 513}, 2, False)),
        (None, {"tune": "all", "precision": "bf16", "lora_r": TrainOptions.lora_r}, 2, False),
        *(({"use_rslora": True}, {}, 2, True), ({"alpha_pattern": {"q_proj": 2}}, {}, 2, False)),
        ({"bias": "all"}, {}, 2, False),
    ],
)
def test_only_a_16_bit_adapter_of_one_rank_and_scale_is_sent(
    place, tmp_path, adapter, options, width, by_adapter
):
    trained = (
        None
        if adapter is None
        else tiny_llama.adapter(tmp_path / "adapter", place / "model", **adapter)
    )
    ref = reference.find_model(str(trained or place / "model"))
    assert engines.sends_adapter(replace(SMALL, **options), ref, width, sleeps=False) == by_adapter
    assert not engines.sends_adapter(replace(SMALL, **options), ref, width, sleeps=True)


def test_engines_that_cannot_hold_the_weights_are_refused(place, vllm, monkeypatch):
    loaded = load.load_model(reference.find_model(str(place / "model")), precision="nf4")
    dora = peft.get_peft_model(
        loaded.model, peft.LoraConfig(target_modules=["q_proj"], use_dora=True)
    )
    auto, plain = replace(SMALL, rollouts="auto"), torch.nn.Identity()
    memory = cards.plan("qwen3-0.6b", SMALL, cards.Card(1, GIB), device="cpu").memory

    def plan(options, model):
        config = lambda: SimpleNamespace(vllm_gpu_memory_utilization=0.3)  # noqa: E731
        return engines.plan(options, loaded, model, config, lambda **_: memory)

    assert plan(SMALL, plain)[0] == "vllm"
    assert plan(auto, plain)[0] == "transformers"  # there is no GPU
    with pytest.raises(ModelError, match="variants"):
        plan(SMALL, dora)
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install"):
        plan(SMALL, plain)
    loaded.ref = replace(loaded.ref, kind="gguf")
    with pytest.raises(ModelError, match="GGUF"):
        plan(SMALL, plain)


GIB = 2**30


def planned(name, options, memory, **where):
    """The engine of a run of *options* on the shape *name*, and the memory of it on a card of so many GiB."""
    return cards.plan(name, options, cards.Card(1, memory * GIB), **where)[:2]


NF4 = TrainOptions(micro_batch=2, gradient_checkpointing=True, max_completion_length=1000)


def test_auto_is_an_engine_where_its_weights_fit_its_share_of_the_memory():
    chosen, memory = planned("llama-3.1-8b", NF4, 80)
    (estimate,) = memory.estimates
    assert (chosen, estimate.engine, estimate.generation, memory.fits) == (
        "vllm",
        int(0.3 * 80 * GIB),
        0,
        True,
    )
    assert planned("llama-3.1-8b", NF4, 24)[0] == "transformers"  # 15 GiB of weights in bf16
    share = {"trl": ("vllm_gpu_memory_utilization=0.7",)}
    assert (
        planned("qwen2.5-3b", NF4, 24)[0]
        == planned("qwen2.5-3b", replace(NF4, **share), 24)[0]
        == "vllm"
    )
    assert planned("llama-3.1-8b", replace(NF4, **share, rollouts="vllm"), 24)[1].fits is False
    assert planned("qwen2.5-3b", NF4, 24, device="cpu")[0] == "transformers"
    chosen, memory = planned("llama-3.1-8b", replace(NF4, rollouts="vllm-server"), 24)
    assert (chosen, memory.estimates[0].engine, memory.estimates[0].generation) == (
        "vllm-server",
        0,
        0,
    )


def test_transformers_completes_where_vllm_does_not_start_and_the_choice_was_automatic(
    fit, monkeypatch
):
    failing = Mock(side_effect=ValueError("No available memory for the cache blocks."))
    monkeypatch.setattr(vllm_generation, "LLM", failing)
    monkeypatch.setattr(engines, "plan", lambda *arguments: ("vllm", arguments[-1]()))
    with pytest.raises(
        ModelError, match=r"cache blocks; .* 0.3 .* --trl vllm_gpu_memory_utilization"
    ):
        fit()
    result = fit(rollouts="auto")
    assert "cache blocks" in result.said
    assert "transformers now completes" in result.said
    artifacts.read(result.out, "adapter")


def test_advice_on_exhausted_memory_names_the_share_of_the_engine(fit, monkeypatch):
    monkeypatch.setattr(
        Trainer, "compute_loss", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    )
    with pytest.raises(ModelError, match="or --trl vllm_gpu_memory_utilization"):
        fit()

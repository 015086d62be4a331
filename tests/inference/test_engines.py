"""Engines: the greedy answers of transformers, and batches that do not fit in memory.

vLLM is replaced by a stand-in with its documented calls that computes with the same random model, so that what goes
in and out is checked without a GPU.
"""

import json
import os
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import peft
import pytest
import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import engines
from countdown_rl.inference import generate as generation
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import jsonl, probe
from countdown_rl.tasks.registry import parse_row, task
from tests.support import tiny_llama

ROWS = [{"id": f"r{n}", "nums": [n + 2, 3, 5], "target": n + 10} for n in range(11)]
SMALL = EvalOptions(max_new_tokens=12, threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines")
    tiny_llama.checkpoint(path / "model", max_position_embeddings=1024, tie_word_embeddings=False)
    (path / "puzzles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(folder, out, options=SMALL, **changes):
    arguments = {"model": str(folder / "model"), "data": folder / "puzzles.jsonl", "out": out} | changes
    return evaluate.evaluate(options, **arguments)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


@pytest.fixture
def model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()


@pytest.fixture
def vllm(monkeypatch, model):
    """``vllm`` with ``LLM``, ``SamplingParams`` and ``LoRARequest`` of the documented shape."""
    module, requests = ModuleType("vllm"), ModuleType("vllm.lora.request")
    module.loaded, module.adapters, module.end = [], [], None

    class SamplingParams(SimpleNamespace):
        def __init__(self, *, temperature, top_p, top_k, min_p, max_tokens, seed, stop, include_stop_str_in_output):
            super().__init__(temperature=temperature, top_k=top_k, max_tokens=max_tokens, seed=seed, stop=stop)
            assert include_stop_str_in_output

    class ValidationError(ValueError):
        """As pydantic raises it."""

        def errors(self):
            return [{"msg": f"Value error, {self.args[0]}"}]

        def __str__(self):
            return f"1 validation error for ModelConfig\n  Value error, {self.args[0]}"

    class LLM:
        def __init__(
            self, model, *, max_model_len, seed, load_format, trust_remote_code, enable_prefix_caching, **options
        ):
            assert (load_format, trust_remote_code) == ("safetensors", False)
            sys.stdout.write("INFO: loading\n")
            os.write(1, b"INFO: a process of the engine\n")
            if max_model_len > 1024:
                raise ValidationError(f"User-specified max_model_len ({max_model_len}) is greater than 1024.\nMore.")
            module.loaded.append((model, options))

        def generate(self, prompts, params, *, use_tqdm, lora_request):
            assert not use_tqdm
            policy = model
            if lora_request:
                module.adapters.append(lora_request.lora_path)
                policy = peft.PeftModel.from_pretrained(model, lora_request.lora_path).eval()
            results = []
            for prompt, sampling in zip(prompts, params, strict=True):
                start = len(prompt["prompt_token_ids"])
                ids = list(prompt["prompt_token_ids"])
                draw = torch.Generator().manual_seed(sampling.seed)
                while len(ids) < start + sampling.max_tokens and module.end not in ids[start:]:
                    scores = logits(policy, ids)
                    if sampling.top_k:
                        scores[scores < scores.topk(sampling.top_k).values[-1]] = -1e9
                    if sampling.temperature:
                        scores = scores + torch.rand(scores.shape, generator=draw) * 50
                    ids.append(int(scores.argmax()))
                reason = "stop" if module.end in ids[start:] else "length"
                results.append(
                    SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids[start:]), finish_reason=reason)])
                )
            return results

    class LoRARequest(SimpleNamespace):
        def __init__(self, lora_name, lora_int_id, lora_path):
            assert lora_int_id >= 1
            super().__init__(lora_path=lora_path)

    module.LLM, module.SamplingParams, requests.LoRARequest = LLM, SamplingParams, LoRARequest
    module.__spec__ = ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.lora", ModuleType("vllm.lora"))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", requests)
    monkeypatch.setattr(artifacts, "versions", lambda names: dict.fromkeys(names, "1"))
    return module


def test_a_gguf_file_gives_the_greedy_answers_of_its_checkpoint(folder, tmp_path, gguf):
    data = tmp_path / "puzzles.jsonl"
    jsonl.write_rows(data, [{"id": str(n), **row} for n, row in enumerate(probe.rows(task("countdown"), 40))])
    options = EvalOptions(threads=1, max_new_tokens=32)
    result = run(folder, tmp_path / "eval", options, model=str(gguf), data=data)
    assert (result.metrics.engine, result.metrics.precision) == ("transformers", "fp32")
    expected = run(folder, tmp_path / "plain", options, model="countdown-tiny", data=data)
    pairs = zip(result.samples, expected.samples, strict=True)
    assert sum(a.completion == b.completion for a, b in pairs) >= 36  # half precision may turn a token


def test_vllm_agrees_with_transformers_on_greedy_answers(folder, tmp_path, vllm):
    options = replace(SMALL, engine="vllm", precision="fp32")
    expected = run(folder, tmp_path / "plain", replace(options, engine="transformers")).samples
    result = run(folder, tmp_path / "eval", options)
    assert result.samples == expected
    assert run(folder, tmp_path / "first", replace(options, temperature=1.0, top_k=1)).samples == expected
    assert vllm.loaded[:1] == [(str(folder / "model"), {"dtype": "float32", "tensor_parallel_size": 1})]
    hot = replace(options, temperature=1.0, samples=3)
    texts = [sample.completion for sample in run(folder, tmp_path / "hot", hot).samples]
    assert len(set(texts[:3])) > 1


def test_the_reason_why_vllm_refuses_a_model_is_reported(folder, tmp_path, vllm):
    with pytest.raises(ModelError, match=r"vLLM cannot load the model: User-specified max_model_len.*1024\.$"):
        run(folder, tmp_path / "no", replace(SMALL, engine="vllm", max_new_tokens=1020))


def test_vllm_and_its_processes_print_nothing_on_stdout(folder, tmp_path, vllm, capfd):
    run(folder, tmp_path / "eval", replace(SMALL, engine="vllm"))
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "a process of the engine" in printed.err


def test_an_end_token_that_only_vllm_knows_is_not_a_truncation(folder, model, vllm):
    engine = engines.load_engine(
        "vllm", reference.resolve(str(folder / "model")), generation.Decoding(12), precision="fp32"
    )
    prompt = chat_template.render(engine.tokenizer, parse_row(ROWS[0]).messages())
    ids = engine.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    engine.prepare(len(ids) + 12)
    (completion,) = engine.complete([ids])
    assert (completion.tokens, completion.ended) == (12, False)
    vllm.end = int(logits(model, ids).argmax())
    (completion,) = engine.complete([ids])
    assert (completion.tokens, completion.ended) == (1, True)


def test_vllm_gets_an_adapter_as_a_lora_request(folder, tmp_path, vllm):
    adapter = tiny_llama.adapter(tmp_path / "adapter", folder / "model", r=12)
    options = replace(SMALL, engine="vllm", precision="fp32")
    expected = run(folder, tmp_path / "plain", replace(options, engine="transformers"), model=str(adapter)).samples
    assert expected != run(folder, tmp_path / "base", replace(options, engine="transformers")).samples
    result = run(folder, tmp_path / "eval", options, model=str(adapter))
    assert result.samples == expected
    path, loaded = vllm.loaded[0]
    assert path == str(folder / "model")
    assert (loaded["enable_lora"], loaded["max_lora_rank"]) == (True, 16)
    assert vllm.adapters == [str(adapter)]


def test_an_adapter_that_vllm_would_compute_otherwise_is_refused(folder, tmp_path, monkeypatch, vllm):
    def refusal(name, precision="auto", facts=None, **config):
        adapter = tiny_llama.adapter(tmp_path / name, folder / "model", **config)
        ref = reference.resolve(str(adapter))
        if facts:
            ref = replace(ref, manifest=SimpleNamespace(facts=facts, options={}))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        chosen = engines.resolve("auto", ref, precision=precision, device="auto")
        if chosen == "vllm":
            return ""
        with pytest.raises(UsageError) as error:
            engines.resolve("vllm", ref, precision=precision, device="auto")
        return str(error.value)

    assert refusal("plain") == ""
    assert "NF4" in refusal("nf4", facts={"precision": "nf4"})
    assert refusal("cast", precision="bf16", facts={"precision": "nf4"}) == ""
    assert "use_dora" in refusal("dora", use_dora=True)
    assert "alpha_pattern" in refusal("alpha", alpha_pattern={"q_proj": 3})


def test_with_the_plug_in_an_adapter_over_nf4_has_nf4_weights_in_vllm(folder, tmp_path, monkeypatch, vllm):
    adapter = tiny_llama.adapter(tmp_path / "adapter", folder / "model")
    monkeypatch.setattr(engines, "_quantizes", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    result = run(folder, tmp_path / "eval", replace(SMALL, engine="vllm", precision="nf4"), model=str(adapter))
    path, loaded = vllm.loaded[0]
    assert path == str(folder / "model")
    assert (loaded["quantization"], loaded["dtype"], loaded["enable_lora"]) == ("bitsandbytes", "bfloat16", True)
    assert (result.metrics.engine, result.metrics.precision, result.metrics.path) == ("vllm", "nf4", "bitsandbytes-nf4")


@pytest.mark.parametrize(("gpu", "plug_in", "name"), [(True, True, "vllm"), (True, False, ""), (False, True, "")])
def test_nf4_in_vllm_needs_a_gpu_and_the_plug_in(folder, monkeypatch, gpu, plug_in, name):
    ref, there = reference.resolve(str(folder / "model")), {"vllm", *(["vllm_bnb_plugin"] if plug_in else [])}
    monkeypatch.setattr(engines, "find_spec", lambda module: module if module in there else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert engines.resolve("auto", ref, precision="nf4", device="auto") == (name or "transformers")
    if name:
        assert engines.resolve("vllm", ref, precision="nf4", device="auto") == name
    else:
        with pytest.raises(UsageError, match="vllm-bnb-plugin"):
            engines.resolve("vllm", ref, precision="nf4", device="auto")


def test_several_gpus_share_a_model_in_vllm_only(folder, tmp_path, vllm):
    options = replace(SMALL, tensor_parallel=4)
    run(folder, tmp_path / "eval", replace(options, engine="vllm"))
    assert vllm.loaded[0][1]["tensor_parallel_size"] == 4
    with pytest.raises(UsageError, match="--tensor-parallel is for --engine vllm"):
        run(folder, tmp_path / "no", replace(options, engine="transformers"))


def test_auto_is_vllm_only_with_a_gpu_and_plain_weights(monkeypatch, folder):
    plain = ModelRef("m", "directory", folder / "model")

    def resolved(ref, **options):
        return engines.resolve("auto", ref, **({"precision": "auto", "device": "auto"} | options))

    assert resolved(plain) == "transformers"
    monkeypatch.setattr(engines, "installed", lambda name: name == "vllm")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved(plain) == "transformers"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolved(plain) == "vllm"
    for options in ({"precision": "nf4"}, {"device": "cpu"}):
        assert resolved(plain, **options) == "transformers"


def test_a_four_bit_checkpoint_on_the_hub_is_not_for_vllm(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    monkeypatch.setattr(engines, "installed", lambda name: name == "vllm")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    for module in (engines, load):
        monkeypatch.setattr(module, "without_weights", lambda ref: replace(ref, path=tmp_path))
    ref = ModelRef("unsloth/model-bnb-4bit", "hub", None, revision="1" * 40)
    assert engines.resolve("auto", ref, precision="auto", device="auto") == "transformers"
    with pytest.raises(UsageError, match="NF4"):
        engines.resolve("vllm", ref, precision="auto", device="auto")


@pytest.mark.parametrize(
    ("engine", "changes", "error", "message"),
    [
        ("vllm", {}, ModelError, "--engine vllm needs vllm: `pip install"),
        ("vllm", {"precision": "nf4"}, UsageError, "NF4"),
        ("vllm", {"device": "cpu"}, UsageError, "runs on a GPU"),
    ],
)
def test_an_engine_that_is_not_installed_or_unsuitable_is_refused(
    folder, tmp_path, monkeypatch, engine, changes, error, message
):
    monkeypatch.setattr(engines, "installed", lambda name: False)
    with pytest.raises(error, match=message):
        run(folder, tmp_path / "eval", replace(SMALL, engine=engine, **changes))
    assert list(tmp_path.iterdir()) == []


# Memory


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), "torch's own"])
def test_a_batch_that_does_not_fit_in_memory_is_halved_with_the_same_greedy_result(
    folder, tmp_path, monkeypatch, error
):
    expected = run(folder, tmp_path / "whole").samples
    complete, sizes = generation.Generator.complete, []

    def tight(self, prompts, number=0):
        sizes.append(len(prompts))
        if len(prompts) > 3:
            if isinstance(error, str):
                torch.empty(1 << 60)  # more than there is
            raise error
        return complete(self, prompts, number)

    monkeypatch.setattr(generation.Generator, "complete", tight)
    monkeypatch.setattr(generation, "free_memory", lambda: None)  # which takes a second
    assert run(folder, tmp_path / "tight").samples == expected
    assert sizes == [11, 6, 3, 3, 5, 3, 2]


def test_halves_of_a_batch_have_their_own_random_numbers(monkeypatch):
    monkeypatch.setattr(generation, "free_memory", lambda: None)  # which takes a second
    numbers = []

    class Tight:
        def complete(self, prompts, number=0):
            if len(prompts) > 1:
                raise MemoryError
            numbers.append(number)
            return [Completion(str(prompts[0]), 1, True)]

    assert [completion.text for completion in engines.complete(Tight(), [[k] for k in range(5)], 9)] == [
        f"[{k}]" for k in range(5)
    ]
    assert len(set(numbers)) == 5
    # Engines that seed each row draw as if the batch had never been halved.
    assert [generation.row_seed(3, number, 0) for number in numbers] == [generation.row_seed(3, 9, k) for k in range(5)]


def test_one_row_that_does_not_fit_is_reported_and_other_errors_are_raised():
    class Full:
        def complete(self, prompts, number=0):
            raise MemoryError

    with pytest.raises(ModelError, match="--max-new-tokens"):
        engines.complete(Full(), [[1], [2]])

    class Broken:
        def complete(self, prompts, number=0):
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        engines.complete(Broken(), [[1], [2]])


def test_batches_grow_with_the_memory_up_to_a_limit(monkeypatch):
    tokenizer = tiny_llama.tokenizer()
    loaded = load.Loaded(tiny_llama.model(), tokenizer, ModelRef("x", "directory", None), "fp32", "cpu", "plain")
    rows = []
    for size in (64 << 20, 512 << 20, 4 << 30, 16 << 30, 256 << 30):
        monkeypatch.setattr(generation, "main_memory", lambda size=size: size)
        rows.append(generation.max_rows(loaded, 4_096, 4_096))
    assert rows == sorted(rows)
    assert 1 <= rows[0] < rows[2] <= rows[3] == rows[4]


def test_a_gpu_takes_rows_by_their_cache_and_not_by_activations_of_completions(monkeypatch):
    from transformers import Qwen2Config

    config = Qwen2Config(  # Qwen2.5-3B
        hidden_size=2_048,
        intermediate_size=11_008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=151_936,
    )
    weights = torch.empty(3_085_938_688, dtype=torch.bfloat16, device="meta")
    model = SimpleNamespace(config=config, dtype=torch.bfloat16, parameters=lambda: [weights])
    loaded = load.Loaded(model, None, ModelRef("x", "directory", None), "bf16", "cuda:0", "plain")
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    rows = generation.max_rows(loaded, 150, 4_096)
    cache = 2 * 2 * 36 * 2 * 128 * (150 + 4_096)
    assert rows >= 200
    assert rows * cache < (80 << 30) - 2 * weights.numel()


def test_themain_memory_of_this_process_is_plausible():
    assert 64 << 20 < generation.main_memory() < 1 << 50

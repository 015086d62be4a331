"""Engines: agreement with transformers on greedy answers, and batches that do not fit in memory.

vLLM is replaced by a stand-in with its documented calls that computes with the same random model, so that what goes
in and out is checked without a GPU; llama.cpp is the real one.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import ModelError, UsageError
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export import quantize
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.inference import engines
from countdown_rl.inference import generate as generation
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe
from countdown_rl.tasks.registry import parse_row
from tests.support import tiny_llama

ROWS = [{"id": f"r{n}", "nums": [n + 2, 3, 5], "target": n + 10} for n in range(11)]
SMALL = EvalOptions(max_new_tokens=12, threads=1, agreement=3)


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


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    """The packaged model as the GGUF file that ``quantize`` writes."""
    out = tmp_path_factory.mktemp("gguf") / "tiny"
    ref = reference.resolve("countdown-tiny")
    quantize.quantize(ref, out, QuantizeOptions(format="gguf", gguf_type="f16"))
    return out


@pytest.fixture
def vllm(monkeypatch, model):
    """``vllm`` with ``LLM`` and ``SamplingParams`` of the documented shape."""
    module = ModuleType("vllm")
    module.loaded = []

    class SamplingParams(SimpleNamespace):
        def __init__(self, *, temperature, top_p, max_tokens, seed, stop, include_stop_str_in_output):
            super().__init__(temperature=temperature, max_tokens=max_tokens, seed=seed, stop=stop)
            assert include_stop_str_in_output

    class LLM:
        def __init__(self, model, *, dtype, max_model_len, seed, enable_prefix_caching, trust_remote_code):
            if max_model_len > 1024:
                raise ValueError(f"User-specified max_model_len ({max_model_len}) is greater than 1024.\nMore.")
            module.loaded.append((model, dtype, max_model_len))

        def generate(self, prompts, params, *, use_tqdm):
            assert not use_tqdm
            results = []
            for prompt, sampling in zip(prompts, params, strict=True):
                ids = list(prompt["prompt_token_ids"])
                draw = torch.Generator().manual_seed(sampling.seed)
                for _ in range(sampling.max_tokens):
                    scores = logits(model, ids)
                    if sampling.temperature:
                        scores = scores + torch.rand(scores.shape, generator=draw) * 50
                    ids.append(int(scores.argmax()))
                results.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids[-sampling.max_tokens :]))]))
            return results

    module.LLM, module.SamplingParams = LLM, SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(artifacts, "versions", lambda names: dict.fromkeys(names, "1"))
    return module


def test_llama_cpp_agrees_with_transformers_on_greedy_answers(folder, tmp_path, gguf, capfd):
    load.silence_libraries()
    pytest.importorskip("xllamacpp")
    jsonl.write_rows(tmp_path / "puzzles.jsonl", [{"id": str(n)} | row for n, row in enumerate(probe.rows(40))])
    options = EvalOptions(engine="llama-cpp", threads=1, agreement=40, max_new_tokens=32)
    result = run(folder, tmp_path / "eval", options, model=str(gguf), data=tmp_path / "puzzles.jsonl")
    assert (result.metrics["engine"], result.metrics["precision"]) == ("llama-cpp", "f16")
    manifest = artifacts.read(tmp_path / "eval", "eval")
    agreed = manifest.facts["agreement"]
    # Half precision may turn a token here and there.
    assert agreed["same_verdict"] >= 38
    assert agreed["same_text"] >= 36
    expected = run(
        folder,
        tmp_path / "plain",
        replace(options, engine="auto", precision="fp32"),
        model="countdown-tiny",
        data=tmp_path / "puzzles.jsonl",
    )
    assert expected.metrics["engine"] == "transformers"
    both = [(a, b) for a, b in zip(result.samples, expected.samples, strict=True) if a["completion"] == b["completion"]]
    assert len(both) >= 36
    assert all((a["tokens"], a["truncated"]) == (b["tokens"], b["truncated"]) for a, b in both)
    assert {a["truncated"] for a, _ in both} == {True, False}
    assert "xllamacpp" in manifest.versions
    assert manifest.options["engine"] == "llama-cpp"
    assert capfd.readouterr() == ("", "")


def test_llama_cpp_seeds_each_completion(folder, tmp_path, gguf):
    pytest.importorskip("xllamacpp")
    hot = EvalOptions(engine="llama-cpp", temperature=1.0, samples=2, agreement=0, seed=7, max_new_tokens=32, threads=1)

    def texts(name, **changes):
        samples = run(folder, tmp_path / name, replace(hot, **changes), model=str(gguf)).samples
        return [sample["completion"] for sample in samples]

    first = texts("a")
    assert sum(a != b for a, b in zip(first[::2], first[1::2], strict=True)) >= 3
    assert texts("b") == first
    assert texts("c", seed=8) != first
    assert texts("d", top_p=0.01)[::2] == texts("e", top_p=0.01)[1::2] == texts("f", temperature=0.0, samples=1)


def test_llama_cpp_ends_completions_at_the_answer(gguf):
    pytest.importorskip("xllamacpp")
    engine = engines.load("llama-cpp", reference.resolve(str(gguf)), generation.Decoding(256), threads=1)
    prompt = chat_template.render(engine.tokenizer, parse_row({"nums": [9, 5, 2], "target": 2}).messages())
    text = f"{prompt}\n9 5 2\n1. 9 - 5 = 4, 4 - 2 = 2 yes\n</think>\n<answer>"
    ids = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert engine.prepare(len(ids) + 256) == 1024
    (short,) = engine.complete([ids])
    assert short.ended
    assert short.text.endswith("</answer>")
    assert short.tokens < 256
    engine.close()


def test_a_damaged_gguf_file_or_a_missing_gpu_is_refused(gguf, tmp_path, capfd):
    load.silence_libraries()
    pytest.importorskip("xllamacpp")
    shutil.copytree(gguf, tmp_path / "copy")
    (tmp_path / "copy/manifest.json").unlink()
    file = tmp_path / "copy/model-F16.gguf"
    file.write_bytes(file.read_bytes()[:100_000])
    engine = engines.load("llama-cpp", reference.resolve(str(file)), generation.Decoding(8))
    with pytest.raises(ModelError, match=r"cannot load model-F16\.gguf: it is damaged"):
        engine.prepare(64)
    with pytest.raises(ModelError, match="has no GPU; leave --device cuda out"):
        engines.load("llama-cpp", reference.resolve(str(file)), generation.Decoding(8), device="cuda")
    assert capfd.readouterr() == ("", "")


def test_vllm_agrees_with_transformers_on_greedy_answers(folder, tmp_path, vllm):
    options = replace(SMALL, engine="vllm", precision="fp32")
    expected = run(folder, tmp_path / "plain", replace(options, engine="transformers")).samples
    result = run(folder, tmp_path / "eval", options)
    assert result.samples == expected
    assert vllm.loaded[0][:2] == (str(folder / "model"), "float32")
    agreed = artifacts.read(tmp_path / "eval", "eval").facts["agreement"]
    assert (agreed["puzzles"], agreed["same_text"], agreed["same_verdict"]) == (3, 3, 3)
    hot = replace(options, temperature=1.0, samples=3, agreement=0)
    texts = [sample["completion"] for sample in run(folder, tmp_path / "hot", hot).samples]
    assert len(set(texts[:3])) > 1
    assert artifacts.read(tmp_path / "hot", "eval").facts == {}
    with pytest.raises(ModelError, match=r"vLLM cannot load the model: User-specified max_model_len.*1024\.$"):
        run(folder, tmp_path / "no", replace(options, max_new_tokens=1020))


def test_agreement_counts_equal_texts_answers_and_verdicts(folder):
    class Reference:
        name = "reference"

        def complete(self, prompts, number=0):
            return [Completion("</think>\n<answer>1</answer>", 3, True)] * len(prompts)

    texts = ("</think>\n<answer>1</answer>", "</think><answer>1</answer>", "<think>")
    counts = engines.agreement(texts, Reference(), [[1]] * 3, [parse_row(row) for row in ROWS[:3]])
    assert counts == {"against": "reference", "puzzles": 3, "same_text": 1, "same_answer": 2, "same_verdict": 3}


def test_auto_is_vllm_only_with_a_gpu_and_plain_weights(monkeypatch, folder):
    plain, gguf = ModelRef("m", "directory", folder / "model"), ModelRef("m.gguf", "gguf", folder / "x.gguf")

    def resolved(ref, **options):
        return engines.resolve("auto", ref, **({"precision": "auto", "device": "auto"} | options))

    assert resolved(plain) == "transformers"
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(engines, "_has_gpu", lambda: False)
    assert resolved(plain) == "transformers"
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    assert resolved(plain) == "vllm"
    for ref, options in ((gguf, {}), (plain, {"precision": "nf4"}), (plain, {"device": "cpu"})):
        assert resolved(ref, **options) == "transformers"


@pytest.mark.parametrize(
    ("engine", "changes", "error", "message"),
    [
        ("vllm", {}, ModelError, "--engine vllm needs vllm: `pip install"),
        ("vllm", {"precision": "nf4"}, UsageError, "NF4"),
        ("vllm", {"device": "cpu"}, UsageError, "runs on a GPU"),
        ("llama-cpp", {}, UsageError, "GGUF"),
    ],
)
def test_an_engine_that_is_not_installed_or_unsuitable_is_refused(
    folder, tmp_path, monkeypatch, engine, changes, error, message
):
    monkeypatch.setattr(engines, "installed", lambda name: False)
    with pytest.raises(error, match=message):
        run(folder, tmp_path / "eval", replace(SMALL, engine=engine, **changes))
    assert list(tmp_path.iterdir()) == []


def test_llama_cpp_refuses_another_precision_and_needs_its_package(monkeypatch):
    gguf = ModelRef("m.gguf", "gguf", Path("m.gguf"))
    with pytest.raises(UsageError, match="has its own precision"):
        engines.resolve("llama-cpp", gguf, precision="bf16", device="auto")
    monkeypatch.setattr(engines, "installed", lambda name: False)
    with pytest.raises(ModelError, match=r"needs xllamacpp: `pip install 'countdown-rl\[llama-cpp\]'`"):
        engines.resolve("llama-cpp", gguf, precision="auto", device="auto")
    assert engines.resolve("auto", gguf, precision="auto", device="auto") == "transformers"


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
        monkeypatch.setattr(generation, "_main_memory", lambda size=size: size)
        rows.append(generation.max_rows(loaded, 8_192))
    assert rows == sorted(rows)
    assert 1 <= rows[0] < rows[2] <= rows[3] == rows[4]


def test_the_main_memory_of_this_process_is_plausible():
    assert 64 << 20 < generation._main_memory() < 1 << 50

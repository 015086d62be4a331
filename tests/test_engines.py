"""Engines: one interface, greedy answers held against transformers, and batches that give way to the memory.

llama.cpp and vLLM are stand-ins here that keep to their documented calls and compute with the same random
model, so that what goes in and out of them is checked where neither is installed.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tiny_llama

from countdown_rl import artifacts, engines, evaluation, generation, models
from countdown_rl.errors import ModelError, UsageError
from countdown_rl.generation import Completion
from countdown_rl.options import EvalOptions
from countdown_rl.references import ModelRef

torch = pytest.importorskip("torch")

ROWS = [{"id": f"r{n}", "nums": [n + 2, 3, 5], "target": n + 10} for n in range(11)]
SMALL = EvalOptions(max_new_tokens=12, threads=1, agreement=3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines")
    tiny_llama.checkpoint(path / "model", max_position_embeddings=1024, tie_word_embeddings=False)
    (path / "puzzles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(place, out, options=SMALL, **changes):
    given = {"model": str(place / "model"), "data": place / "puzzles.jsonl", "out": out} | changes
    return evaluation.evaluate(options, **given)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


@pytest.fixture
def model(place):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32).eval()


@pytest.fixture
def llama_cpp(monkeypatch, model):
    """``llama_cpp`` with a ``Llama`` of the documented shape; what it was asked is kept in ``asked``."""
    module = ModuleType("llama_cpp")
    module.asked = []

    class Llama:
        def __init__(self, model_path, *, n_ctx, n_threads, n_threads_batch, seed, verbose):
            if not Path(model_path).is_file():
                raise ValueError(f"Model path does not exist: {model_path}")
            self._n_ctx = n_ctx
            self.metadata = {"general.architecture": "llama", "llama.context_length": "1024"}
            self.seed = seed

        def n_ctx(self):
            return self._n_ctx

        def close(self):
            module.closed = True

        def set_seed(self, seed):
            assert 0 <= seed < 2**32
            self.seed = seed

        def generate(self, tokens, *, top_k, top_p, min_p, temp, repeat_penalty):
            assert (top_k, min_p, repeat_penalty) == (0, 0.0, 1.0)
            module.asked.append((tuple(tokens), temp, top_p, self.seed))
            ids = list(tokens)
            draw = torch.Generator().manual_seed(self.seed)
            while True:
                assert len(ids) < self._n_ctx
                scores = logits(model, ids)
                if temp:
                    ids.append(int(torch.multinomial((scores / temp).softmax(-1), 1, generator=draw)))
                else:
                    ids.append(int(scores.argmax()))
                yield ids[-1]

    module.Llama = Llama
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    return module


@pytest.fixture
def gguf(place, monkeypatch):
    """A reference to a GGUF file, whose tokenizer and weights are those of the random model."""
    path = place / "tiny.Q8_0.gguf"
    path.write_bytes(b"GGUF")
    ref = ModelRef(str(path), "gguf", path)
    plain = models.resolve(str(place / "model"))
    load, load_tokenizer = models.load, models.load_tokenizer
    monkeypatch.setattr(models, "resolve", lambda source, **_: ref if source.endswith(".gguf") else plain)
    monkeypatch.setattr(models, "load", lambda one, **how: load(plain, **how))
    monkeypatch.setattr(models, "load_tokenizer", lambda one: load_tokenizer(plain))
    monkeypatch.setattr(artifacts, "versions", lambda names: dict.fromkeys(names, "1"))
    return ref


@pytest.fixture
def vllm(monkeypatch, model):
    """``vllm`` with ``LLM`` and ``SamplingParams`` of the documented shape."""
    module = ModuleType("vllm")
    module.made = []

    class SamplingParams(SimpleNamespace):
        def __init__(self, *, temperature, top_p, max_tokens, seed, stop, include_stop_str_in_output):
            super().__init__(temperature=temperature, max_tokens=max_tokens, seed=seed, stop=stop)
            assert include_stop_str_in_output

    class LLM:
        def __init__(self, model, *, dtype, max_model_len, seed, enable_prefix_caching, trust_remote_code):
            if max_model_len > 1024:
                raise ValueError(f"User-specified max_model_len ({max_model_len}) is greater than 1024.\nMore.")
            module.made.append((model, dtype, max_model_len))

        def generate(self, prompts, params, *, use_tqdm):
            assert not use_tqdm
            results = []
            for prompt, how in zip(prompts, params, strict=True):
                ids = list(prompt["prompt_token_ids"])
                draw = torch.Generator().manual_seed(how.seed)
                for _ in range(how.max_tokens):
                    scores = logits(model, ids)
                    if how.temperature:
                        scores = scores + torch.rand(scores.shape, generator=draw) * 50
                    ids.append(int(scores.argmax()))
                results.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids[-how.max_tokens :]))]))
            return results

    module.LLM, module.SamplingParams = LLM, SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(artifacts, "versions", lambda names: dict.fromkeys(names, "1"))
    return module


def test_llama_cpp_gives_the_greedy_answers_of_transformers_and_says_so(place, tmp_path, gguf, llama_cpp):
    expected = run(place, tmp_path / "plain", replace(SMALL, precision="fp32")).samples
    result = run(place, tmp_path / "eval", replace(SMALL, engine="llama-cpp"), model=str(gguf.path))
    assert result.samples == expected
    assert (result.metrics["engine"], result.metrics["precision"]) == ("llama-cpp", "q8_0")
    manifest = artifacts.read(tmp_path / "eval", "eval")
    agreed = {"against": "transformers", "puzzles": 3, "same_text": 3, "same_answer": 3, "same_verdict": 3}
    assert manifest.facts == {"agreement": agreed}
    assert "llama_cpp_python" in manifest.versions
    assert manifest.options["engine"] == "llama-cpp"
    assert llama_cpp.closed
    assert {(temp, top_p) for _, temp, top_p, _ in llama_cpp.asked} == {(0.0, 1.0)}


def test_llama_cpp_draws_each_completion_from_a_seed_of_its_own(place, tmp_path, gguf, llama_cpp):
    hot = replace(SMALL, engine="llama-cpp", temperature=1.0, samples=2, agreement=0, seed=7)
    samples = run(place, tmp_path / "a", hot, model=str(gguf.path)).samples
    assert len({seed for *_, seed in llama_cpp.asked}) == len(llama_cpp.asked) == 22
    # Completions of one puzzle follow each other, so that its prompt is read once.
    assert [one[0] for one in llama_cpp.asked[::2]] == [one[0] for one in llama_cpp.asked[1::2]]
    assert run(place, tmp_path / "b", hot, model=str(gguf.path)).samples == samples


def test_vllm_gives_the_greedy_answers_of_transformers_and_says_so(place, tmp_path, vllm):
    options = replace(SMALL, engine="vllm", precision="fp32")
    expected = run(place, tmp_path / "plain", replace(options, engine="transformers")).samples
    result = run(place, tmp_path / "eval", options)
    assert result.samples == expected
    assert vllm.made[0][:2] == (str(place / "model"), "float32")
    agreed = artifacts.read(tmp_path / "eval", "eval").facts["agreement"]
    assert (agreed["puzzles"], agreed["same_text"], agreed["same_verdict"]) == (3, 3, 3)
    hot = replace(options, temperature=1.0, samples=3, agreement=0)
    texts = [one["completion"] for one in run(place, tmp_path / "hot", hot).samples]
    assert len(set(texts[:3])) > 1
    assert artifacts.read(tmp_path / "hot", "eval").facts == {}
    with pytest.raises(ModelError, match=r"vLLM cannot hold the model: User-specified max_model_len.*1024\.$"):
        run(place, tmp_path / "no", replace(options, max_new_tokens=1020))


def test_another_engine_that_writes_something_else_is_found_out(place):
    class Reference:
        name = "reference"

        def complete(self, prompts, number=0):
            return [Completion("</think>\n<answer>1</answer>", 3, True)] * len(prompts)

    texts = ("</think>\n<answer>1</answer>", "</think><answer>1</answer>", "<think>")
    found = engines.agreement(texts, Reference(), [[1]] * 3, ROWS[:3])
    assert found == {"against": "reference", "puzzles": 3, "same_text": 1, "same_answer": 2, "same_verdict": 3}


def test_auto_is_transformers_unless_vllm_and_a_gpu_are_there_and_the_weights_are_plain(monkeypatch, place):
    plain, gguf = ModelRef("m", "directory", place / "model"), ModelRef("m.gguf", "gguf", place / "x.gguf")

    def settled(ref, **how):
        return engines.settle("auto", ref, **({"precision": "auto", "device": "auto"} | how))

    assert settled(plain) == "transformers"
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(engines, "_has_gpu", lambda: False)
    assert settled(plain) == "transformers"
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    assert settled(plain) == "vllm"
    for ref, how in ((gguf, {}), (plain, {"precision": "nf4"}), (plain, {"device": "cpu"})):
        assert settled(ref, **how) == "transformers"


@pytest.mark.parametrize(
    ("engine", "changes", "error", "says"),
    [
        ("vllm", {}, ModelError, "--engine vllm needs vllm; install it"),
        ("vllm", {"precision": "nf4"}, UsageError, "does not hold NF4"),
        ("vllm", {"device": "cpu"}, UsageError, "runs on a GPU"),
        ("llama-cpp", {}, UsageError, "runs GGUF files, and .*model is none"),
    ],
)
def test_an_engine_that_is_not_there_or_does_not_fit_is_refused_in_a_sentence(
    place, tmp_path, monkeypatch, engine, changes, error, says
):
    monkeypatch.setattr(engines, "_installed", lambda name: False)
    with pytest.raises(error, match=says):
        run(place, tmp_path / "eval", replace(SMALL, engine=engine, **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_gguf_file_keeps_its_precision_and_needs_its_package(gguf, monkeypatch):
    with pytest.raises(UsageError, match="has its own precision"):
        engines.settle("llama-cpp", gguf, precision="bf16", device="auto")
    monkeypatch.setattr(engines, "_installed", lambda name: False)
    with pytest.raises(ModelError, match="needs llama-cpp-python"):
        engines.settle("llama-cpp", gguf, precision="auto", device="auto")


# Memory


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), "torch's own"])
def test_a_batch_that_does_not_fit_is_halved_and_the_greedy_result_is_the_same(place, tmp_path, monkeypatch, error):
    expected = run(place, tmp_path / "whole").samples
    complete, sizes = generation.Generator.complete, []

    def tight(self, prompts, number=0):
        sizes.append(len(prompts))
        if len(prompts) > 3:
            if isinstance(error, str):
                torch.empty(1 << 60)  # more than there is
            raise error
        return complete(self, prompts, number)

    monkeypatch.setattr(generation.Generator, "complete", tight)
    assert run(place, tmp_path / "tight").samples == expected
    assert sizes == [11, 6, 3, 3, 5, 3, 2]


def test_halves_draw_from_random_numbers_of_their_own():
    numbers = []

    class Tight:
        def complete(self, prompts, number=0):
            if len(prompts) > 1:
                raise MemoryError
            numbers.append(number)
            return [Completion(str(prompts[0]), 1, True)]

    assert [one.text for one in engines.complete(Tight(), [[k] for k in range(5)], 9)] == [f"[{k}]" for k in range(5)]
    assert len(set(numbers)) == 5
    # Engines that seed each row draw as if the batch had never been halved.
    assert [generation.row_seed(3, number, 0) for number in numbers] == [generation.row_seed(3, 9, k) for k in range(5)]


def test_one_row_too_many_is_said_in_a_sentence_and_other_errors_are_not_taken_for_it():
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


def test_a_small_machine_takes_smaller_batches_and_a_large_one_no_larger_than_pays(monkeypatch):
    tokenizer = tiny_llama.tokenizer()
    held = models.Loaded(tiny_llama.model(), tokenizer, ModelRef("x", "directory", None), "fp32", "cpu", "plain")
    rows = []
    for size in (64 << 20, 512 << 20, 4 << 30, 16 << 30, 256 << 30):
        monkeypatch.setattr(generation, "_main_memory", lambda size=size: size)
        rows.append(generation.fitting(held, 8_192))
    assert rows == sorted(rows)
    assert 1 <= rows[0] < rows[2] <= rows[3] == rows[4]


def test_the_main_memory_is_what_this_process_may_use():
    assert 64 << 20 < generation._main_memory() < 1 << 50

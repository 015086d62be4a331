"""Engines: the choice among them, and what goes into and out of vLLM."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.evaluation import complete, evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import engines
from countdown_rl.inference.engine import STOP
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.inference.vllm import Vllm
from countdown_rl.models import load
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama, vllm_stub

ROWS = [{"id": f"r{n}", "nums": [n + 2, 3, 5], "target": n + 10} for n in range(11)]
IN_VLLM = EvalOptions(max_new_tokens=12, engine="vllm", precision="fp32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines")
    tiny_llama.checkpoint(
        path / "model", max_position_embeddings=vllm_stub.CONTEXT, tie_word_embeddings=False
    )
    tiny_llama.adapter(path / "adapter", path / "model", r=12)
    jsonl.write_rows(path / "puzzles.jsonl", ROWS)
    return path


@pytest.fixture
def vllm(monkeypatch):
    for module in (artifacts, complete):
        monkeypatch.setattr(module, "installed_versions", lambda names: dict.fromkeys(names, "1"))
    return vllm_stub.install(monkeypatch)


def run(folder, out, options=IN_VLLM, model="model"):
    paths = {"model": str(folder / model), "data": folder / "puzzles.jsonl", "out": out}
    return evaluate.evaluate(options, **paths)


def there(monkeypatch, *names, gpu=True):
    """Let the packages *names* be installed, and a GPU."""
    monkeypatch.setattr(engines, "find_spec", lambda name: name if name in names else None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)


def chosen(ref, engine="auto", **options):
    return engines.choose_engine(ref, EvalOptions(engine=engine, **options)).name


@pytest.mark.parametrize("name", ["model", "adapter"])
def test_vllm_agrees_with_transformers_on_greedy_answers(folder, tmp_path, vllm, name):
    plain = replace(IN_VLLM, engine="transformers")
    expected = run(folder, tmp_path / "plain", plain, name).samples
    assert run(folder, tmp_path / "eval", model=name).samples == expected
    (engine,) = vllm.engines
    settings = {"model": str(folder / "model"), "dtype": "float32", "load_format": "safetensors"}
    if name == "adapter":
        settings |= {"enable_lora": True, "max_lora_rank": 16}
    assert engine.options.items() >= settings.items()
    assert engine.adapters == ([folder / name] if name == "adapter" else [])

    likeliest = replace(IN_VLLM, temperature=1.0, top_k=1)
    assert run(folder, tmp_path / "first", likeliest, name).samples == expected
    samples = run(folder, tmp_path / "hot", replace(IN_VLLM, temperature=1.0, samples=3)).samples
    assert len({sample.completion for sample in samples[:3]}) > 1


def test_an_adapter_that_vllm_ignores_is_refused(folder, tmp_path, vllm, monkeypatch):
    monkeypatch.setattr(vllm, "add_lora", lambda self, request: self.adapters.append(request))
    with pytest.raises(ModelError, match="vLLM ignores the adapter"):
        run(folder, tmp_path / "eval", model="adapter")


def test_the_reason_why_vllm_refuses_a_model_is_reported(folder, tmp_path, vllm):
    with pytest.raises(ModelError, match=r"cannot load .*max_model_len is above 1024"):
        run(folder, tmp_path / "no", replace(IN_VLLM, max_new_tokens=1020))


def test_end_tokens_of_the_generation_config_end_a_completion(tmp_path):
    path = tiny_llama.checkpoint(tmp_path / "model")
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 9]}')
    engine = Vllm.load(find_model(str(path)), Decoding(12), IN_VLLM)
    assert engine.stop.ids >= {1, 9}


@pytest.mark.parametrize(
    ("precision", "facts", "config", "word"),
    [
        ("auto", {}, {}, ""),
        ("auto", {"precision": "nf4"}, {}, "NF4"),
        ("bf16", {"precision": "nf4"}, {}, ""),
        ("auto", {}, {"use_dora": True}, "one rank and scale"),
        ("auto", {}, {"alpha_pattern": {"q_proj": 3}}, "one rank and scale"),
    ],
)
def test_an_adapter_that_vllm_would_compute_otherwise_is_refused(
    folder, tmp_path, monkeypatch, precision, facts, config, word
):
    ref = find_model(str(tiny_llama.adapter(tmp_path / "adapter", folder / "model", **config)))
    ref = replace(ref, manifest=SimpleNamespace(facts=facts, options={}))
    there(monkeypatch, "vllm")
    assert chosen(ref, precision=precision) == ("transformers" if word else "vllm")
    if word:
        with pytest.raises(UsageError, match=word):
            chosen(ref, "vllm", precision=precision)


@pytest.mark.parametrize(
    ("packages", "gpu", "options", "error", "word"),
    [
        ((), True, {}, ModelError, "engine vllm needs vllm: in a clone"),
        (("vllm",), True, {}, None, ""),
        (("vllm",), False, {}, None, ""),  # it has builds for a CPU
        (("vllm",), True, {"precision": "nf4"}, UsageError, "NF4"),
    ],
)
def test_auto_is_vllm_only_with_a_gpu_and_weights_that_it_supports(
    monkeypatch, folder, packages, gpu, options, error, word
):
    there(monkeypatch, *packages, gpu=gpu)
    ref = find_model(str(folder / "model"))
    assert chosen(ref, **options) == ("transformers" if error or not gpu else "vllm")
    if error:
        with pytest.raises(error, match=word):
            chosen(ref, "vllm", **options)


def test_rollouts_follow_each_adapter_and_report_log_probabilities(folder, tmp_path, vllm):
    ref = find_model(str(folder / "model"))
    stop = Stop(load.load_tokenizer(ref), load.skeleton(ref), STOP)
    decoding = Decoding(4, temperature=1.0, seed=3)
    engine = Vllm(folder / "model", stop, decoding, precision="fp32", lora_rank=12)
    engine.prepare(20)
    other = tiny_llama.adapter(tmp_path / "other", folder / "model", r=12, seed=5)
    sampled = {}
    for adapter in (None, folder / "adapter", other, folder / "adapter"):
        (row,) = engine.sample([[5, 6, 7]], decoding, number=2, adapter=adapter, logps=True)
        assert sampled.setdefault(adapter, row) == row
        assert len(row.logps) == len(row.ids)
    base, first, second, again = vllm.engines[-1].requests
    assert base is None
    assert first == again
    assert first.lora_int_id != second.lora_int_id
    assert len({row.logps[0] for row in sampled.values()}) == 3


def test_vllm_leaves_a_share_of_the_puzzles_to_transformers(monkeypatch, folder):
    there(monkeypatch, "vllm")
    monkeypatch.setattr(processes, "launched", lambda: True)
    ref = find_model(str(folder / "model"))
    assert chosen(ref) == "transformers"
    with pytest.raises(UsageError, match="one process"):
        chosen(ref, "vllm")

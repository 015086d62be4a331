import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, ModelError, UsageError
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models import load, nf4, reference
from countdown_rl.models.load import load_model, load_tokenizer
from countdown_rl.models.reference import find_model
from countdown_rl.models.shape import ModelShape, read_config, skeleton
from countdown_rl.training import weights
from countdown_rl.training.options import SftOptions
from tests.support import tiny_llama


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama.checkpoint(tmp_path_factory.mktemp("model") / "base")


def logits(loaded):
    ids = torch.arange(1, 25).view(2, 12)
    with torch.no_grad():
        return loaded.model(ids).logits.float()


def found(path: Path, device="cpu", **options):
    return load_model(find_model(str(path)), device=device, **options)


def linears(model, kind: str) -> set[str]:
    return {name for name, module in model.named_modules() if type(module).__name__ == kind}


def as_artifact(out: Path, kind: str, source: Path, options=None, inputs=None):
    with artifacts.writing(out, kind, options=options or {}, inputs=inputs or {}) as draft:
        shutil.copytree(source, draft.path, dirs_exist_ok=True)
    return out


@pytest.mark.parametrize("source", ["no-such-model", "./a/b", "some/model.gguf"])
def test_an_unknown_name_and_a_missing_path_are_refused_without_the_network(
    source, here, monkeypatch
):
    monkeypatch.setattr(reference, "_hub", lambda *_: pytest.fail("used the network"))
    word = "does not exist" if "/" in source else "not a known model"
    with pytest.raises(ModelError, match=word):
        find_model(source)


@pytest.mark.parametrize(
    ("kind", "change", "word"),
    [
        (None, lambda path: (path / "manifest.json").write_text("{"), "damaged"),
        ("merged", lambda path: (path / "config.json").write_text("{}"), "damaged"),
        ("data", lambda path: None, "data artifact"),
        (
            None,
            lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
            "pickled",
        ),
        (None, lambda path: shutil.rmtree(path) or path.write_text("weights"), "GGUF"),
    ],
)
def test_what_is_no_model_is_refused(base, tmp_path, kind, change, word):
    path = tmp_path / "model"
    as_artifact(path, kind, base) if kind else shutil.copytree(base, path)
    change(path)
    with pytest.raises((ArtifactError, ModelError), match=word):
        find_model(str(path))


def test_a_directory_with_another_file_of_the_model_is_another_input(base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "copy")
    seen = [find_model(str(copy)).as_input()]
    names = ("chat_template.jinja", "tokenizer.json", "generation_config.json", "config.json")
    for name in (*names, "model.safetensors"):
        (copy / name).write_bytes((copy / name).read_bytes()[:-1])
        seen.append(find_model(str(copy)).as_input())
    assert all(before != after for before, after in pairwise(seen))


def test_the_shipped_model_is_found_by_name():
    ref = find_model("countdown-tiny")
    assert ref.kind == "shipped"
    assert ref.as_input()["source"] == "countdown-tiny"
    assert ref.as_input()["digest"] == ref.manifest.digest


def test_an_absolute_path_is_not_recorded(base, tmp_path, monkeypatch):
    monkeypatch.chdir(base.parent)
    assert find_model(str(base)).as_input()["source"] == "base"
    assert find_model("./base").as_input()["source"] == "./base"
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    for source in (str(tmp_path / "base"), "../base"):
        # Of a path outside the last name is recorded.
        assert find_model(source).as_input()["source"] == "base"
        assert find_model(source).location == "../base"


def test_fp32_on_the_cpu_holds_the_checkpoints_own_values_and_no_model_uses_attention_of_cudnn(
    base,
):
    torch.backends.cuda.enable_cudnn_sdp(True)
    loaded = found(base)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert (loaded.precision, loaded.storage, loaded.device) == ("fp32", "plain", "cpu")
    for name, value in load_file(base / "model.safetensors").items():
        assert torch.equal(loaded.model.state_dict()[name], value.float())


@pytest.mark.parametrize("precision", ["auto", "nf4", "bf16"])
def test_rotary_frequencies_are_never_rounded(base, precision):
    model = found(base, precision=precision).model
    exact = transformers.LlamaForCausalLM(model.config).model.rotary_emb.inv_freq
    assert torch.equal(model.model.rotary_emb.inv_freq, exact)


def test_a_checkpoint_with_a_tensor_missing_or_of_another_size_is_refused(base, tmp_path):
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    tensors = load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = tensors.pop(name)
    for changed in (tensors, tensors | {name: weight[:8].clone()}):
        save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=r"incomplete.*q_proj.*of another"):
            found(tmp_path)


def in_4_bits(base, **changes):
    """The model at *base* with bitsandbytes' layers, as they are on a GPU."""
    config = BitsAndBytesConfig.from_dict(nf4.CONFIG | changes)
    options = {"quantization_config": config, "device_map": {"": "cpu"}}
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, **options)


def test_nf4_on_the_cpu_equals_bitsandbytes_layers(base):
    ours = found(base, precision="nf4")
    assert ours.storage == "dequantized-nf4"
    theirs = in_4_bits(base)
    four_bit = linears(theirs, "Linear4bit")
    assert linears(ours.model, "Linear") - four_bit == {"lm_head"}
    for name in four_bit:
        layer = theirs.get_submodule(name)
        layer.support_avx512bf16_for_cpu = False
        eye = torch.eye(layer.in_features, dtype=torch.bfloat16)
        assert torch.equal(layer(eye).T.float(), ours.model.get_submodule(name).weight)


def test_an_adapter_loads_its_base_in_the_precision_of_its_training(base, here):
    shutil.copytree(base, "base")
    peft = tiny_llama.adapter(here / "peft", Path("base"), reference="base")
    options, inputs = {"precision": "nf4"}, {"model": find_model("base").as_input()}
    ref = find_model(str(as_artifact(here / "adapter", "adapter", peft, options, inputs)))
    assert (ref.kind, ref.base.source) == ("adapter", "base")
    loaded = load_model(ref)
    assert (loaded.precision, loaded.storage) == ("nf4", "dequantized-nf4")
    assert not torch.equal(logits(loaded), logits(load_model(ref.base, precision="nf4")))


def test_a_tokenizer_pads_on_the_left_and_has_a_pad_token(tmp_path):
    tiny_llama.model().save_pretrained(tmp_path)
    tiny_llama.tokenizer(pad=None).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(find_model(str(tmp_path)))
    assert tokenizer.pad_token == tokenizer.eos_token == "<|end|>"
    assert tokenizer.padding_side == "left"
    tokenizer.save_pretrained(tmp_path / "again")
    assert "local" not in (tmp_path / "again" / "tokenizer_config.json").read_text()


def test_a_gpu_that_torch_does_not_see_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(load, "_DEVICE_FILES", tmp_path)
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "nvidia0" in load.unused_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not load.unused_gpu()


@pytest.mark.parametrize("precision", ["auto", "nf4", "fp16"])
def test_a_gpu_that_emulates_bf16_computes_in_fp16_with_a_scaler(
    base, tmp_path, monkeypatch, precision
):
    on_cpu = logits(found(base, precision="fp16"))
    monkeypatch.setattr(load, "device_name", lambda name: "cuda:0")
    emulated = lambda including_emulation=True: including_emulation  # noqa: E731
    monkeypatch.setattr("torch.cuda.is_bf16_supported", emulated)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (0, 1 << 40))
    loaded = found(base, precision=precision, sharded=True)
    assert loaded.model.dtype == torch.float16
    assert loaded.precision == ("nf4" if precision == "nf4" else "fp16")
    arguments = weights.trainer_arguments(SftOptions(), loaded, tmp_path)
    assert (arguments["fp16"], arguments["bf16"]) == (True, False)
    assert on_cpu.dtype == torch.float32
    if precision != "nf4":
        torch.testing.assert_close(logits(loaded).float(), on_cpu, rtol=0.02, atol=0.02)


def test_4_bit_layers_compute_in_fp32_where_the_gpu_has_no_bf16(base):
    model = in_4_bits(base)
    named = model.named_parameters()
    packed = {name: value.clone() for name, value in named if value.dtype == torch.uint8}
    nf4.cast(model, torch.float32)
    assert packed
    assert all(torch.equal(model.get_parameter(name), packed[name]) for name in packed)
    assert model.dtype == torch.float32  # so that autocast is off too
    assert model.model.layers[0].mlp.up_proj.compute_dtype == torch.float32


def test_a_processor_without_bf16_products_computes_in_fp32(base, monkeypatch):
    monkeypatch.setattr("countdown_rl.models.torch_internals.has_bf16_products", lambda *_: False)
    monkeypatch.setattr(load, "MAX_FP32_PARAMETERS", 0)
    for precision in ("auto", "nf4"):
        loaded = found(base, precision=precision)
        assert loaded.model.dtype == torch.float32
        assert not weights.computes_in_bf16(loaded)


def test_the_shape_of_a_model_has_the_defaults_of_its_architecture():
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=320)
    assert ModelShape.of(config) == ModelShape(2, 64, 256, 4, 4, 16, 320, 1024)


def test_nf4_values_are_held_plainly_where_they_are_less_than_half_of_a_card(
    base, tmp_path, monkeypatch
):
    gguf = tmp_path / "gguf"
    quantize_model(find_model(str(base)), gguf, QuantizeOptions(format="gguf", gguf_type="f16"))
    expected = logits(found(base, precision="nf4"))
    # The weights stay in main memory, as FSDP needs them: this machine has no such card.
    monkeypatch.setattr(load, "device_name", lambda name: "cuda:0")
    monkeypatch.setattr(load, "compute_dtype", lambda *_: torch.float32)
    parameters = skeleton(read_config(base)).num_parameters()
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (0, 4 * parameters + 1))
    loaded = found(base, precision="nf4", sharded=True)
    assert (loaded.storage, loaded.device) == ("dequantized-nf4", "cuda:0")
    assert torch.equal(logits(loaded), expected)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (0, 4 * parameters))
    with pytest.raises(ModelError, match="too large for NF4"):
        found(gguf, precision="nf4", sharded=True)


def test_layers_that_a_4_bit_checkpoint_left_out_are_loaded_and_planned_as_they_are_stored(
    base, tmp_path
):
    # As in dynamic ones of unsloth.
    left_out = ["lm_head", "model.layers.0.mlp", "model.layers.1.self_attn.q_proj"]
    stored = in_4_bits(base, llm_int8_skip_modules=left_out)
    stored.save_pretrained(tmp_path)
    load_tokenizer(find_model(str(base))).save_pretrained(tmp_path)
    four_bit = linears(stored, "Linear4bit")
    assert len(four_bit) == 2 * 7 - 3 - 1

    loaded = found(tmp_path)
    assert (loaded.precision, loaded.storage) == ("nf4", "dequantized-nf4")
    exact = {name: found(base, precision=name).model for name in ("fp32", "nf4")}
    for name in linears(loaded.model, "Linear"):
        like = exact["nf4" if name in four_bit else "fp32"].get_submodule(name)
        assert torch.equal(loaded.model.get_submodule(name).weight, like.weight), name
    assert nf4.linears(load.skeleton(find_model(str(tmp_path)))).keys() == four_bit


def test_a_base_of_the_recorded_name_is_the_one_of_the_training_or_named(base, here):
    shutil.copytree(base, "models/base")
    entry = find_model("models/base").as_input()
    peft = tiny_llama.adapter(here / "peft", base, reference="models/base")
    adapter = as_artifact(here / "adapter", "adapter", peft, inputs={"model": entry})
    assert find_model(str(adapter)).base.source == "models/base"
    Path("models/base").rename("moved")
    tiny_llama.checkpoint(Path("models/base"), seed=5)
    with pytest.raises(ArtifactError, match=r"trained over another.*--base-model"):
        find_model(str(adapter))
    assert find_model(str(adapter), base_model="moved").base.digest == entry["digest"]


def test_a_base_that_is_not_found_can_be_named(base, here):
    tiny_llama.adapter(here / "adapter", base, reference="lost")
    with pytest.raises(ModelError, match=r"base_model_name_or_path.*--base-model"):
        find_model("adapter")
    ref = find_model("adapter", base_model=str(base))
    assert ref.as_input()["base"]["digest"] == find_model(str(base)).digest
    assert load_model(ref).storage == "plain"
    for option in ("revision", "base_model"):  # of another kind of model
        with pytest.raises(UsageError, match=option):
            find_model(str(base), **{option: str(base)})


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(ModelError, match="t5"):
        skeleton(transformers.T5Config())


def test_a_checkpoint_without_a_tokenizer_is_refused(base, tmp_path):
    for name in ("model.safetensors", "config.json", "tokenizer_config.json"):
        shutil.copy(base / name, tmp_path)
    with pytest.raises(ModelError, match="no tokenizer files"):
        load_tokenizer(find_model(str(tmp_path)))


def test_the_generation_settings_of_a_checkpoint_take_no_part(base, tmp_path):
    shutil.copytree(base, tmp_path / "model")
    settings = {"eos_token_id": [1, 7], "stop_strings": ["a"], "temperature": 0.5}
    settings |= {"do_sample": False, "num_beams": 2, "repetition_penalty": 1.5}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    model = found(tmp_path / "model").model
    assert model.generation_config.to_diff_dict().keys() <= {"eos_token_id", "transformers_version"}
    model.save_pretrained(tmp_path / "saved")  # transformers refuses a temperature without sampling
    assert model.generate(torch.tensor([[5, 6]]), max_new_tokens=1).shape == (1, 3)

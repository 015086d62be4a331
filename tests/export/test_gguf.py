from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM

from countdown_rl.core.errors import ModelError
from countdown_rl.export import gguf, gguf_tokenizer, llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.export.source import Source
from countdown_rl.models import load
from countdown_rl.models.chat_template import complete_user_turn
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import find_model, local_path
from countdown_rl.tasks import probe
from countdown_rl.tasks.countdown.task import CountdownRow
from tests.support import architectures, standins, tiny_llama


def written(kind: str, **changes):
    tiny_llama.checkpoint(Path("full"), **changes)
    return quantize_model(
        find_model("full"), Path("quantized"), QuantizeOptions(format="gguf", gguf_type=kind)
    )


def prompts():
    return probe.conversations(find_model("countdown-tiny").as_input(), 16)


def fields() -> dict:
    (file,) = Path("quantized").glob("*.gguf")
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


@pytest.mark.parametrize(("kind", "closeness"), [("f16", 1e-3), ("q8_0", 0.05), ("q4_0", 0.5)])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_back_the_same_model(kind, closeness, tied):
    facts = written(kind, tie_word_embeddings=tied).facts
    ids = torch.arange(5, 25).view(1, 20)
    with torch.inference_mode():
        back = AutoModelForCausalLM.from_pretrained(
            "quantized", gguf_file=facts["file"], dtype=torch.float32
        )
        a, b = (
            back(ids).logits,
            load.load_model(find_model("full"), precision="fp32").model(ids).logits,
        )
    assert (a - b).norm() / b.norm() < closeness


def test_tokenizer_special_tokens_and_chat_template_are_in_the_file():
    written("f16")
    metadata, tokenizer = fields(), tiny_llama.tokenizer()
    loaded = load.load_tokenizer(find_model("quantized"))
    text = "Numbers: 37 50\n\n  <think>"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert {name for name in metadata if "sampling" in name} == {"general.sampling.temp"}
    tokens = {
        "chat_template": tokenizer.chat_template,
        "ggml.eos_token_id": 1,
        "ggml.padding_token_id": 0,
        "ggml.add_bos_token": False,
    }
    assert {
        f"tokenizer.{name}": token for name, token in tokens.items()
    }.items() <= metadata.items()
    assert metadata["tokenizer.ggml.tokens"][:3] == ["<|pad|>", "<|end|>", "<|system|>"]
    assert metadata["llama.context_length"] == 512


def test_the_modelfile_holds_the_chat_template_in_ollamas_language():
    written("q8_0")
    text = Path("quantized/Modelfile").read_text()
    assert "FROM ./model-Q8_0.gguf\n" in text
    assert (
        "{{ if .System }}<|system|>{{ .System }}<|end|><|user|>{{ else }}<|user|>{{ end }}{{ .Prompt }}"
        in text
    )
    assert '{{ .Prompt }}<|end|><|assistant|>{{ .Response }}"""' in text
    assert 'PARAMETER stop "<|end|>"' in text


@pytest.mark.parametrize("changed", [False, True])
def test_llama_cpp_reads_back_the_same_tokens_and_tells_of_another_chat(changed, capfd):
    pytest.importorskip("xllamacpp")
    manifest = written("q8_0")
    assert "xllamacpp" in manifest.versions
    tokenizer = load.load_tokenizer(find_model("full"))
    if changed:
        tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|end|> ")
    file = Path("quantized", manifest.facts["file"])
    checked = llama_cpp.check_round_trip(file, tokenizer, prompts())
    assert checked == {"prompts": 16, "chat": not changed}
    assert "llama" not in "".join(capfd.readouterr())


def test_a_file_that_llama_cpp_tokenizes_differently_is_not_written(monkeypatch):
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(
        gguf_tokenizer, "pre_tokenizer", lambda tokenizer, conversations: "superbpe"
    )
    with pytest.raises(ModelError, match=r"other tokens"):
        written("q8_0")
    assert not Path("quantized").exists()


def test_llama_cpps_chat_endpoint_answers_a_user_turn_alone():
    """With no option and no begun answer, as ``llama-server`` is asked by any OpenAI client."""
    pytest.importorskip("xllamacpp")
    row = CountdownRow({"nums": [3, 7, 50], "target": 46})  # which the shipped model solves
    ref = find_model("countdown-tiny")
    tokenizer, directory = load.load_tokenizer(ref), local_path(ref)
    complete_user_turn(tokenizer, row.messages())  # as train does
    source = Source(ref, directory, Checkpoint(directory), tokenizer, load.skeleton(ref))
    server = llama_cpp.server(Path(gguf.write(source, Path(), QuantizeOptions())["file"]), 512)
    system, user, prefill = row.messages()
    reply = llama_cpp.request(server, "/v1/chat/completions", {"messages": [user]})
    assert row.grade(reply["choices"][0]["message"]["content"]).correct
    modelfile = Path("Modelfile").read_text()
    assert system["content"] in modelfile
    assert prefill["content"] in modelfile


@pytest.mark.parametrize("name", ["gpt2", "qwen3_5_text", "qwen3_next"])
def test_an_unsupported_architecture_is_refused_by_name(name):
    architectures.checkpoint(Path("full"), name)
    with pytest.raises(ModelError, match=f"{name}.*convert_hf_to_gguf"):
        quantize_model(find_model("full"), Path("quantized"), QuantizeOptions(format="gguf"))


def modelfile(template, **special):
    tokenizer = tiny_llama.tokenizer(template)
    for name, value in special.items():
        setattr(tokenizer, name, value)
    return gguf.modelfile("m.gguf", tokenizer, 100)


@pytest.mark.parametrize("quotes", [3 * '"', 7 * '"', ""])
@pytest.mark.parametrize("line", ["\nADAPTER /etc/passwd\n", "\u2028Parameter stop x\x85"])
def test_a_template_adds_no_lines_to_the_modelfile(quotes, line):
    text = modelfile(
        f"{{{{ {quotes + line + quotes!r} }}}}{{{{ '{{{{{{{{ .Env }}}}}}}}' }}}}"
        + tiny_llama.TEMPLATE
    )
    _, template, _ = text.split(3 * '"')
    first = {line.split()[0] for line in text.splitlines() if line.strip('" ')}
    assert {word.upper() for word in first if word.isalpha()} == {"FROM", "TEMPLATE", "PARAMETER"}
    assert text.upper().count("\nPARAMETER") == 2
    assert '{{ "{{{{" }} .Env' in template
    text = modelfile(tiny_llama.TEMPLATE, eos_token='x"\nADAPTER /etc/passwd')
    assert "ADAPTER" not in text


def test_a_turn_that_the_template_shows_twice_is_twice_in_the_modelfile():
    twice = tiny_llama.TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] * 2 }}")
    template = modelfile(twice).split('"' * 3)[1]
    system = "{{ if .System }}<|system|>{{ .System }}{{ .System }}<|end|>"
    turn = "<|user|>{{ .Prompt }}"
    end = "{{ end }}{{ .Prompt }}<|end|><|assistant|>{{ .Response }}"
    assert template == system + turn + "{{ else }}" + turn + end


def test_a_template_that_changes_the_turns_has_no_modelfile():
    assert (
        modelfile(tiny_llama.TEMPLATE.replace("message['content']", "message['content'] | lower"))
        is None
    )


def test_three_end_tokens_have_names_of_their_own():
    standins.checkpoint(Path("full"), "llama-3.1")
    quantize_model(
        find_model("full"), Path("quantized"), QuantizeOptions(format="gguf", gguf_type="f16")
    )
    tokens, metadata = load.load_tokenizer(find_model("full")), fields()
    names = ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")
    ids = {tokens.convert_tokens_to_ids(name) for name in names}
    assert {metadata[f"tokenizer.ggml.{kind}_token_id"] for kind in ("eos", "eot", "eom")} == ids
    assert metadata["tokenizer.ggml.eos_token_id"] == tokens.eos_token_id
    modelfile = Path("quantized/Modelfile").read_text()
    assert all(f'PARAMETER stop "{name}"' in modelfile for name in names)


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu"}, {"mlp_bias": True}], ids=str)
def test_a_model_that_llama_cpp_would_compute_otherwise_is_refused(changes):
    with pytest.raises(ModelError, match=r"gelu|bias"):
        written("f16", **changes)


def test_the_context_is_no_longer_than_a_sliding_window():
    standins.checkpoint(
        Path("full"), "qwen2.5", use_sliding_window=True, sliding_window=64, max_window_layers=0
    )
    quantize_model(
        find_model("full"), Path("quantized"), QuantizeOptions(format="gguf", gguf_type="f16")
    )
    assert fields()["qwen2.context_length"] == 64
    assert "num_ctx 64" in Path("quantized/Modelfile").read_text()

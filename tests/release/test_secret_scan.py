"""No token is in a release."""

import shutil
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from tests.support import release_chain, tiny_llama

TOKEN = "hf_" + "a" * 30


def build(model: str = "gguf") -> None:
    shutil.rmtree("eval", ignore_errors=True)
    folder.build(PublishOptions(model=model), Path("release"))


def change_gguf(change) -> None:
    """Write the artifact ``gguf`` again, with its files as *change* leaves them in the directory it is given."""
    manifest = artifacts.read(Path("gguf"), "quantized")
    shutil.move("gguf", "old")
    with artifacts.writing(Path("gguf"), "quantized", options=manifest.options, inputs=manifest.inputs) as draft:
        for file in manifest.files:
            shutil.copyfile(Path("old") / file, draft.path / file)
        change(draft.path)


@pytest.mark.parametrize("name", ["Modelfile", "chat_template.jinja", "merges.txt", "tokenizer_config.json"])
def test_a_token_in_a_file_is_refused(root, name):
    change_gguf(lambda folder: (folder / name).write_text(f'"FROM ./model-q8_0.gguf\\n# {TOKEN}"\n'))
    with pytest.raises(ArtifactError, match="token") as raised:
        build()
    assert TOKEN not in str(raised.value)
    assert not Path("release").exists()


def test_a_token_in_the_metadata_of_weights_is_refused(root):
    from safetensors.numpy import save_file

    inputs = artifacts.read(Path("base"), "model").inputs
    with artifacts.writing(Path("base"), "model", options={}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path)
        save_file({}, draft.path / "model.safetensors", {"made_with": TOKEN})
    with pytest.raises(ArtifactError, match="token"):
        build("base")
    shutil.rmtree("gguf")
    release_chain.quantized(Path(), "gguf", strings={"general.source.url": TOKEN})
    with pytest.raises(ArtifactError, match="token"):
        build()


def test_a_token_in_the_options_of_an_input_is_refused(root):
    inputs = artifacts.read(Path("base"), "model").inputs
    shutil.rmtree("base")
    with artifacts.writing(Path("base"), "model", options={"note": TOKEN}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path)
    with pytest.raises(ArtifactError, match="token"):
        build("base")
    assert not Path("release").exists()

"""No token and no local path is in a release."""

import json
import shutil
from pathlib import Path

import pytest

from countdown_rl import artifacts
from countdown_rl.errors import ArtifactError
from countdown_rl.hub import release
from countdown_rl.hub.config import PublishOptions
from tests.support import release_chain, tiny_llama

TOKEN = "hf_" + "a" * 30


def build(model: str = "gguf") -> None:
    shutil.rmtree("eval", ignore_errors=True)
    release.build(PublishOptions(model=model), Path("release"))


def change_gguf(change) -> None:
    """Write the artifact ``gguf`` again, with its files as *change* leaves them in the directory it is given."""
    manifest = artifacts.read(Path("gguf"), "quantized")
    shutil.move("gguf", "old")
    with artifacts.writing(Path("gguf"), "quantized", options=manifest.options, inputs=manifest.inputs) as draft:
        for file in manifest.files:
            shutil.copyfile(Path("old") / file, draft.path / file)
        change(draft.path)


@pytest.mark.parametrize(
    "path",
    [
        "/home/someone/base",
        "../../home/someone/base",
        "~/models/base",
        "file:///srv/models/base",
        "C:\\Users\\someone\\base",
        "/home/some one/base",
    ],
)
@pytest.mark.parametrize("place", ["config", "gguf", "safetensors", "Modelfile"])
def test_a_local_path_in_the_metadata_of_a_file_is_refused(root, path, place):
    if place == "gguf":
        shutil.rmtree("gguf")
        release_chain.quantized(Path(), "gguf", strings={"general.source.url": path})
    elif place == "Modelfile":
        change_gguf(lambda folder: (folder / "Modelfile").write_text(f"FROM {path}\n"))
    elif place == "config":
        change_gguf(lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps({"name_or_path": path})))
    else:
        from safetensors.numpy import save_file

        change_gguf(lambda folder: save_file({}, folder / "extra.safetensors", {"made_from": path}))
    with pytest.raises(ArtifactError, match="local path") as raised:
        build()
    assert "\n" not in str(raised.value)
    assert not Path("release").exists()


@pytest.mark.parametrize("name", ["Modelfile", "chat_template.jinja", "notes.txt", "tokenizer_config.json"])
def test_a_token_in_a_file_is_refused(root, name):
    change_gguf(lambda folder: (folder / name).write_text(f'"FROM ./model-q8_0.gguf\\n# {TOKEN}"\n'))
    with pytest.raises(ArtifactError, match="token") as raised:
        build()
    assert TOKEN not in str(raised.value)
    assert not Path("release").exists()


def test_a_token_in_the_options_of_an_input_is_refused(root):
    inputs = artifacts.read(Path("base"), "model").inputs
    shutil.rmtree("base")
    with artifacts.writing(Path("base"), "model", options={"note": TOKEN}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path)
    with pytest.raises(ArtifactError, match="token"):
        build("base")
    assert not Path("release").exists()


def test_a_modelfile_names_a_file_that_is_there(root):
    change_gguf(lambda folder: (folder / "Modelfile").write_text("FROM ./gone.gguf\n"))
    with pytest.raises(ArtifactError, match=r"gone\.gguf"):
        build()

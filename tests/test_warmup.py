import json
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from countdown_rl import artifacts, traces, warmup
from countdown_rl.cli import app
from countdown_rl.references import SHIPPED

ROOT = Path(__file__).parent.parent
SMALL = ["--steps", "2", "--batch-size", "4", "--layers", "1", "--hidden-size", "64", "--intermediate-size", "64"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("warmup") / "data"
    done = CliRunner().invoke(app, ["gen-data", "--n", "600", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def test_labels_keep_the_lessons_alone():
    tokens = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    pieces = [traces.Piece("\n"), traces.Piece("7 + 5", lesson=False), traces.Piece(" = 12"), traces.Piece(" no\n")]
    ids, labels = warmup._tokenized(pieces, tokens)
    assert tokens.decode(ids) == "\n7 + 5 = 12 no\n" + tokens.eos_token
    assert tokens.decode([label for label in labels if label != -100]) == "\n = 12 no\n" + tokens.eos_token
    assert len(ids) == len(labels)


def test_a_model_made_from_nothing_loads_anywhere_and_says_how_it_was_made(data, tmp_path):
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        done = CliRunner().invoke(app, ["warmup", "--data", str(data), "--out", str(out), *SMALL, "--json"])
        assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    manifest = artifacts.read(outs[0], "model")
    assert manifest.options["steps"] == 2
    assert manifest.inputs["data"]["digest"] == artifacts.read(data, "data").digest
    assert facts["parameters"] == manifest.facts["parameters"] > 10_000
    assert (outs[0] / "model.safetensors").read_bytes() == (outs[1] / "model.safetensors").read_bytes()

    further = tmp_path / "further"
    done = CliRunner().invoke(
        app, ["warmup", "--model", str(outs[0]), "--data", str(data), "--out", str(further), *SMALL[:4]]
    )
    assert done.exit_code == 0, done.output
    after = artifacts.read(further, "model")
    assert after.inputs["model"]["digest"] == manifest.digest
    assert "hidden_size" not in after.options
    assert after.files["model.safetensors"]["sha256"] != manifest.files["model.safetensors"]["sha256"]


def test_a_model_is_warmed_up_on_what_it_tries_itself(data, tmp_path):
    words = ["warmup", "--model", "countdown-tiny", "--data", str(data), *SMALL[:4], "--tries", "own", "--json"]
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        done = CliRunner().invoke(app, [*words, "--out", str(out)])
        assert done.exit_code == 0, done.output
    assert artifacts.read(outs[0], "model").options["tries"] == "own"
    assert (outs[0] / "model.safetensors").read_bytes() == (outs[1] / "model.safetensors").read_bytes()


def test_own_tries_need_a_model(data, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["warmup", "--tries", "own", "--data", str(data), "--out", str(out)])
    assert "--tries own needs a model" in str(done.exception)
    assert not out.exists()


def test_the_shipped_model_is_the_size_that_was_promised_and_says_how_it_was_made():
    manifest = artifacts.read(SHIPPED["countdown-tiny"], "model")
    assert manifest.facts["parameters"] <= 5_000_000
    assert sum(file["size"] for file in manifest.files.values()) <= 12_000_000
    chain = [{"options": manifest.options, "inputs": manifest.inputs}]
    while "model" in chain[-1]["inputs"]:
        chain.append(chain[-1]["inputs"]["model"]["manifest"])
    recipe = (ROOT / "stages" / "recipes" / "countdown-tiny.sh").read_text().replace("\\\n", " ")
    commands = re.findall(r"countdown-rl (gen-data|warmup) (.*)", recipe)
    assert len(commands) == 2 * len(chain)
    for made, (_, data), (_, words) in zip(reversed(chain), commands[::2], commands[1::2], strict=True):
        for given, options in ((data, made["inputs"]["data"]["manifest"]["options"]), (words, made["options"])):
            for flag, value in re.findall(r"--([a-z-]+) ([\w.]+)(?=\s|$)", given):
                if flag != "threads":  # how fast, not what
                    assert str(options[flag.replace("-", "_")]) == value, flag

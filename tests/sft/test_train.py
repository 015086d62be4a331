import json
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from countdown_rl import artifacts
from countdown_rl.cli.main import app
from countdown_rl.models.reference import SHIPPED
from countdown_rl.sft import train
from countdown_rl.sft.config import SftOptions

ROOT = Path(__file__).parents[2]
SMALL = ["--max-steps", "2", "--batch-size", "4", "--layers", "1", "--hidden-size", "64", "--intermediate-size", "64"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sft") / "data"
    done = CliRunner().invoke(app, ["gen-data", "--n", "600", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def test_labels_leave_out_the_prompt_and_end_where_the_trace_does():
    tokens = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    rows = [{"nums": [7, 50, 2], "target": 85}, {"nums": [7, 50, 3], "target": 46}]
    made = train._examples(rows, {3: ["a-b"]}, SftOptions(max_lines=1), tokens)
    texts = []
    for ids, labels in zip(made["input_ids"], made["labels"], strict=True):
        lessons = [label for label in labels if label != -100]
        assert ids[len(ids) - len(lessons) :] == lessons
        assert tokens.decode(ids[: len(ids) - len(lessons)]).endswith("<think>")
        texts.append(tokens.decode(lessons))
    assert texts[0] == "\n50 7 2\n1. 50 - 7 = 43, 43 * 2 = 86 no\n"
    lines = "\n50 7 3\n1. 50 - 7 = 43, 43 + 3 = 46 yes\n</think>\n<answer>(50 - 7) + 3</answer>"
    assert texts[1] == lines + tokens.eos_token


def test_a_model_made_from_nothing_loads_anywhere_and_says_how_it_was_made(data, tmp_path, monkeypatch):
    told: list[dict] = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **what: told.append(what))
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        done = CliRunner().invoke(app, ["sft", "--data", str(data), "--out", str(out), *SMALL, "--json"])
        assert done.exit_code == 0, done.output
    assert not told
    facts = json.loads(done.stdout)
    manifest = artifacts.read(outs[0], "model")
    assert manifest.options["max_steps"] == 2
    assert manifest.inputs["data"]["digest"] == artifacts.read(data, "data").digest
    assert facts["parameters"] == manifest.facts["parameters"] > 10_000
    assert (outs[0] / "model.safetensors").read_bytes() == (outs[1] / "model.safetensors").read_bytes()

    further, other = tmp_path / "further", tmp_path / "other"
    done = CliRunner().invoke(app, ["gen-data", "--n", "600", "--numbers", "1-9", "--out", str(other)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        app, ["sft", "--model", str(outs[0]), "--data", str(other), "--out", str(further), *SMALL[:4]]
    )
    assert done.exit_code == 0, done.output
    after = artifacts.read(further, "model")
    assert after.inputs["model"]["digest"] == manifest.digest
    assert "hidden_size" not in after.options
    assert after.facts["plan"] == manifest.facts["plan"]
    assert len(manifest.facts["plan"]["3"]) > 5
    assert after.files["model.safetensors"]["sha256"] != manifest.files["model.safetensors"]["sha256"]


def test_the_shipped_model_is_the_size_that_was_promised_and_says_how_it_was_made():
    manifest = artifacts.read(SHIPPED["countdown-tiny"], "model")
    assert manifest.facts["parameters"] <= 5_000_000
    assert sum(file["size"] for file in manifest.files.values()) <= 12_000_000
    chain = [{"options": manifest.options, "inputs": manifest.inputs}]
    while "model" in chain[-1]["inputs"]:
        chain.append(chain[-1]["inputs"]["model"]["manifest"])
    recipe = (ROOT / "stages" / "recipes" / "countdown-tiny.sh").read_text().replace("\\\n", " ")
    commands = re.findall(r"countdown-rl (gen-data|sft) (.*)", recipe)
    assert len(commands) == 2 * len(chain)
    for made, (_, data), (_, words) in zip(reversed(chain), commands[::2], commands[1::2], strict=True):
        for given, options in ((data, made["inputs"]["data"]["manifest"]["options"]), (words, made["options"])):
            for flag, value in re.findall(r"--([a-z-]+) ([\w.=]+)(?=\s|$)", given):
                if flag != "threads":  # how fast, not what
                    said = options[
                        {"max-steps": "steps"}.get(flag, flag).replace("-", "_")
                    ]  # it was made before that flag had its name
                    assert value in (said if isinstance(said, list) else [str(said)]), flag

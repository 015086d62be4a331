"""A teacher that judges ways: what looks good, how a trace says it, and a model that is trained
further to write it.
"""

import pytest
from typer.testing import CliRunner

from countdown_rl.cli.main import app
from countdown_rl.core import artifacts
from countdown_rl.models import load, reference
from stages.recipes.tiny import pretrain, traces
from stages.recipes.tiny.config import PretrainOptions

PLAN = traces.plan_of(reference.find_model("countdown-tiny").manifest.facts)
ROW = {"nums": [97, 31, 12, 5], "target": 998}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("judge") / "data"
    done = CliRunner().invoke(app, ["gen-data", "--n", "1500", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


SHORT = PretrainOptions(judge=True, max_steps=2, batch_tokens=500)


def test_a_model_trained_further_keeps_its_plan_and_gets_a_token_for_each_new_text(data, tmp_path):
    pretrain.make(SHORT, data=data, model="countdown-tiny", out=tmp_path / "model")
    manifest = artifacts.read(tmp_path / "model", "model")
    assert traces.plan_of(manifest.facts) == PLAN
    assert manifest.inputs["model"]["source"] == "countdown-tiny"
    loaded = load.load_model(reference.find_model(str(tmp_path / "model")))
    for text in (" no, skip poor\n", ", kind 0", ", kind 95"):
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == 1
        assert ids[0] < loaded.model.get_input_embeddings().num_embeddings

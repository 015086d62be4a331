"""A teacher that judges ways: what looks good, how a trace says it, and a model that is trained further to write it."""

import random

import numpy as np
import pytest
from typer.testing import CliRunner

from countdown_rl.cli.main import app
from countdown_rl.core import artifacts
from countdown_rl.models import load, reference
from stages.recipes.tiny import pretrain, traces
from stages.recipes.tiny.config import PretrainOptions
from stages.recipes.tiny.judge import Judge

PLAN = traces.plan_of(reference.find_model("countdown-tiny").manifest.facts)
ROW = {"nums": [97, 31, 12, 5], "target": 998}


def puzzles(count, seed):
    rng = random.Random(seed)
    return [{"nums": [rng.randint(1, 99) for _ in range(4)], "target": rng.randint(10, 100)} for _ in range(count)]


def test_ways_that_look_good_are_those_that_solve():
    rows = puzzles(4_000, 1)
    judge = Judge(rows[:3_000], PLAN[4])
    held_out = rows[3_000:]
    good = np.array([judge(row) for row in held_out])
    lines = [
        [traces.execute(sorted(row["nums"], reverse=True), way, row["target"]) for way in PLAN[4]] for row in held_out
    ]
    hits = np.array([[line.value == row["target"] for line in own] for row, own in zip(held_out, lines, strict=True)])
    assert 0.03 < good.mean() < 0.6
    assert hits[good].mean() > 3 * hits[~good].mean()
    divisions = [PLAN[4].index(way) for way in PLAN[4] if "a/b" in way]
    assert not any(judge({"nums": [97, 31, 12, 5], "target": 50})[way] for way in divisions)


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

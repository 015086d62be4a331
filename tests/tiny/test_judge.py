"""A teacher that judges ways: what looks good, how a trace says it, and a model that is trained further to write it."""

import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AddedToken
from typer.testing import CliRunner

from benchmarks import judging
from countdown_rl.cli.main import app
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.models import load, reference
from stages.recipes.tiny import loss, pretrain, traces
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


def test_kinds_are_what_the_numbers_are_against_the_target():
    assert traces.kind([90, 60, 30, 3], 20) == 0b11111
    assert traces.kind([90, 60, 30, 4], 70) == 0b01000 + 32
    assert traces.kind([90, 80, 30, 10], 62) == 0b01100 + 64
    kinds = {traces.kind(sorted(row["nums"], reverse=True), row["target"]) for row in puzzles(3_000, 2)}
    assert kinds <= set(range(traces.KINDS))
    assert len(kinds) > 20


def test_a_line_that_skips_the_poor_ways_goes_to_one_that_looks_good():
    good = [way % 11 == 0 for way in range(99)]
    judged, drawn = 0, 0
    for seed in range(40):
        for near_the_end in (False, True):
            row = ROW if not near_the_end else {"nums": [97, 31, 12, 5], "target": 83}
            text = traces.trace(row, PLAN, random.Random(seed), max_lines=20, near_the_end=near_the_end, good=good).text
            assert (
                re.match(
                    rf"\n97 31 12 5, 85, 26, 116, 78, kind {traces.kind([97, 31, 12, 5], row['target'])}\n\d\. ", text
                )
                or near_the_end
            )
            lines = re.findall(r"^(\d+)\. .* (no.*|yes)$", text, re.MULTILINE)
            for (number, end), (following, _) in pairwise(lines):
                way, chosen = int(number) - 1, int(following) - 1
                skip = traces.skipped(way, chosen)
                if end == traces.SKIP_POOR:
                    judged += 1
                    assert skip == traces.poor_ways(way, good)
                    assert good[chosen] or skip == 7
                else:
                    drawn += 1
                    assert traces.SKIPS[skip] == end
    assert 0.4 < judged / (judged + drawn) < 0.8


def test_the_teacher_skips_the_poor_ways_after_a_share_of_the_lines():
    tokens = load.load_tokenizer(reference.find_model("countdown-tiny"))
    tokens.add_tokens([AddedToken(f" {traces.SKIP_POOR}\n", normalized=False)])
    ids = tokens("\n9 5 2 1\n3. 9 / 5 no, skip poor\n6. 9 - 5 = 4, 4 / 3 no, skip one\n", add_special_tokens=False)
    labels = torch.tensor([ids["input_ids"]] * 2)
    targets = loss.TeacherTargets(tokens, len(tokens), "cpu", judges=True)(labels, torch.tensor([99, 12]))
    long, short = targets.split(labels.shape[1])
    ends = {tokens.decode([token]): place for place, token in enumerate(ids["input_ids"])}
    for text in (" no, skip poor\n", " no, skip one\n"):
        target = long[ends[text]]
        shares = {tokens.decode([int(token)]).strip(): float(target[token]) for token in target.nonzero()[:, 0]}
        assert shares == pytest.approx({**dict.fromkeys(traces.SKIPS, 0.2125), traces.SKIP_POOR: 0.15})
        assert tokens.decode([int(short[ends[text]].argmax())]) == " no\n"
    assert targets.sum(1).tolist() == pytest.approx([1.0] * len(targets))


def test_a_choice_has_information_only_where_it_depends_on_the_kind():
    same = np.array([[[5.0, 15.0], [8.0, 0.0]], [[10.0, 30.0], [4.0, 0.0]]])
    assert judging.information(same) == pytest.approx(0)
    assert judging.information(np.array([[[8.0, 0.0]], [[0.0, 8.0]]])) == pytest.approx(1)
    chances = judging.skipping_poor([way == 2 for way in range(99)], 1.0)
    assert chances[[0, 1, 2]].argmax(1).tolist() == [1, 0, 7]
    assert chances[-1].tolist() == [0.25] * 4 + [0.0] * 4
    assert list(judging.skips("\n9 5 2 1\n2. x no\n5. y no, skip poor\n99. z no\n1. w yes", 99)) == [
        (-1, 1),
        (1, 2),
        (98, 0),
    ]


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

    for size, options, model, word in (
        ("5", PretrainOptions(), str(tmp_path / "model"), "no plan for 5 numbers"),
        ("3", SHORT, "", "puzzles of 4 numbers"),
    ):
        puzzles = tmp_path / size
        assert CliRunner().invoke(app, ["gen-data", "--n", "300", "--size", size, "--out", str(puzzles)]).exit_code == 0
        with pytest.raises(InputError, match=word):
            pretrain.make(options, data=puzzles, model=model, out=tmp_path / "other")
        assert not (tmp_path / "other").exists()

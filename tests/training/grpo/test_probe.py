"""`train --probe`: shares of sampled groups, and what follows from them."""

import json
from pathlib import Path

import pytest

from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks import jsonl
from countdown_rl.training.grpo.engines import PolicyEngine
from countdown_rl.training.grpo.round import Graded
from countdown_rl.training.grpo.trainer import Trainer
from tests.support import tiny_llama
from tests.support.command import status

ROWS = [
    {"id": f"{n}-{size}", "nums": [n, 2, 3, 7][:size], "target": n + (5 if size == 3 else 12)}
    for n in range(10, 18)
    for size in (3, 4)
]


@pytest.fixture
def probe(here, monkeypatch, capsys):
    """`countdown-rl train --probe` on a random model, with some more words: stdout. Nothing is written."""
    tiny_llama.checkpoint(here / "model", max_position_embeddings=1024)
    jsonl.write_rows(here / "rows.jsonl", ROWS)
    small = "--data rows.jsonl --model model --num-generations 4 --max-completion-length 6"

    def run(groups, *words):
        given = [*small.split(), "--probe", groups, *words, "--json"]
        assert status(monkeypatch, "train", *given) == 0
        assert not [path for path in Path("artifacts").rglob("*") if path.is_file()]
        return json.loads(capsys.readouterr().out)

    return run


def solving(*right):
    """Rounds whose completions are right or wrong in turn for 3 numbers, and wrong for 4."""

    def grade(self, sampled):
        row = self.rows[sampled.index]
        solving.count += 1
        good = len(row["nums"]) == 3 and right[solving.count % len(right)]
        text = f"</think>\n<answer>{' + '.join(map(str, row['nums'])) if good else 1}</answer>"
        return Graded(sampled, Sample.of(row, Completion(text, 5, True)))

    solving.count = 0
    return grade


def test_kinds_without_mixed_groups_are_named_with_what_to_do(probe, monkeypatch):
    monkeypatch.setattr(Trainer, "grade", solving(True, False))
    told = probe(16)
    total = told["total"]
    assert (told["verdict"], total["mixed"], total["solved"]) == ("ready", 0.5, 0.25)
    kinds = {name: (kind["groups"], kind["mixed"]) for name, kind in told["kinds"].items()}
    assert kinds == {"3 numbers": (8, 1.0), "4 numbers": (8, 0.0)}
    assert "4 numbers: 0%" in told["advice"]
    equal = probe(16, "--reward", "length:9=1")  # whatever is correct
    assert (equal["verdict"], equal["total"]["solved"]) == ("no signal", 0.25)


def test_a_start_is_not_ready_where_the_format_alone_varies(probe, monkeypatch):
    def grade(self, sampled):
        grade.count += 1
        text = "</think>\n<answer>1</answer>" if grade.count % 2 else "1"
        return Graded(sampled, Sample.of(self.rows[sampled.index], Completion(text, 5, True)))

    grade.count = 0
    monkeypatch.setattr(Trainer, "grade", grade)
    told = probe(8)
    assert (told["total"]["mixed"], told["verdict"]) == (1, "thin")
    assert "countdown-rl sft" in told["advice"]


@pytest.mark.parametrize(("right", "advice"), [(False, "countdown-rl sft"), (True, "harder data")])
def test_a_start_without_mixed_groups_has_no_signal(probe, monkeypatch, right, advice):
    monkeypatch.setattr(Trainer, "grade", solving(right))
    jsonl.write_rows("rows.jsonl", [row for row in ROWS if len(row["nums"]) == 3])
    told = probe(8)
    assert told["verdict"] == "no signal"
    assert advice in told["advice"]


def test_groups_are_sampled_with_the_options_of_the_run(probe, monkeypatch):
    calls, complete = [], PolicyEngine.__call__

    def recorded(self, trainer, prompt_ids, temperature):
        calls.append((len(prompt_ids), temperature, trainer.args.top_p))
        return complete(self, trainer, prompt_ids, temperature)

    monkeypatch.setattr(PolicyEngine, "__call__", recorded)
    words = ["--prompts", "2", "--temperature", "0.7", "--trl", "top_p=0.9", "--seed", "5"]
    told = probe(3, *words)
    assert calls == [(8, 0.7, 0.9), (4, 0.7, 0.9)]
    assert "raise --max-completion-length" in told["advice"]
    assert probe(3, *words) == told

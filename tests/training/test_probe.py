"""`train --probe`: shares of sampled groups, and what follows from them."""

import json
import re

import pytest

from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import jsonl
from countdown_rl.training.probe import Shares
from tests.support import tiny_llama
from tests.support.command import status

ROWS = [
    {"id": f"{n}-{size}", "nums": [n, 2, 3, 7][:size], "target": n + (5 if size == 3 else 12)}
    for n in range(10, 18)
    for size in (3, 4)
]


@pytest.fixture
def probe(tmp_path, monkeypatch, capsys):
    """`countdown-rl train --probe` on a random model, with some more words: stdout. Nothing is written."""
    tiny_llama.checkpoint(tmp_path / "model", max_position_embeddings=1024)
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    small = ["--data", "rows.jsonl", "--num-generations", 4, "--max-completion-length", 6, "--threads", 1]

    def run(*words):
        assert status(monkeypatch, "train", "--model", "model", *small, *words) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "rows.jsonl"]
        return capsys.readouterr().out

    return run


def solving(*right):
    """A model whose completions of a group are right or wrong in turn for 3 numbers, and all wrong for 4."""

    def complete(self, prompts, number=0):
        texts = []
        for index, ids in enumerate(prompts):
            (numbers,) = re.findall(r"\d+(?: \d+)+|\d+(?:, \d+)+", self.tokenizer.decode(ids))[-1:]
            nums = re.findall(r"\d+", numbers)
            good = len(nums) == 3 and right[index % len(right)]
            texts.append(f"</think>\n<answer>{' + '.join(nums) if good else 1}</answer>")
        return [Completion(text, 5, True) for text in texts]

    return complete


def test_kinds_without_mixed_groups_are_named_with_what_to_do(probe, monkeypatch):
    monkeypatch.setattr(generate.Generator, "complete", solving(True, False))
    told = json.loads(probe("--probe", 16, "--json"))
    assert (told["verdict"], told["total"]["groups"], told["total"]["mixed"], told["total"]["solved"]) == (
        ("ready", 16, 0.5, 0.25)
    )
    assert {name: (kind["groups"], kind["mixed"]) for name, kind in told["kinds"].items()} == {
        "3 numbers": (8, 1.0),
        "4 numbers": (8, 0.0),
    }
    assert "4 numbers: 0% are mixed" in told["advice"]
    assert "gen-data --size 3" in told["advice"]
    assert "verdict: ready" in probe("--probe", 16)


@pytest.mark.parametrize(
    ("right", "words"), [((False,), ["0.0% are solved", "countdown-rl sft"]), ((True,), ["100% are solved already"])]
)
def test_a_start_without_mixed_groups_has_no_signal(probe, monkeypatch, right, words):
    monkeypatch.setattr(generate.Generator, "complete", solving(*right))
    jsonl.write_rows("rows.jsonl", [row for row in ROWS if len(row["nums"]) == 3])
    told = json.loads(probe("--probe", 8, "--json"))
    assert told["verdict"] == "no signal"
    assert all(word in told["advice"] for word in words)


def test_groups_are_sampled_with_the_options_of_the_run(probe, monkeypatch):
    decodings, sizes, complete = [], [], generate.Generator.complete

    def recorded(self, prompts, number=0):
        decodings.append(self._decoding)
        sizes.append(len(prompts))
        return complete(self, prompts, number)

    monkeypatch.setattr(generate.Generator, "complete", recorded)
    words = ("--probe", 3, "--temperature", 0.7, "--trl", "top_p=0.9", "--seed", 5, "--json")
    told = json.loads(probe(*words))
    assert sum(sizes) == 12
    assert set(decodings) == {generate.Decoding(6, temperature=0.7, top_p=0.9, seed=5)}
    assert told["total"]["truncated"] > 0.5
    assert "raise --max-completion-length" in told["advice"]
    assert json.loads(probe(*words)) == told


def test_the_verdict_is_by_published_shares():
    verdicts = {mixed: Shares(100, mixed, (0, 1), 0.1, 1, 0).verdict for mixed in (0.0, 0.02, 0.05, 0.15, 0.28)}
    assert list(verdicts.values()) == ["no signal", "no signal", "thin", "ready", "ready"]

"""One puzzle put to a model: the pieces are the whole, the grade is an evaluation's, the solver stands beside it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from countdown_rl.cli import main
from countdown_rl.errors import (
    InputError,
    ModelError,
    UsageError,
)
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import ask, cpu_decoder, generate
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.generate import Completion
from countdown_rl.models import (
    chat_template,
    load,
    reference,
)
from countdown_rl.tasks.explain import (
    REASONS,
    verdict,
)
from countdown_rl.tasks.task import parse_row
from tests.support import tiny_llama

SHORT = AskOptions(max_new_tokens=40)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("ask")
    tiny_llama.checkpoint(path / "model", tie_word_embeddings=False, initializer_range=0.2)
    return path


@pytest.fixture(scope="module")
def loaded(place):
    return load.load(reference.resolve(str(place / "model")))


@pytest.fixture
def saying(monkeypatch):
    """Makes every model write a given text."""

    def as_said(text, ended=True):
        def complete(self, prompts, number=0, *, on_token=None):
            return [Completion(text, 7, ended)]

        monkeypatch.setattr(generate.Generator, "complete", complete)

    return as_said


def command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["countdown-rl", "ask", *words])
    with pytest.raises(SystemExit) as done:
        main.main()
    return done.value.code or 0


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_pieces_come_one_by_one_and_are_the_completion(loaded, monkeypatch, fast, temperature):
    if not fast:
        monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)
    options, pieces = replace(SHORT, temperature=temperature), []
    reply = ask.ask(loaded, ask.puzzle_row(options, [3, 7, 50], 46), options, pieces.append)
    assert "".join(pieces) == reply.completion.text
    assert 1 < len(pieces) <= reply.completion.tokens


def test_a_character_of_several_tokens_is_told_when_it_is_whole():
    tokenizer, pieces = tiny_llama.tokenizer(), []
    text = "7 × 3 → 21 🧮."
    told = ask._TextStream(tokenizer, pieces.append)
    for token in tokenizer.encode(text, add_special_tokens=False):
        told.add(token)
    assert "".join(pieces) == text
    assert "🧮" in pieces
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_cut_off_character_is_told_at_the_end():
    tokenizer, pieces = tiny_llama.tokenizer(), []
    told = ask._TextStream(tokenizer, pieces.append)
    ids = tokenizer.encode("9🧮", add_special_tokens=False)[:-1]
    for token in ids:
        told.add(token)
    assert pieces == ["9"]
    told.write(tokenizer.decode(ids))
    assert "".join(pieces) == tokenizer.decode(ids)


def test_it_says_what_an_evaluation_says(place, loaded):
    (place / "one.jsonl").write_text(json.dumps({"nums": [3, 7, 50], "target": 46}) + "\n")
    options = EvalOptions(max_new_tokens=40)
    whole = evaluate.evaluate(
        options, model=str(place / "model"), data=place / "one.jsonl", out=place / "eval"
    ).samples[0]
    assert ask.ask(loaded, ask.puzzle_row(SHORT, [3, 7, 50], 46), SHORT).sample() == whole


def test_a_model_without_room_for_the_puzzle_is_refused_and_one_with_little_is_cut(place, loaded, monkeypatch):
    row = ask.puzzle_row(SHORT, [3, 7], 10)
    monkeypatch.setattr(generate, "context_length", lambda loaded: 12)
    with pytest.raises(ModelError, match="the model reads 12 tokens"):
        ask.ask(loaded, row, SHORT)
    monkeypatch.undo()
    length = len(loaded.tokenizer(chat_template.render(loaded.tokenizer, parse_row(row).messages()))["input_ids"])
    monkeypatch.setattr(generate, "context_length", lambda loaded: length + 5)
    assert ask.ask(loaded, row, SHORT).completion.tokens <= 5


def test_a_row_says_only_what_is_unusual():
    assert ask.puzzle_row(AskOptions(), [3, 4], 7) == {"nums": [3, 4], "target": 7}
    unusual = AskOptions(rule="television", operators="* +", style="own")
    assert ask.puzzle_row(unusual, [3, 4], 7) == {
        "nums": [3, 4],
        "target": 7,
        "rule": "television",
        "operators": "+*",
        "style": "own",
    }
    with pytest.raises(InputError, match="not 7"):
        ask.puzzle_row(AskOptions(), [1] * 7, 7)
    with pytest.raises(UsageError, match="--rule chess"):
        AskOptions(rule="chess")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" a</think>\n<answer>50 - 7 + 3</answer>", "✓ correct: 50 - 7 + 3 = 46"),
        (" a</think>\n<answer>50 - 7 + 3 = 46</answer>", "✓ correct: 50 - 7 + 3 = 46"),
        (" a</think>\n<answer>50 + 7 - 3</answer>", "✗ wrong: 50 + 7 - 3 = 54, not 46"),
        (" a</think>\n<answer>50 - 4</answer>", "✗ wrong: 50 - 4: a number that is not in the puzzle"),
        (" a</think>\n<answer>50 - - 4</answer>", "✗ wrong: 50 - - 4: a sign with no number before it"),
        (" a</think>\n<answer>impossible</answer>", "✗ wrong: the answer is impossible, but there is a solution"),
        (" a", "✗ wrong: no complete <answer> after the thinking"),
    ],
)
def test_the_grade_is_told_in_words_beside_the_solver_s_answer(place, monkeypatch, capsys, saying, text, says):
    saying(text)
    assert command(monkeypatch, "3", "7", "50", "--target", "46", "--model", str(place / "model")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 7 50 → 46")
    assert lines[1] == "<think> a" + ("</think>" if "</think>" in text else "")
    assert says in lines
    assert "solver: 50 + 3 - 7 = 46 (1 distinct solution)" in lines


def test_what_has_no_way_and_what_ran_out_is_said(place, monkeypatch, capsys, saying):
    saying("</think>\n<answer>impossible</answer>")
    assert command(monkeypatch, "2", "2", "--target", "1000", "--model", str(place / "model")) == 0
    out = capsys.readouterr().out
    assert "✓ correct: there is no way, and that is proved" in out
    assert "solver: there is no solution; every expression was tried" in out
    saying("hm", ended=False)
    assert command(monkeypatch, "2", "2", "--target", "4", "--model", str(place / "model")) == 0
    assert "✗ wrong: no answer: it ran out of tokens" in capsys.readouterr().out


def test_every_reason_has_words():
    for reason in REASONS:
        sample = {"target": 5, "answer": "1 + 1", "value": "2", "reason": reason, "correct": False, "truncated": False}
        assert verdict(sample).endswith("1 + 1 = 2, not 5" if reason == "wrong-value" else REASONS[reason])


def test_nothing_a_model_writes_reaches_the_terminal_as_an_order(place, monkeypatch, capsys, saying):
    saying("\x1b[2J[red]x[/red]</think>\n<answer>\x1b]0;t\x07[b]</answer>")
    assert command(monkeypatch, "3", "4", "--target", "7", "--model", str(place / "model")) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]x[/red]" in out


def test_one_json_object_and_nothing_else(place, monkeypatch, capsys, saying):
    text = " a</think>\n<answer>3 + 4</answer>"
    saying(text)
    assert command(monkeypatch, "3", "4", "--target", "7", "--model", str(place / "model"), "--json") == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert json.loads(said) == {
        "nums": [3, 4],
        "target": 7,
        "completion": text,
        "format": True,
        "strict_format": True,
        "correct": True,
        "answer": "3 + 4",
        "value": "7",
        "reason": "",
        "trailing": False,
        "tokens": 7,
        "truncated": False,
        "model": {"source": str(place / "model"), "kind": "directory"},
        "solver": {"solutions": 1, "solution": "4 + 3", "needs": "add-sub"},
    }


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["3", "4", "--target", "7", "--model", "artifacts/quantized"], 1, "`countdown-rl quantize` makes it"),
        (["3", "4", "--target", "7", "--model", "no-such-model"], 1, "not a known model"),
        (["3", "4", "--target", "7", "--revision", "main"], 2, "--revision is for models on the Hub"),
        (["3", "4", "--target", "7", "--operators", "-"], 2, "`-` goes with `+`"),
        (["1", "2", "3", "4", "5", "6", "7", "--target", "7"], 2, "1 to 6 numbers, not 7"),
        (["3", "0", "--target", "7"], 2, "numbers"),
        (["3", "4"], 2, "--target"),
        (["--target", "7"], 2, "numbers"),
    ],
)
def test_bad_input_is_one_sentence(monkeypatch, tmp_path, capsys, words, status, says):
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *words) == status
    said = capsys.readouterr()
    assert says in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert not said.out
    assert not list(Path().iterdir())


def test_the_shipped_model_answers_by_default(monkeypatch, capsys):
    assert command(monkeypatch, "3", "7", "50", "--target", "46", "--json", "--max-new-tokens", "64") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["model"] == {"source": "countdown-tiny", "kind": "shipped"}
    assert 0 < said["tokens"] <= 64

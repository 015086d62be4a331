"""``ask``: streaming, agreement with an evaluation, and the printed verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import cpu_decoder, generate
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.engine import Completion
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks.countdown.task import puzzle_row
from countdown_rl.tasks.registry import parse_row
from tests.support import tiny_llama
from tests.support.command import status

SHORT = AskOptions(max_new_tokens=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ask")
    tiny_llama.checkpoint(path / "model", tie_word_embeddings=False, initializer_range=0.2)
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    return load.load_model(reference.find_model(str(folder / "model")))


@pytest.fixture
def complete_with(monkeypatch):
    """Let every model complete with the same text."""

    def set_completion(text):
        monkeypatch.setattr(
            generate.Generator, "complete", lambda *_, **__: [Completion(text, 7, True)]
        )

    return set_completion


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_streamed_in_pieces_that_join_to_the_completion(
    loaded, monkeypatch, fast, temperature
):
    if not fast:
        monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)
    options, pieces = replace(SHORT, temperature=temperature), []
    completion = generate.ask(loaded, puzzle_row([3, 7, 50], 46), options, pieces.append)
    assert "".join(pieces) == completion.text
    assert 1 < len(pieces) <= completion.tokens


@pytest.mark.parametrize("cut", [0, 1])
def test_a_character_of_several_tokens_is_streamed_when_complete_or_at_the_end(
    loaded, monkeypatch, cut
):
    ids = loaded.tokenizer.encode("7 × 3 → 21 🧮", add_special_tokens=False)
    ids = ids[: len(ids) - cut]

    def complete(self, prompts, number=0):
        for end in range(len(ids)):
            self.on_step(ids[: end + 1])
        return [Completion(loaded.tokenizer.decode(ids), len(ids), True)]

    monkeypatch.setattr(generate.Generator, "complete", complete)
    pieces = []
    completion = generate.ask(loaded, puzzle_row([3, 7], 10), SHORT, pieces.append)
    assert "".join(pieces) == completion.text
    assert not any("\ufffd" in piece for piece in pieces[:-1])
    assert pieces[-1] == ("\ufffd" if cut else "🧮")


def test_a_reply_equals_the_sample_of_an_evaluation(folder, loaded):
    (folder / "puzzle.jsonl").write_text(json.dumps({"nums": [3, 7, 50], "target": 46}) + "\n")
    paths = {
        "model": str(folder / "model"),
        "data": folder / "puzzle.jsonl",
        "out": folder / "eval",
    }
    (sample,) = evaluate.evaluate(EvalOptions(max_new_tokens=40), **paths).samples
    completion = generate.ask(loaded, puzzle_row([3, 7, 50], 46), SHORT)
    assert (completion.text, completion.tokens) == (sample.completion, sample.tokens)


def test_a_prompt_longer_than_the_context_is_refused_and_the_rest_limits_the_completion(
    folder, loaded, monkeypatch
):
    row = puzzle_row([3, 7], 10)
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", 12)
    with pytest.raises(ModelError, match="the model reads 12 tokens"):
        generate.ask(loaded, row, SHORT)
    monkeypatch.undo()
    length = len(
        loaded.tokenizer(chat_template.render(loaded.tokenizer, parse_row(row).messages()))[
            "input_ids"
        ]
    )
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", length + 5)
    assert generate.ask(loaded, row, SHORT).tokens <= 5


def test_a_row_holds_only_settings_that_are_not_the_default():
    assert puzzle_row([3, 4], 7) == {"nums": [3, 4], "target": 7}
    unusual = {"rule": "television", "operators": "* +", "style": "model_opens"}
    assert puzzle_row([3, 4], 7, unusual) == {"nums": [3, 4], "target": 7} | unusual | {
        "operators": "+*"
    }
    with pytest.raises(InputError, match="not 7"):
        puzzle_row([1] * 7, 7)
    with pytest.raises(InputError, match="no rule 'chess'"):
        puzzle_row([3, 4], 7, {"rule": "chess"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" a</think>\n<answer>50 - 7 + 3</answer>", "✓ correct: 50 - 7 + 3 = 46"),
        (" a</think>\n<answer>50 + 7 - 3</answer>", "✗ incorrect: 50 + 7 - 3 = 54, not 46"),
        (" a", "✗ incorrect: no complete answer block after the thinking"),
    ],
)
def test_the_grade_is_printed_in_words_beside_the_solvers_solution(
    folder, run_command, complete_with, text, message
):
    complete_with(text)
    lines = run_command(
        "ask", "3", "7", "50", "--target", "46", "--model", str(folder / "model")
    ).out.splitlines()
    assert lines[0].startswith("3 7 50 → 46")
    assert lines[1] == "<think> a" + ("</think>" if "</think>" in text else "")
    assert message in lines
    assert "solver: 50 + 3 - 7 = 46 (1 distinct solution)" in lines


def test_control_sequences_of_a_completion_do_not_reach_the_terminal(
    folder, run_command, complete_with
):
    complete_with("\x1b[2J[red]x[/red]</think>\n<answer>\x1b]0;t\x07[b]</answer>")
    out = run_command("ask", "3", "4", "--target", "7", "--model", str(folder / "model")).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]x[/red]" in out


def test_json_output_is_one_object(folder, run_command, complete_with):
    text = " a</think>\n<answer>3 + 4</answer>"
    complete_with(text)
    output = run_command(
        "ask", "3", "4", "--target", "7", "--model", str(folder / "model"), "--json"
    ).out
    assert output.count("\n") == 1
    values = {
        "nums": [3, 4],
        "target": 7,
        "completion": text,
        "correct": True,
        "value": "7",
        "truncated": False,
    }
    values |= {"model": {"source": str(folder / "model"), "kind": "directory"}}
    values |= {"solver": {"solutions": 1, "solution": "4 + 3", "needs": "add-sub"}}
    printed = json.loads(output)
    assert printed == printed | values


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["3", "4", "--target", "7", "--model", "no-such-model"], 1, "not a known model"),
        (["1", "2", "3", "4", "5", "6", "7", "--target", "7"], 2, "1 to 6 numbers, not 7"),
        (["3", "4"], 2, "--target"),
    ],
)
def test_bad_input_gives_one_sentence(here, monkeypatch, capsys, arguments, code, message):
    assert status(monkeypatch, "ask", *arguments) == code
    output = capsys.readouterr()
    assert message in " ".join(output.err.split())
    assert "Traceback" not in output.err
    assert not output.out
    assert not list(Path().iterdir())

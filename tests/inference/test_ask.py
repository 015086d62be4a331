"""``ask``: streaming, agreement with an evaluation, and the printed verdict."""

import json
from dataclasses import replace

import pytest

from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import cpu_decoder, generate
from countdown_rl.inference.config import AskOptions
from countdown_rl.inference.engine import Completion
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks.countdown.task import puzzle_row
from tests.support import tiny_llama

SHORT = AskOptions(max_new_tokens=40)
ROW = puzzle_row([3, 7, 50], 46)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("ask") / "model"
    return tiny_llama.checkpoint(path, tie_word_embeddings=False, initializer_range=0.2)


@pytest.fixture(scope="module")
def loaded(model):
    return load.load_model(reference.find_model(str(model)))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_streamed_in_pieces_that_join_to_the_completion(
    loaded, monkeypatch, fast, temperature
):
    if not fast:
        monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)
    pieces = []
    completion = generate.ask(loaded, ROW, replace(SHORT, temperature=temperature), pieces.append)
    assert "".join(pieces) == completion.text
    assert 1 < len(pieces) <= completion.tokens


@pytest.mark.parametrize("cut", [0, 1])
def test_a_character_of_several_tokens_is_streamed_when_complete_or_at_the_end(
    loaded, monkeypatch, cut
):
    ids = loaded.tokenizer.encode("7 × 3 → 21 🧮", add_special_tokens=False)
    ids = ids[: len(ids) - cut]

    def complete(self, prompts):
        for end in range(len(ids)):
            self.on_step(ids[: end + 1])
        return [Completion(loaded.tokenizer.decode(ids), len(ids), True)]

    monkeypatch.setattr(generate.Generator, "complete", complete)
    pieces = []
    completion = generate.ask(loaded, ROW, SHORT, pieces.append)
    assert "".join(pieces) == completion.text
    assert not any("\ufffd" in piece for piece in pieces[:-1])
    assert pieces[-1] == ("\ufffd" if cut else "🧮")


def test_a_reply_equals_the_sample_of_an_evaluation(model, loaded, tmp_path):
    data = tmp_path / "puzzle.jsonl"
    data.write_text(json.dumps({"nums": [3, 7, 50], "target": 46}))
    options = EvalOptions(max_new_tokens=40)
    result = evaluate.evaluate(options, model=str(model), data=data, out=tmp_path / "eval")
    completion = generate.ask(loaded, ROW, SHORT)
    assert completion.text == result.samples[0].completion
    assert completion.tokens == result.samples[0].tokens


def test_a_prompt_longer_than_the_context_is_refused_and_the_rest_limits_the_completion(
    loaded, monkeypatch
):
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", 12)
    with pytest.raises(ModelError, match="the model reads 12 tokens"):
        generate.ask(loaded, ROW, SHORT)
    (prompt,) = chat_template.encode(loaded.tokenizer, [ROW.messages()])
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", len(prompt) + 5)
    assert generate.ask(loaded, ROW, SHORT).tokens <= 5


def test_a_row_holds_only_settings_that_are_not_the_default():
    assert ROW == {"nums": [3, 7, 50], "target": 46}
    unusual = {"rule": "television", "operators": "+*", "style": "model_opens"}
    assert puzzle_row([3, 4], 7, unusual) == {"nums": [3, 4], "target": 7} | unusual
    with pytest.raises(InputError, match="no rule 'chess'"):
        puzzle_row([3, 4], 7, {"rule": "chess"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" a</think>\n<answer>50 - 7 + 3</answer>", "✓ correct: 50 - 7 + 3 = 46"),
        (" a</think>\n<answer>50 + 7 - 3</answer>", "✗ incorrect: 50 + 7 - 3 = 54, not 46"),
        (" [b]\x1b[2J", "✗ incorrect: no complete answer block after the thinking"),
    ],
)
def test_the_grade_is_printed_beside_the_solvers_solution(
    model, run_command, monkeypatch, text, message
):
    completions = [Completion(text, 7, True)]
    monkeypatch.setattr(generate.Generator, "complete", lambda *_: completions)
    command = ("ask", "3", "7", "50", "--target", "46", "--model", model)
    printed = run_command(*command).out
    lines = printed.splitlines()
    assert lines[0].startswith("3 7 50 → 46")
    assert lines[1].startswith("<think> a") or "[b]" in lines[1]
    assert message in lines
    assert "solver: 50 + 3 - 7 = 46 (1 distinct solution)" in lines
    assert "\x1b" not in printed

    output = run_command(*command, "--json").out
    assert output.count("\n") == 1
    values = json.loads(output)
    assert values["completion"] == text
    assert values["correct"] == ("✓" in message)
    assert values["solver"] == {"solutions": 1, "solution": "50 + 3 - 7", "needs": "add-sub"}


def test_too_many_numbers_are_wrong_usage(run_command):
    printed = run_command("ask", *range(1, 8), "--target", 7, code=2)
    assert "1 to 6 numbers, not 7" in printed.err
    assert not printed.out

"""More than 25 architectures through sft, eval, merge and train, against plain transformers."""

from pathlib import Path

import pytest
import torch

from countdown_rl.core.errors import ModelError
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models import chat_template
from countdown_rl.models.load import load_model
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade
from countdown_rl.training.grpo import rewards
from countdown_rl.training.grpo import run as grpo
from countdown_rl.training.options import RunArguments, SftArguments, SftOptions, TrainOptions
from countdown_rl.training.run import Result, train
from countdown_rl.training.sft import demonstrations, tokens
from countdown_rl.training.sft import run as supervised
from tests.support import architectures
from tests.support.runs import SPLITS, write_data

ROWS = [{"nums": [n + 2, 3, 5], "target": n + 10, "style": "model_opens"} for n in range(4)]
ANSWER = "<think>\n</think>\n<answer>{} + 3 + 5</answer>"
DEMONSTRATIONS = [row | {"completion": ANSWER.format(row["nums"][0])} for row in ROWS]
SHORT = {"max_steps": 2, "learning_rate": 1e-2, "lora_r": 4, "precision": "fp32"}

#: PEFT does not adapt them.
REFUSED = ("falcon_h1", "mamba", "mamba2")


@pytest.fixture(params=[name for name in architectures.SETTINGS if name not in REFUSED])
def model(request, here) -> str:
    architectures.checkpoint(Path("base"), request.param)
    return "base"


def fine_tuned(model: str) -> Result:
    jsonl.write_rows(Path("demos.jsonl"), DEMONSTRATIONS)
    options = SftOptions(batch_size=4, micro_batch=2, trl=("warmup_steps=0",), **SHORT)
    run = SftArguments(model=model, files=(Path("demos.jsonl"),), out=Path("tuned"))
    return train(supervised.prepare(run, options))


def loss_by_hand(model: str) -> float:
    """The mean negative log-likelihood of the tokens of all completions, one at a time."""
    loaded = load_model(find_model(model), precision="fp32")
    known, _ = demonstrations.read(SftOptions(), [Path("demos.jsonl")], None, None)
    total, count = 0.0, 0
    for example in tokens.tokenize(known.filtered, loaded.tokenizer):
        ids, labels = torch.tensor(example["input_ids"]), torch.tensor(example["labels"])
        with torch.inference_mode():
            scores = loaded.model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        learned = labels[1:] != -100
        total -= scores.gather(1, ids[1:, None])[learned].sum().item()
        count += int(learned.sum())
    return total / count


def plainly(loaded, prompt: list[int], tokens: int) -> list[int]:
    """The most likely continuation, by forward passes without a cache."""
    stop = Generator(loaded, Decoding(1)).stop
    ids: list[int] = []
    while len(ids) < tokens and not (ids and stop(ids)):
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([prompt + ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids


@pytest.mark.slow
def test_an_architecture_is_tuned_evaluated_and_merged_as_plain_transformers_does(model):
    result = fine_tuned(model)
    assert result.rows[0].loss == pytest.approx(loss_by_hand(model), rel=1e-3)
    adapted = load_model(find_model("tuned"), precision="fp32")
    some = chat_template.encode(adapted.tokenizer, [parse_row(row).messages() for row in ROWS[:2]])
    expected = [plainly(adapted, prompt, 6) for prompt in some]
    completions = Generator(adapted, Decoding(6)).complete(some)
    assert [each.tokens for each in completions] == [len(ids) for ids in expected]
    decoded = [adapted.tokenizer.decode(ids, skip_special_tokens=True) for ids in expected]
    assert [each.text for each in completions] == decoded

    merge_adapter(find_model("tuned"), Path("merged"), MergeOptions(dtype="fp32"))
    merged = load_model(find_model("merged"), precision="fp32")
    ids = torch.tensor([some[0]])
    with torch.inference_mode():
        torch.testing.assert_close(
            merged.model(ids).logits, adapted.model(ids).logits, rtol=1e-3, atol=1e-3
        )


def grade(row, completion):
    right = len(completion) % 2 == 0
    return Grade(True, True, right, completion, None, "" if right else "wrong-value", False)


@pytest.mark.slow
def test_an_architecture_is_trained_by_grpo(model, monkeypatch):
    monkeypatch.setattr(CountdownRow, "grade", grade)

    def reward(grade, row, tokens):
        return sum(map(ord, grade.answer)) % 7 / 7

    monkeypatch.setattr(rewards, "reward", lambda name: reward)
    write_data(Path("data"), dict.fromkeys(SPLITS, ROWS))
    group = {"prompts": 1, "num_generations": 4, "micro_batch": 4}
    options = TrainOptions(**group, **SHORT, max_completion_length=6)
    run = RunArguments(model=model, data=Path("data"), out=Path("adapter"))
    result = train(grpo.prepare(run, options))
    assert len(result.rows) == 2
    assert all(row.grad_norm > 0 for row in result.rows)


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_takes_no_adapter_is_refused_before_its_weights_are_loaded(name, here):
    architectures.checkpoint(Path("base"), name)
    with pytest.raises(ModelError, match="LoRA"):
        fine_tuned("base")

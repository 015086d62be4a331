"""Reward functions, and the reward schemes of four published systems."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from countdown_rl.core.errors import UsageError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import rewards
from countdown_rl.training.grpo.round import Graded, Sampled
from countdown_rl.training.grpo.trainer import Trainer

ROW = {"nums": [19, 36, 55, 7], "target": 65}
GSM8K = {"task": "gsm8k", "question": "?", "gold": "72"}


def total(specs, completion, row, n_tokens=50):
    row = parse_row(row)
    grade = row.grade(completion)
    return sum(
        weight * rewards.reward(name)(grade, row, n_tokens)
        for name, weight in rewards.parse(specs).items()
    )


#: The reward schemes of four published systems, a row of each, and by completion its reward.
SYSTEMS = [
    (["format=1", "correct=1"], ROW, {
        "so\n</think>\n<answer> 55 + 36 - 7 - 19 </answer>": 2,
        "so\n</think>\n<answer>55 + 36 - 7 - 18</answer>": 1,
    }),
    (["strict-format=1", "correct=1"], {"nums": [2, 3, 4], "target": 14, "style": "model_opens"}, {
        "<think>a</think>\n<answer>(4*3)+2</answer>": 2,
        "<think>a</think>.\n<answer>4 * 3 + 2</answer>": 1,
        "<think>a</think>\n<answer>fourteen</answer>": 1,
        "a</think> <answer>fourteen</answer>": 0,
    }),
    (["well-formed=0.1", "correct=0.9"], {"nums": [3, 3, 8, 8], "target": 24}, {
        "<answer>8 / (3 - 8 / 3)</answer>": 1.0,
        "<answer>8 * 3</answer>": 0.1,
        "<answer>eight</answer>": 0.0,
    }),
    (["strict-format/-1=1", "no-trailing=1", "integer=1", "correct=1"], GSM8K, {
        "<thinking>\nx\n</thinking>\n<answer>\n72\n</answer>\n": 3.0,
        "<thinking>x</thinking><answer>72</answer> done": 0.5,
        "<thinking>x</thinking><answer>7.5</answer>": -2.0,
        "72": -2.5,
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("specs", "row", "completion", "expected"),
    [(specs, row, *case) for specs, row, cases in SYSTEMS for case in cases.items()],
)
def test_the_reward_of_a_published_system(specs, row, completion, expected):
    assert total(specs, completion, row) == expected


def test_a_budget_limits_tokens_and_closeness_rewards_legal_expressions_by_distance():
    def closeness(answer, row=ROW):
        return total(["closeness"], f"</think>\n<answer>{answer}</answer>", row)

    assert [total(["length:100=1"], "", ROW, tokens) for tokens in (60, 99, 100)] == [0, 0, -0.5]
    assert closeness("55 + 36 - 7 - 19") == 1
    assert closeness("55 - 36 + 7 + 19") == pytest.approx(1 / 21)
    assert closeness("55 + 36 - 7") == 0  # not legal: a number is left out
    assert closeness("55 + 36 - 7 - 19 = 64") == 0  # a false equation
    assert closeness("71", GSM8K | {"style": "prefilled"}) == 0.5


WRONG = (
    ("corect=1", "did you mean correct"),
    ("correct:1", "did you mean correct"),
    ("correct=1,format=1", "NAME=WEIGHT"),
    ("rewards/own.py:f", "rewards.own:f"),
    ("correct=nan", "finite"),
    ("length:few=1", "finite"),
    ("format/x", "finite"),
    ("no.such:thing=1", "imported"),
    ("=1", "module:function"),
    ("format=0", "weight"),
)


@pytest.mark.parametrize(("spec", "remedy"), WRONG)
def test_weights_are_parsed_and_an_invalid_or_repeated_reward_is_refused(spec, remedy):
    expected = {"correct": 1.0, "format": 0.1, "length:200": -2.0, "integer": 1.0}
    assert rewards.parse(["correct=1", "format=0.1", "length:200=-2", "integer"]) == expected
    with pytest.raises(UsageError, match=remedy):
        rewards.parse([spec])
    with pytest.raises(UsageError, match="twice"):
        rewards.parse(["correct=1", "correct=2"])


def written_for_trl(completions, target, trainer_state, log_metric, log_extra, **columns):
    log_metric("own", 1.0), log_extra("column", [])
    assert len(columns["prompts"]) == len(columns["completion_ids"]) == len(completions)
    return [
        float(str(number) in text) if "answer" in text else None
        for text, number in zip(completions, target, strict=True)
    ]


def by_name(completion, grade, row, tokens, completion_ids, nums, solution_str, known=1, **rest):
    assert row.grade(completion) == grade
    assert (row["nums"], solution_str, tokens) == (nums, completion, len(completion_ids))
    return rest["target"] * known


def of_messages(prompts, completions, target, **columns):
    """As in TRL's documentation."""
    contents = [completion[0]["content"] for completion in completions]
    assert all(prompt[-1]["content"] for prompt in prompts)
    assert contents == completions
    return [float(str(number) in text) for text, number in zip(contents, target, strict=True)]


def shorter(completion_ids, **kwargs):
    """As in TRL's documentation."""
    return [-float(len(ids)) for ids in completion_ids]


def ends(*_):
    raise SystemExit


ROWS = [parse_row(ROW), parse_row(ROW | {"target": 1})]
RETURNED = {"text": "1", "none": None, "nan": float("nan"), "huge": 10**400}
for _name, _value in RETURNED.items():
    globals()[_name] = lambda grade, row, tokens, value=_value: value


def too_few(completions, **columns):
    return [1.0]


def unknown_name(grade, n_tokens):
    return 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "finite number") for name in RETURNED),
        ("too_few", "one number for each"),
        ("unknown_name", "parameter n_tokens, which is none of: .*completions.*target.*tokens"),
        ("ends", "SystemExit"),
    ],
)
def test_a_reward_of_the_wrong_kind_is_refused_before_training(name, says):
    with pytest.raises(UsageError, match=f"{name}.*{says}"):
        rewards.check_rewards([f"{__name__}:{name}"], ROWS[0])


def graded_of(row, text):
    sampled = Sampled(0, "p", [], [1], None)
    return Graded(sampled, Sample.of(row, Completion(text, 1, True)))


def rewarded(graded, *names, logged=None):
    """The rewards *names* of *graded* by name; the metrics of a round are added to *logged*."""
    trainer = SimpleNamespace(
        reward_of={name: rewards.reward(name) for name in names},
        state=SimpleNamespace(global_step=3),
    )
    own = Trainer.reward(trainer, graded)
    if logged is not None:
        logged += own
        for each in graded:
            logged += rewards.metrics(each.sample, each.rewards).items()
    return {name: [each.rewards[name] for each in graded] for name in names}


def spoils_row(grade, row, tokens):
    row["nums"].append(99)
    row._fields["target"] = grade.correct = 0
    return 1.0


def spoils_columns(completions, nums, completion_ids, rows, grades):
    nums[0].append(99), rows[0]["nums"].append(99)
    completion_ids[0].clear()
    grades[0].correct = None
    return np.ones(len(nums))


@pytest.mark.parametrize("name", ["spoils_row", "spoils_columns"])
def test_a_reward_gets_copies(name):
    row = parse_row(ROW)
    graded = [graded_of(row, "</think><answer>65</answer>")]
    stored = json.dumps([dict(row), graded[0].sample.to_json()])
    assert rewarded(graded, f"{__name__}:{name}") == {f"{__name__}:{name}": [1.0]}
    assert (json.dumps([dict(row), graded[0].sample.to_json()]), graded[0].sampled.ids) == (
        stored,
        [1],
    )


def test_a_reward_written_for_trl_runs_unchanged():
    name, logged = f"{__name__}:written_for_trl", []
    rewards.check_rewards([name], ROWS[0])
    graded = [graded_of(ROWS[0], "</think><answer>65</answer>"), graded_of(ROWS[1], "")]
    given = {"correct": [0.0, 0.0], name: [1.0, None]}
    assert rewarded(graded, *given, logged=logged) == given
    names = [name for name, _ in logged]
    assert names.count("metric/own") == 1
    assert {"correct", "correct_numbers_4", "format", "truncated"} <= set(names)


def test_the_hacking_rate_is_the_share_of_wrong_completions_that_a_proxy_pays():
    row, logged = parse_row({"nums": [3, 7, 50], "target": 46}), []
    answers = ("46", "50 - 7 + 3", "9")
    graded = [graded_of(row, f"</think><answer>{answer}</answer>") for answer in answers]
    assert rewarded(graded, "proxy:value", logged=logged) == {"proxy:value": [1.0, 1.0, 0.0]}
    assert [value for name, value in logged if name == "hacking"] == [1.0, 0.0, 0.0]


def test_a_reward_is_called_by_the_names_of_its_parameters():
    known = {
        "correct": [1, 0],
        "closeness": [1, 0],
        "strict-format/-1": [1, 1],
        "format": [1, 1],
        "countdown_rl.rewards:compute_score": [1, 0],  # as verl calls it
        f"{__name__}:by_name": [65, 65],
        f"{__name__}:of_messages": [0, 1],
        f"{__name__}:shorter": [-8, -8],
    }
    assert rewards.check_rewards(known, ROWS[0]) == known


def test_a_module_in_the_working_directory_is_found(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (here / "my_own_reward.py").write_text("def f(grade, row, tokens):\n    return 1\n")
    rewards.check_rewards(["my_own_reward:f"], ROWS[0])

"""Training: gradients equal to TRL's, resumed runs with the same bytes, and errors in one sentence."""

import json
import math
import os
import shutil
import signal
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.utils import send_telemetry
from safetensors.torch import load_file
from trl.trainer import base_trainer

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import (
    ArtifactError,
    CountdownError,
    ModelError,
    UsageError,
)
from countdown_rl.core.manifest import file_sha256, provenance_chain
from countdown_rl.evaluation import training_log
from countdown_rl.inference.engine import Completion
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.probe import initial_model
from countdown_rl.training import run as training
from countdown_rl.training import state, weights
from countdown_rl.training.grpo import callback, engines, trainer
from countdown_rl.training.grpo.run import prepare
from countdown_rl.training.options import RunArguments, TrainOptions
from countdown_rl.training.prepared import SILENT, Reporter
from tests.support import command, constant_model, letters, tiny_llama
from tests.support.runs import (
    SPLITS,
    Killed,
    assert_same,
    files,
    killed,
    killing,
    resumed,
    write_data,
)

LINEAR = "lr_scheduler_type=linear"
REWARD = "tests.support.letters:letter_sum"
SMALL = TrainOptions(
    max_steps=6,
    prompts=2,
    num_generations=4,
    micro_batch=4,
    max_completion_length=12,
    learning_rate=1e-2,
    lora_r=4,
    save_steps=3,
    trl=(LINEAR,),
    reward=(REWARD,),
)
ALL_WEIGHTS = replace(SMALL, tune="all", lora_r=TrainOptions.lora_r)
ROWS = [
    {"id": f"r{n}", "task": "letters", "nums": [n + 2, 3, 5], "target": n + 10} for n in range(16)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a random model and a data artifact."""
    path = tmp_path_factory.mktemp("train")
    tiny_llama.checkpoint(path / "model", max_position_embeddings=1024)
    write_data(path / "data", dict.fromkeys(SPLITS, ROWS))
    return path


@pytest.fixture(autouse=True, scope="module")
def task_of_letters(tmp_path_factory):
    with letters.installed(tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(autouse=True)
def few_validation_puzzles(monkeypatch):
    monkeypatch.setattr("countdown_rl.training.prepared.EVAL_SIZE", 5)


def run(place, where, options=SMALL, reporter=SILENT, overwrite=False, **changes):
    given = {"model": str(place / "model"), "data": place / "data", "log": where / "log.csv"}
    arguments = RunArguments(**given | {"out": where / "adapter"} | changes)
    return training.execute(prepare, arguments, options, reporter, overwrite=overwrite)


WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def fit(place, tmp_path):
    """Train with *options* into a directory of this test."""

    def fitted(options=SMALL, where="", reporter=SILENT, **changes):
        return run(place, tmp_path / where, options, reporter, **changes)

    return fitted


@pytest.fixture(scope="module")
def unbroken(place, tmp_path_factory):
    return run(place, tmp_path_factory.mktemp("unbroken"))


def test_a_run_writes_an_adapter_a_log_and_samples(unbroken):
    out = unbroken.out.parent
    manifest = artifacts.read(unbroken.out, "adapter")
    names = {path.name for path in out.iterdir()}
    assert names == {"adapter", "log.csv", "samples.jsonl", "trained_ids.txt"}
    assert {"adapter_config.json", WEIGHTS, "tokenizer.json"} <= manifest.files.keys()
    assert "training_args.bin" not in manifest.files
    # These decide the bytes.
    assert {"threads", "processes", "cpu_capability"} <= manifest.facts.keys()
    assert chat_template.MARK in (unbroken.out / "chat_template.jinja").read_text()
    rows = training_log.read(out / "log.csv")
    assert rows == unbroken.rows
    assert training_log.is_log_of(out / "log.csv", provenance_chain(manifest.as_input()))
    assert all(row.grad_norm > 0 for row in rows)


def test_an_adapter_is_trained_further_and_the_ids_of_all_puzzles_are_recorded(
    fit, place, unbroken, tmp_path
):
    known = {row.id for row in jsonl.read_rows(place / "data" / "train.jsonl")}
    file = unbroken.out / "trained_ids.txt"
    ids = file.read_text().splitlines()
    assert ids == sorted(known & set(ids))
    assert len(ids) == SMALL.max_steps * SMALL.prompts
    fact = artifacts.read(unbroken.out, "adapter").facts["trained_ids"]
    assert fact == {"file": file.name, "sha256": file_sha256(file), "count": len(ids)}
    assert (unbroken.out.parent / file.name).read_bytes() == file.read_bytes()

    again = replace(SMALL, seed=1, max_steps=1, lora_r=TrainOptions.lora_r)
    more = fit(again, model=str(unbroken.out))
    assert set(ids) <= set((more.out / file.name).read_text().split())
    assert files(more.out)[WEIGHTS] != files(unbroken.out)[WEIGHTS]
    base = reference.find_model(str(more.out)).base
    assert base.digest == reference.find_model(str(place / "model")).digest

    foreign = shutil.copytree(unbroken.out, tmp_path / "of-another-tool")
    for name in (file.name, "manifest.json"):
        (foreign / name).unlink()
    unknown = fit(again, "unknown", model=str(foreign))
    assert not (unknown.out / file.name).exists()
    assert "trained_ids" not in artifacts.read(unknown.out, "adapter").facts


def test_a_resumed_run_ends_with_the_same_bytes(fit, unbroken, tmp_path):
    killed(fit, 5)
    assert not (tmp_path / "adapter").exists()
    (tmp_path / "log.csv").unlink()  # as dvc does before it runs the stage again
    notes = []
    result = fit(reporter=Reporter(note=notes.append))
    assert result.resumed == 3
    assert any("after step 3" in note for note in notes)
    assert_same(result, unbroken)
    assert not (tmp_path / "checkpoints").exists()


ROUNDS = {"trl": ("num_iterations=2",)}


@pytest.mark.parametrize(
    ("changes", "step", "start"),
    [
        (ROUNDS | {"beta": 0.1}, 5, 4),  # the end of a round
        ({"sampler": "curriculum"}, 6, 5),
        ({"tune": "all", "lora_r": 16, "beta": 0.01}, 4, 3),
    ],
)
def test_a_run_of_rounds_a_curriculum_or_all_weights_resumes_exactly(fit, changes, step, start):
    whole, again = resumed(fit, replace(SMALL, save_steps=1, **changes), step)
    assert again.resumed == start
    assert all((row.kl is not None) == ("beta" in changes) for row in whole.rows)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_leaves_stdout_alone_or_is_asked_for(
    fit, unbroken, tmp_path, monkeypatch, capfd, name
):
    options = replace(SMALL, trl=(LINEAR, f"report_to={name}"))
    if find_spec(name) is None:
        with pytest.raises(UsageError, match=name):
            fit(options)
        return
    places = {"TENSORBOARD_LOGGING_DIR": "tensorboard", "TRACKIO_DIR": "trackio", "WANDB_DIR": ""}
    for key, place in places.items():
        monkeypatch.setenv(key, str(tmp_path / place))
    monkeypatch.setenv("WANDB_MODE", "offline")
    fit(options)
    assert capfd.readouterr().out == ""
    assert files(tmp_path / "adapter")[WEIGHTS] == files(unbroken.out)[WEIGHTS]
    assert [path for path in (tmp_path / name).rglob("*") if path.is_file()]


def test_another_unfinished_run_is_not_overwritten(fit, tmp_path):
    killed(fit, 4)
    left = files(tmp_path / "checkpoints" / "checkpoint-3")
    with pytest.raises(ArtifactError, match="--seed was 42, is 1"):
        fit(replace(SMALL, seed=1))
    jsonl.write_rows(tmp_path / "other.jsonl", ROWS[1:])
    with pytest.raises(ArtifactError, match="other data"):
        fit(data=tmp_path / "other.jsonl")
    assert files(tmp_path / "checkpoints" / "checkpoint-3") == left
    shutil.rmtree(tmp_path / "checkpoints")
    assert fit(replace(SMALL, seed=1)).resumed is None


def test_a_resumed_run_does_not_replace_the_artifact_of_another(fit, place, tmp_path):
    killed(fit, 4)
    other = fit(replace(SMALL, seed=1, max_steps=1), log=tmp_path / "other" / "log.csv")
    arguments = RunArguments(
        model=str(place / "model"),
        data=place / "data",
        out=other.out,
        log=tmp_path / "log.csv",
    )
    with pytest.raises(ArtifactError, match="--seed was 1, is 42"):
        training.execute(prepare, arguments, SMALL)
    assert artifacts.read(other.out, "adapter").options["seed"] == 1


def test_training_sends_no_telemetry():
    code = (
        "from countdown_rl.cli.quiet import silence_libraries\n"
        "silence_libraries()\n"
        "import huggingface_hub.utils._telemetry as telemetry\n"
        "telemetry.Thread = telemetry.get_session = None\n"  # it sends from a thread
        "telemetry.send_telemetry('topic', library_name='trl')\n"
    )
    assert base_trainer.send_telemetry is send_telemetry
    command.python(code, os.environ | {"CI": ""})


def test_checkpoints_do_not_ask_the_hub_for_the_base_of_an_adapter(fit, monkeypatch):
    from peft.utils import save_and_load

    asked = []
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", asked.append)
    no_file = SimpleNamespace(exists=lambda path: False, join=os.path.join)  # as of a GGUF file
    monkeypatch.setattr(save_and_load, "os", SimpleNamespace(path=no_file))
    fit(replace(SMALL, max_steps=3, save_steps=1))
    assert asked == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_training_with_a_checkpoint_from_which_it_continues(
    fit, unbroken, tmp_path, number
):
    def stop(row):
        if row.step == 1:
            os.kill(os.getpid(), number)

    with processes.signals_as_exceptions(), pytest.raises(processes.Terminated):
        fit(reporter=Reporter(step=stop))
    assert "continues after step 2" in state.Checkpoints(tmp_path / "checkpoints").how_to_continue()
    fit()
    assert files(tmp_path / "adapter") == files(unbroken.out)


@pytest.fixture
def logging(monkeypatch):
    """Let TRL log *values* at *step*, with *rest* for the callback."""

    def patch(step, values, **rest):
        on_log = callback.GrpoCallback.on_log

        def logged(self, args, state, control, logs, **own):
            if state.global_step == step:
                logs, own = logs | values, own | rest
            on_log(self, args, state, control, logs, **own)

        monkeypatch.setattr(callback.GrpoCallback, "on_log", logged)

    return patch


@pytest.mark.parametrize("name", ["loss", "grad_norm", "reward"])
def test_training_stops_at_a_figure_that_is_not_finite(fit, tmp_path, logging, name):
    logging(4, {name: math.nan})
    with pytest.raises(CountdownError, match=f"step 4: {name} is nan"):
        fit()
    assert "after step 3" in state.Checkpoints(tmp_path / "checkpoints").how_to_continue()
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize(("scale", "stops"), [(2.0, False), (0.5, True)])
def test_a_step_that_fp16_skips_goes_on_until_the_scale_is_below_1(fit, logging, scale, stops):
    scaler = SimpleNamespace(get_scale=lambda: scale)
    skipped = SimpleNamespace(step_was_skipped=True, scaler=scaler)
    logging(2, {"grad_norm": math.inf}, optimizer=skipped)
    with pytest.raises(CountdownError, match="grad_norm is inf") if stops else nullcontext():
        assert fit(replace(SMALL, max_steps=2)).rows[1].grad_norm == 0


def test_a_resumed_run_computes_in_the_threads_of_its_start(fit, tmp_path, monkeypatch):
    options, threads = replace(SMALL, max_steps=2, save_steps=1), []
    for count in (2, 3):  # continued with more processors
        monkeypatch.setattr(processes, "cpu_threads", lambda count=count: count)
        with suppress(Killed):
            fit(options, reporter=killing(2 if count == 2 else 0))
        threads.append(torch.get_num_threads())
    torch.set_num_threads(1)
    assert threads == [2, 2]
    assert artifacts.read(tmp_path / "adapter", "adapter").facts["threads"] == 2


def by_prompt(completions, prompts, nums, target, **columns):
    for prompt, numbers, goal in zip(prompts, nums, target, strict=True):
        assert f"{numbers} {goal}" in prompt  # of the puzzles that were drawn again, too
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]


def test_dynamic_sampling_fills_a_round_with_varied_groups_and_resumes_exactly(fit, monkeypatch):
    # Correctness is equal.
    monkeypatch.setattr(letters.LettersRow, "grade", lambda row, text: row.graded(text, False))
    options = replace(SMALL, **ROUNDS, sampler="dynamic", max_steps=8, save_steps=1)
    whole, again = resumed(fit, replace(options, reward=(f"{__name__}:by_prompt",)), 5)
    assert again.resumed == 4
    rounds = [(row.frac_reward_zero_std == 0, row.draws) for row in whole.rows[::2]]
    assert all(filled or draws >= 2 + trainer.MAX_ATTEMPTS - 1 for filled, draws in rounds)
    assert any(filled and draws > 2 for filled, draws in rounds)


OBSERVED = []


def least_rewarded(rows, size, seed):
    """Sample the rows with the lowest rewards so far."""
    sums = [0.0] * len(rows)
    while True:
        order = sorted(range(len(sums)), key=lambda row: (sums[row], (row * seed) % 17))
        outcomes = yield order[:size]
        OBSERVED.append(outcomes)
        for each in outcomes:
            sums[each.row] += sum(each.rewards) + sum(each.correct) - sum(each.truncated) / 2


def by_token(rewards, completion_mask):
    return (rewards - rewards.mean(1, keepdim=True))[..., None] / completion_mask.cumsum(-1).clamp(
        min=1
    )


def one_sided(logps, old_logps, advantages, mask):
    return -(logps - old_logps).exp().clamp(max=1.2) * advantages


def vowels(grade, row, tokens):
    return sum(grade.answer.count(vowel) for vowel in "aeiou") / (1 + tokens)


def test_a_sampler_advantages_a_loss_and_a_reward_of_the_user_resume_exactly(fit):
    own = {"sampler": "least_rewarded", "advantage": "by_token", "loss_type": "one_sided"}
    own = {name: f"{__name__}:{function}" for name, function in own.items()}
    own |= ROUNDS | {"reward": (f"{__name__}:vowels=1", "correct=0.5"), "max_steps": 10}
    options = replace(SMALL, **own, save_steps=1)
    whole, again = resumed(fit, options, 8)
    assert again.resumed == 6
    assert {"rewards/correct/mean", f"rewards/{__name__}:vowels/std"} <= whole.rows[0].groups.keys()
    for name, default in {"advantage": "group", "loss_type": "dapo"}.items():
        other = fit(replace(options, **{name: default}), name)
        assert files(other.out)[WEIGHTS] != files(whole.out)[WEIGHTS]


def test_samples_hold_all_completions_of_some_steps_with_grades_rewards_and_advantages(
    fit, tmp_path, monkeypatch
):
    monkeypatch.setattr(callback, "SAMPLE_EVERY", 4)
    options = replace(SMALL, reward=(REWARD, "format=0"), discount=0.9, scale_rewards="none")
    row, *_ = fit(options).rows
    samples = training_log.read_samples(tmp_path / "samples.jsonl")
    places = [(step, group) for step in (1, 5, 6) for group in (0, 1) for _ in range(4)]
    assert [(sample.step, sample.group) for sample in samples] == places
    for start in range(0, 24, 4):
        group = samples[start : start + 4]
        assert len({sample.row.id for sample in group}) == 1
        highest = max(group, key=lambda sample: sample.rewards[REWARD])
        assert highest.advantage == max(sample.advantage for sample in group)
        assert max(abs(sample.advantage) for sample in group) < 1  # a mean, not a sum
    assert all(sample.rewards.keys() == {REWARD, "format"} for sample in samples)
    rewards = [sample.rewards[REWARD] for sample in samples[:8]]
    assert row.groups[f"rewards/{REWARD}/mean"] == pytest.approx(sum(rewards) / 8)
    assert row.correct == sum(sample.grade.correct for sample in samples[:8]) / 8
    assert row.groups["correct_numbers_3"] == row.correct


def test_warnings_are_given_once_even_in_a_resumed_run(fit, monkeypatch):
    monkeypatch.setattr(letters.LettersRow, "grade", lambda row, text: row.graded(text, False))
    options = replace(SMALL, max_steps=14, save_steps=11)
    said, again = [], []
    killed(fit, 13, options, warning=said.append)
    result = fit(options, reporter=Reporter(warning=again.append))
    assert (result.resumed, again) == (11, [])
    assert sorted(result.warnings) == ["length", "zero"]
    assert sorted(result.warnings.values()) == sorted(said)
    assert "an odd number of letters" in result.warnings["zero"]


def test_trl_fields_take_effect_and_equal_groups_have_no_gradient(fit):
    (row,) = fit(replace(SMALL, max_steps=1, trl=("top_k=1",))).rows
    assert (row.frac_reward_zero_std, row.entropy, row.grad_norm) == (1.0, None, 0.0)


def test_evaluations_are_logged_drawn_and_change_nothing(fit, unbroken, tmp_path):
    options = replace(SMALL, eval_every=4)
    fit(options)
    rows = training_log.read(tmp_path / "log.csv")
    assert [row.step for row in rows if row.eval_correct is not None] == [4, 6]
    assert min(rows[-1].eval_kl, rows[3].eval_kl) > 0
    assert files(tmp_path / "adapter")[WEIGHTS] == files(unbroken.out)[WEIGHTS]


@pytest.mark.parametrize(
    ("solved", "kept"),
    [
        ({0: 1, 2: 2, 4: 4, 6: 3}, 4),
        ({0: 3, 2: 3, 4: 1, 6: 2}, 0),  # the initial policy, where no evaluation is better
    ],
)
def test_the_weights_of_the_best_evaluation_are_kept_even_in_a_resumed_run(
    fit, tmp_path, monkeypatch, solved, kept
):
    def validate(self, prompts):
        right = solved[self.state.global_step]  # of five; two letters are right, one is wrong
        return [Completion(text, 1, True) for text in ["ab"] * right + ["a"] * (5 - right)]

    monkeypatch.setattr(trainer.Trainer, "validate", validate)
    options = replace(SMALL, eval_every=2, keep="best", save_steps=5)
    result, again = resumed(fit, options, 6)
    assert again.resumed == 5
    assert (result.facts["kept_step"], result.facts["eval_correct"]) == (kept, solved[kept] / 5)
    weights = load_file(result.out / WEIGHTS).items()
    trained = any(weight.any() for name, weight in weights if "lora_B" in name)
    assert trained == (kept > 0)
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_all_weights_give_a_model_artifact_that_other_stages_take(fit, place, tmp_path):
    all_weights = fit(replace(ALL_WEIGHTS, beta=0.01), out=tmp_path / "model")
    manifest = artifacts.read(all_weights.out, "model")
    assert manifest.facts["trainable_parameters"] == manifest.facts["total_parameters"] > 0
    found = (reference.find_model(str(path)) for path in (all_weights.out, place / "model"))
    trained, before = (load.load_model(ref).model.state_dict() for ref in found)
    assert json.loads((all_weights.out / "config.json").read_text())["dtype"] == "bfloat16"
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"):
        assert not torch.equal(trained[name], before[name])
    links = provenance_chain(manifest.as_input())
    assert links[-1].by_grpo
    assert initial_model(links).name == "model"
    assert all(row.kl is not None for row in all_weights.rows)


def test_trained_weights_are_fp32_over_4_bit_weights_and_after_a_resume(fit, monkeypatch):
    load, facts, dtypes = weights.load_model, training.all_facts, set()

    def load_in_4_bits(*args, **settings):
        loaded = load(*args, **settings)
        loaded.model.is_loaded_in_4bit = True  # what TRL looks at
        return loaded

    def note_dtypes(run, trainer, *others):
        trained = [each for each in trainer.model.parameters() if each.requires_grad]
        dtypes.update(parameter.dtype for parameter in trained)
        return facts(run, trainer, *others)

    monkeypatch.setattr(weights, "load_model", load_in_4_bits)
    monkeypatch.setattr(training, "all_facts", note_dtypes)
    whole, again = resumed(fit, SMALL, 5)
    assert again.resumed == 3
    assert dtypes == {torch.float32}
    still = replace(SMALL, learning_rate=0.0, max_steps=1)
    further = fit(still, "further", model=str(whole.out))
    assert files(further.out)[WEIGHTS] == files(whole.out)[WEIGHTS]


def test_invalid_inputs_are_refused_before_anything_is_written(fit, place, tmp_path, unbroken):
    (tmp_path / "file").write_text("")
    adapter, one_file = str(unbroken.out), place / "data" / "train.jsonl"
    for word, options, changes in (
        ("merge it first", ALL_WEIGHTS, {"model": adapter}),
        ("validation split", replace(SMALL, eval_every=1), {"data": one_file}),
        ("file", SMALL, {"out": tmp_path / "file"}),
    ):
        with pytest.raises(CountdownError, match=word):
            fit(options, **changes)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("sampler", ["uniform", "dynamic"])
def test_rewards_and_validation_see_tags_that_are_special_tokens_and_who_opens_them(
    tmp_path, sampler
):
    begun = "<|assistant|>{% endif %}", "<|assistant|><think>{% endif %}"
    template = tiny_llama.TEMPLATE.replace(*begun)
    constant_model.checkpoint(tmp_path / "model", template=template, special=True)
    rows = [
        {"id": f"r{n}", "nums": [1, 2], "target": 90 + n, "style": "model_opens"} for n in range(4)
    ]
    write_data(tmp_path / "data", dict.fromkeys(SPLITS, rows), style="model_opens")
    rewards = {"temperature": 0.01, "reward": ("correct=1", "format=1")}
    options = replace(SMALL, max_steps=1, eval_every=1, sampler=sampler, **rewards)
    (row,) = run(tmp_path, tmp_path / "run", options).rows
    assert (row.correct, row.format, row.eval_correct) == (1.0, 1.0, 1.0)


def test_a_micro_batch_is_halved_until_its_first_step_fits(fit, monkeypatch):
    step, warned = trainer.Trainer.training_step, []

    def limited(self, *inputs):
        if self.args.per_device_train_batch_size > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return step(self, *inputs)

    monkeypatch.setattr(trainer.Trainer, "training_step", limited)
    monkeypatch.setattr(trainer.Trainer, "most", 2, raising=False)
    result = fit(reporter=Reporter(warning=warned.append))
    assert "--micro-batch 2" in warned[-1]
    assert result.facts["micro_batch"] == 2
    assert len(result.rows) == 6
    monkeypatch.setattr(trainer.Trainer, "most", 0)
    with pytest.raises(ModelError, match="--micro-batch"):
        fit(where="none")


def test_a_finished_run_goes_on_with_more_steps(fit, tmp_path):
    options = replace(SMALL, trl=(), keep_checkpoints=2)
    whole = fit(options, "whole")
    kept = {path.name for path in (tmp_path / "whole" / "checkpoints").glob("*-*")}
    assert kept == {"checkpoint-3", "checkpoint-6"}
    fit(replace(options, max_steps=4), "short")
    again = fit(options, "short")
    assert again.resumed == 4
    assert files(again.out)[WEIGHTS] == files(whole.out)[WEIGHTS]
    further = fit(replace(options, max_steps=7, micro_batch=2), "short")
    assert (further.resumed, further.rows[:6]) == (6, again.rows)
    with pytest.raises(ArtifactError, match="max-steps"):
        fit(replace(options, max_steps=6), "short")


def test_a_kept_checkpoint_names_its_base_and_becomes_the_artifact_without_a_further_step(fit):
    options = replace(SMALL, keep_checkpoints=1)
    finished = fit(options)
    before = files(finished.out), finished.log.read_bytes()
    (kept,) = finished.log.parent.glob("checkpoints/*-*")
    assert reference.find_model(str(kept)).base.source.endswith("model")
    assert fit(options, overwrite=True).resumed == SMALL.max_steps
    assert (files(finished.out), finished.log.read_bytes()) == before


def test_a_run_is_resumed_after_whole_rounds_alone(fit, tmp_path):
    options = replace(SMALL, trl=("num_iterations=2",), keep_checkpoints=1, save_steps=1)
    whole = fit(options, "whole")
    fit(replace(options, max_steps=5), "short")
    assert not fit(replace(options, max_steps=5), "short").rows
    again = fit(options, "short")
    assert again.resumed == 4
    assert files(again.out)[WEIGHTS] == files(whole.out)[WEIGHTS]


def test_an_evaluation_is_that_of_generate(fit, monkeypatch):
    completions, validate = [], trainer.Trainer.validate

    def recorded(*arguments):
        completions.append(validate(*arguments))
        return completions[-1]

    monkeypatch.setattr(trainer.Trainer, "validate", recorded)
    options = replace(SMALL, eval_every=1, max_steps=1, learning_rate=0.0)
    fit(options, "decoder")
    monkeypatch.setattr(engines, "supports", lambda model: False)
    fit(options, "generate")
    decoded, *others = completions  # before and after a step at a rate of 0
    assert others == [decoded] * 3

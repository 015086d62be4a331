"""Options of `train` and `sft` that exclude each other, or have no effect without another one."""

import pytest

from countdown_rl.core.errors import UsageError
from countdown_rl.training import trl_fields
from countdown_rl.training.options import SftOptions, TrainOptions

ADDRESSES = ("http://me:secret@host:80", "http://secret@host", "me:secret@host:80")
ALL = {"tune": "all", "precision": "auto"}
EVERY = [
    ({"tune": "all", "precision": "nf4"}, "--precision nf4"),
    (ALL | {"lora_r": 8}, "leave --lora-r out"),
    (ALL | {"lora_alpha": 8}, "--lora-alpha"),
    ({"keep": "best"}, "--eval-every"),
    ({"micro_batch": 7}, "--micro-batch 7"),
    ({"trl": ("--delta=1",)}, "key=value"),
    *(({"trl": (f"vllm_server_base_url={url}",)}, "password") for url in ADDRESSES),
    ({"trl": ("hub_token=secret",)}, "token"),
]
GRPO = [
    ({"advantage": "max-rl", "scale_rewards": "group"}, "replaces --scale-rewards"),
    ({"advantage": "a:b", "discount": 0.9}, "replaces --discount"),
    ({"discount": 0.9, "scale_rewards": "batch"}, "--scale-rewards none"),
    *(({"trl": (f"num_iterations={n}",)}, "1 or more") for n in ("0", "two")),
    *(({name: "guess"}, "guess") for name in ("loss_type", "advantage", "sampler")),
]
SFT = [
    ({"max_steps": 5, "num_train_epochs": 2.0}, "replaces --num-train-epochs"),
    ({"num_train_epochs": 0.0}, "trains nothing"),
]
CASES = [(TrainOptions, *case) for case in (*EVERY, *GRPO)]
CASES += [(SftOptions, *case) for case in (*EVERY, *SFT)]


@pytest.mark.parametrize(("options", "given", "message"), CASES)
def test_options_that_do_not_go_together_are_refused(options, given, message):
    with pytest.raises(UsageError, match=message) as caught:
        options(**given)
    assert "secret" not in str(caught.value)


def test_trl_is_not_blamed_for_exhausted_memory():
    with pytest.raises(MemoryError), trl_fields.rejected(["gradient_checkpointing=true"]):
        raise MemoryError


def test_the_base_of_an_adapter_is_held_in_4_bits_from_half_a_billion_parameters_on():
    counts = (3_000_000, 5 * 10**8 - 1, 5 * 10**8)
    assert [TrainOptions().quantizes(count) for count in counts] == [False, False, True]
    assert not TrainOptions(tune="all").quantizes(10**9)
    assert not SftOptions().quantizes(10**9)


def distribute(monkeypatch, processes):
    for name, value in {"WORLD_SIZE": processes, "RANK": 0, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("prompts", "generations", "processes", "size"),
    [(8, 16, 1, 16), (3, 5, 1, 15), (17, 2, 1, 2), (2, 8, 2, 8), (3, 4, 4, 3)],
)
def test_a_micro_batch_that_is_not_given_fits_the_step_of_each_process(
    monkeypatch, prompts, generations, processes, size
):
    distribute(monkeypatch, processes)
    options = TrainOptions(prompts=prompts, num_generations=generations)
    assert options.recorded["micro_batch"] == size
    assert options.micro_batches * size * processes == prompts * generations


def test_processes_share_puzzles_whose_completions_are_compared(monkeypatch):
    distribute(monkeypatch, 2)
    with pytest.raises(UsageError, match="change --prompts"):
        TrainOptions(prompts=3, discount=0.9)

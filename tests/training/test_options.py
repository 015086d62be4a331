"""Options of `train` and `sft` that exclude each other, or have no effect without another one."""

import pytest

from countdown_rl.core.errors import UsageError
from countdown_rl.training.options import SftOptions, TrainOptions

ALL = {"tune": "all", "precision": "auto"}

EVERY = [
    ({"tune": "all", "precision": "nf4"}, "--tune all with --precision nf4.*--precision auto"),
    (ALL | {"lora_r": 8}, "--tune all trains no adapter; leave --lora-r out"),
    *((ALL | {"lora_alpha": 8}, "--lora-alpha"), (ALL | {"lora_dropout": 0.1}, "--lora-dropout")),
    ({"keep": "best"}, "--keep needs evaluations; add --eval-every"),
    *(({"eval_size": 20}, "--eval-every"), ({"eval_temperature": 1.0}, "--eval-every")),
    ({"eval_samples": 4, "eval_temperature": 1.0}, "--eval-every"),
    ({"eval_samples": 4, "eval_every": 1}, "--eval-temperature"),
    ({"micro_batch": 7}, "--micro-batch 7 does not divide"),
]
GRPO = [
    ({"dynamic_sampling": True, "curriculum": True}, "--dynamic-sampling with --curriculum"),
    ({"dynamic_sampling": True, "sampler": "a:b"}, "--dynamic-sampling with --sampler"),
    ({"curriculum": True, "sampler": "a:b"}, "--curriculum with --sampler"),
    ({"advantage": "max-rl", "baseline": "leave-one-out"}, "--advantage replaces --baseline"),
    ({"advantage": "max-rl", "scale_rewards": "group"}, "--advantage replaces --scale-rewards"),
    ({"advantage": "max-rl", "discount": 0.9}, "--advantage replaces --discount"),
    ({"discount": 0.9, "scale_rewards": "group"}, "--discount 0.9 with --scale-rewards group"),
    ({"loss": "a:b", "loss_type": "grpo"}, "--loss replaces --loss-type"),
    *(
        ({"loss": "a:b", "trl": key}, "--loss a:b does not use --trl")
        for key in ("epsilon=1", "top_entropy_quantile=1")
    ),
    ({"discount": 0.9, "scale_rewards": "batch"}, "--scale-rewards none"),
    (
        {"baseline": "leave-one-out", "trl": "multi_objective_aggregation=normalize_then_sum"},
        "--baseline uses",
    ),
    (
        {"advantage": "max-rl", "trl": "multi_objective_aggregation=normalize_then_sum"},
        "--advantage uses",
    ),
    (
        {"trl": ("top_p=0.9", "vllm_importance_sampling_mode=sequence_mask")},
        "--trl top_p=0.9 with --trl vllm_imp",
    ),
    (
        {"trl": ("min_p=0.1", "vllm_importance_sampling_mode=sequence_truncate")},
        "--trl min_p=0.1 with --trl vllm",
    ),
    ({"loss_type": "vespo", "trl": "importance_sampling_level=sequence"}, "weights per completion"),
    ({"loss_type": "sapo", "trl": "epsilon=0.1"}, "--loss-type sapo does not use --trl epsilon"),
    ({"loss_type": "cispo", "trl": "epsilon=0.1"}, "--trl epsilon;"),
    ({"loss_type": "vespo", "trl": "delta=2"}, "--trl delta"),
    ({"trl": "sapo_temperature_pos=1"}, "--loss-type dapo does not use --trl sapo_temperature_pos"),
    (
        {"trl": "warmup_steps=5"},
        "--lr-scheduler-type constant has no warmup; give .* constant_with_warmup",
    ),
    ({"trl": "warmup_steps=0.1"}, "--trl warmup_steps"),
    *(({"trl": given}, "key=value") for given in ("delta", "=1", "a b=1", "--delta=1")),
    ({"trl": "use_bias_correction_kl=true"}, "add --beta"),
    (
        {"rollouts": "transformers", "trl": "vllm_gpu_memory_utilization=0.5"},
        "--rollouts transformers",
    ),
    ({"rollouts": "vllm", "trl": "vllm_server_base_url=http://a"}, "--rollouts vllm does not use"),
]
SFT = [
    (
        {"lr_scheduler_type": "constant", "warmup_steps": 3},
        "constant has no warmup; .* leave --warmup-steps out",
    ),
    ({"max_steps": 5, "num_train_epochs": 2.0}, "--max-steps replaces --num-train-epochs"),
    ({"num_train_epochs": 0.0}, "trains nothing"),
]
REFUSED = [(TrainOptions, *case) for case in (*EVERY, *GRPO)] + [
    (SftOptions, *case) for case in (*EVERY, *SFT)
]


@pytest.mark.parametrize(("options", "given", "message"), REFUSED)
def test_options_that_do_not_go_together_are_refused(options, given, message):
    with pytest.raises(UsageError, match=message):
        options(**given)


@pytest.mark.parametrize(
    "given",
    [
        *(
            {"loss_type": name, "trl": f"{key}=4"}
            for name, key in (("cispo", "epsilon_high"), ("sapo", "sapo_temperature_pos"))
        ),
        *({"lr_scheduler_type": "cosine", "trl": "warmup_steps=5"}, {"trl": "warmup_steps=0.0"}),
        *(
            {"beta": 0.1, "trl": "use_bias_correction_kl=true"},
            {"trl": "vllm_gpu_memory_utilization=0.5"},
        ),
        {"rollouts": "vllm-server", "trl": "vllm_server_base_url=http://a"},
    ],
)
def test_options_that_go_together_are_taken(given):
    assert TrainOptions(**given).trl


def test_the_base_of_an_adapter_is_held_in_4_bits_from_half_a_billion_parameters_on():
    assert [TrainOptions().quantizes(count) for count in (3_000_000, 5 * 10**8 - 1, 5 * 10**8)] == [
        False,
        False,
        True,
    ]
    assert not TrainOptions(tune="all").quantizes(10**9)
    assert not SftOptions().quantizes(10**9)


def test_a_warmup_that_is_not_given_is_at_most_a_tenth_of_the_run():
    assert [SftOptions().warmup(steps) for steps in (1, 6, 30, 99, 100, 5_000)] == [
        0,
        0,
        3,
        9,
        10,
        10,
    ]
    assert SftOptions(lr_scheduler_type="constant").warmup(100) == 0
    assert SftOptions(warmup_steps=10).warmup(6) == 10
    assert [SftOptions(learning_rate=0.1).peak(6, steps) for steps in (0, 5, 10)] == [
        0.1,
        0.1,
        0.05,
    ]


def test_a_micro_batch_that_is_not_given_fits_the_step():
    for prompts, generations, fitting in [(8, 16, 16), (2, 4, 8), (3, 5, 15), (17, 2, 2)]:
        options = TrainOptions(prompts=prompts, num_generations=generations)
        assert (options.per_device_batch, options.recorded["micro_batch"]) == (fitting, fitting)

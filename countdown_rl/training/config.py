"""Options of ``train``, and those of them that do not go together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag
from countdown_rl.core.options import Precision, option
from countdown_rl.training.sft_config import BATCH, MODEL, OPTIMISER, RUN, Schedule, TuningOptions

LOSS, COMPLETIONS = "Loss", "Completions"

#: For each field its values, or a test of them; ``trl.KEY`` is the value of ``--trl KEY``.
Condition = Mapping[str, tuple[Any, ...] | Callable[[Any], bool]]


def _below_1(value: float) -> bool:
    return value < 1


#: Options that leave out unlikely tokens. The ratio of the policy to vLLM is then, at each token, the probability of
#: those that are kept, and over a whole completion the product of all these (huggingface/trl issue 6789).
_CUTS: Condition = {"top_p": _below_1, "trl.top_k": lambda _: True, "trl.min_p": lambda _: True}

#: Options that do not go together, and why.
CONFLICTS: tuple[tuple[Condition, str], ...] = (
    ({"tune": ("all",), "precision": ("nf4",)}, "weights in 4 bits cannot be trained; add --precision auto"),
    (
        {"dynamic_sampling": (True,), "curriculum": (True,)},
        "the curriculum counts the groups that are all right or all wrong; leave one out",
    ),
    ({"keep": ("best",), "eval_every": (0,)}, "the best weights are found by evaluations; add --eval-every"),
    (
        {"discount": _below_1, "scale_rewards": ("group", "batch")},
        "advantages per line are not divided by a deviation; give --scale-rewards none",
    ),
    (
        {"discount": _below_1, "trl.multi_objective_aggregation": ("normalize_then_sum",)},
        "advantages per line are of the sum of the rewards; leave one out",
    ),
    (
        {"baseline": ("leave-one-out",), "trl.multi_objective_aggregation": ("normalize_then_sum",)},
        "the baseline is of the sum of the rewards; leave one out",
    ),
    (
        {"loss_type": ("cispo",), "epsilon_high": _below_1},
        "CISPO clips the ratios themselves, which begin at 1; give --epsilon-high 5, as ScaleRL",
    ),
    (
        {"trl.importance_sampling_level": ("sequence",), "loss_type": ("vespo",)},
        "VESPO has weights per completion of its own; leave the level out",
    ),
    *(
        (
            {name: test, "trl.vllm_importance_sampling_mode": ("sequence_mask", "sequence_truncate")},
            "without unlikely tokens the ratio of a whole completion is near 0; leave the mode out",
        )
        for name, test in _CUTS.items()
    ),
)


@dataclass(frozen=True)
class TrainOptions(TuningOptions):
    """GRPO training of a LoRA adapter or of all weights.

    ``prompts``, ``micro_batch`` and ``steps_per_generation`` count puzzles per step, completions per forward and
    backward pass, and optimiser steps per round of completions.
    """

    max_steps: Annotated[int, option("Optimiser steps.", BATCH, min=1)] = 200
    prompts: Annotated[int, option("Puzzles per step.", BATCH, min=1)] = 8
    num_generations: Annotated[int, option("Completions per puzzle (group size).", BATCH, min=2)] = 16
    steps_per_generation: Annotated[
        int, option("Steps per round of completions, each on its own part.", BATCH, min=1)
    ] = 1
    num_iterations: Annotated[int, option("GRPO iterations per batch (mu).", BATCH, min=1)] = 1
    curriculum: Annotated[bool, option("Sample more of the kinds of puzzles solved sometimes.", BATCH)] = False
    share_prompts: Annotated[
        bool, option("Compute the prompt of a group once in the loss: faster where completions are short.", BATCH)
    ] = False
    dynamic_sampling: Annotated[
        bool, option("Draw groups again that are all right or all wrong, as in DAPO.", BATCH)
    ] = False

    reward: Annotated[
        tuple[str, ...],
        option(
            "Reward and its weight; repeatable. correct, format, strict-format, well-formed, closeness, no-trailing, "
            "integer, length:TOKENS, or a function of your own as module:function.",
            LOSS,
            metavar="NAME=WEIGHT",
        ),
    ] = ("correct=1", "format=0.1")
    loss_type: Annotated[
        Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo", "luspo"],
        option("Loss, by the names of TRL.", LOSS),
    ] = "dapo"
    baseline: Annotated[
        Literal["group", "leave-one-out"],
        option("Subtract the mean reward of the group, or of its other completions (RLOO).", LOSS),
    ] = "group"
    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        option("Divide advantages by the standard deviation of rewards in the group or batch.", LOSS),
    ] = "group"
    beta: Annotated[float, option("Weight of the KL divergence from the initial model.", LOSS, min=0)] = 0.0
    epsilon_high: Annotated[float, option("Upper clipping: 1 + epsilon.", LOSS, min=0)] = 0.28
    discount: Annotated[
        float,
        option("Factor of the reward for each later line; 1: one advantage per completion.", LOSS, min=0.5, max=1),
    ] = 1.0
    trl: Annotated[
        tuple[str, ...],
        option(
            "Other field of TRL's GRPOConfig; repeatable. entropy_coef=0.01 adds an entropy bonus; "
            "top_entropy_quantile=0.2 trains the fifth of the tokens with the highest entropy; "
            "importance_sampling_level=sequence is GSPO. See docs/rewards.md.",
            LOSS,
            metavar="KEY=VALUE",
        ),
    ] = ()

    rollouts: Annotated[
        Literal["auto", "transformers", "vllm", "vllm-server"],
        option("Engine; vllm: in the training processes; vllm-server: at --trl vllm_server_base_url=URL.", COMPLETIONS),
    ] = "auto"
    temperature: Annotated[float, option("Sampling temperature.", COMPLETIONS, min=0.01, max=2)] = 1.0
    top_p: Annotated[float, option("Nucleus sampling.", COMPLETIONS, min=0.01, max=1)] = 1.0
    max_completion_length: Annotated[int, option("Maximum tokens of a completion.", COMPLETIONS, min=1)] = 256
    max_prompt_length: Annotated[
        int, option("Maximum tokens of a prompt; longer ones are an error.", COMPLETIONS, min=1)
    ] = 512

    learning_rate: Annotated[float, option("Peak learning rate.", OPTIMISER, min=0, max=1)] = 2e-4
    lr_scheduler_type: Schedule = "constant"

    precision: Annotated[Precision, option("Precision of the base; nf4 is QLoRA.", MODEL)] = "nf4"

    sample_every: Annotated[int, option("Steps between saved completions; 0: none.", RUN, min=0)] = 10

    @property
    def round_steps(self) -> int:
        """Optimiser steps that use one round of completions. Only after a whole round can a run be resumed."""
        return self.steps_per_generation * self.num_iterations

    def _values(self) -> dict[str, Any]:
        """The values of all options, and those of ``--trl KEY=VALUE`` as text under ``trl.KEY``."""
        return vars(self) | {f"trl.{key}": text for key, _, text in (item.partition("=") for item in self.trl)}

    def _meets(self, condition: Condition) -> bool:
        """Return True if the options have the values of *condition*."""
        values = self._values()
        return all(
            name in values and (test(values[name]) if callable(test) else values[name] in test)
            for name, test in condition.items()
        )

    @property
    def step_size(self) -> int:
        return self.prompts * self.num_generations

    def micro_batches(self, processes: int) -> int:
        whole = "--discount" if self.discount < 1 else "--dynamic-sampling" if self.dynamic_sampling else ""
        if whole and self.prompts * self.steps_per_generation % processes:
            raise UsageError(
                f"{whole} compares the completions of a puzzle in one process, and {processes} processes cannot share "
                f"{self.prompts} puzzles evenly; change --prompts."
            )
        return super().micro_batches(processes)

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in self.trl:
            key, equals, _ = item.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"--trl {item} is not of the form key=value.")
        for condition, reason in CONFLICTS:
            if self._meets(condition):
                combination = " with ".join(_worded(name, self._values()[name]) for name in condition)
                raise UsageError(f"{combination}: {reason}.")


def _worded(name: str, value: Any) -> str:
    """The flag *name* with its value."""
    if name.startswith("trl."):
        return f"--trl {name.removeprefix('trl.')}={value}"
    return flag(name) if value is True else f"{flag(name)} {value}"

"""Options of ``train``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl import processes
from countdown_rl.errors import UsageError
from countdown_rl.options import Options, Precision, option

BATCH, LOSS, COMPLETIONS, OPTIMISER = "Batch", "Loss", "Completions", "Optimiser"
MODEL, RUN = "Weights and precision", "Run"

#: Largest ``micro_batch`` that is chosen where the option is 0.
MAX_MICRO_BATCH = 16


@dataclass(frozen=True)
class TrainOptions(Options):
    """GRPO training of a LoRA adapter or of all weights.

    Names shared with TRL's ``GRPOConfig`` and PEFT's ``LoraConfig`` have their meaning. ``prompts``,
    ``micro_batch`` and ``steps_per_generation`` count puzzles per step, completions per forward and backward pass,
    and optimiser steps per round of completions.
    """

    max_steps: Annotated[int, option("Optimiser steps.", BATCH, min=1)] = 200
    prompts: Annotated[int, option("Puzzles per step.", BATCH, min=1)] = 8
    num_generations: Annotated[int, option("Completions per puzzle (group size).", BATCH, min=2)] = 16
    micro_batch: Annotated[
        int, option("Completions per forward and backward pass; 0: as many as divide a step, up to 16.", BATCH, min=0)
    ] = 0
    steps_per_generation: Annotated[
        int, option("Steps per round of completions, each on its own part.", BATCH, min=1)
    ] = 1
    num_iterations: Annotated[int, option("GRPO iterations per batch (mu).", BATCH, min=1)] = 1
    curriculum: Annotated[bool, option("Sample more of the kinds of puzzles solved sometimes.", BATCH)] = False

    reward: Annotated[
        tuple[str, ...],
        option(
            "Reward and its weight; repeatable. correct, format, strict-format, well-formed, closeness, no-trailing, "
            "integer, length:TOKENS, or a function of your own as module:function.",
            LOSS,
            metavar="NAME=WEIGHT",
        ),
    ] = ("correct=1", "format=0.1")
    loss_type: Annotated[Literal["dapo", "grpo", "dr_grpo", "bnpo"], option("Normalisation of the loss.", LOSS)] = (
        "dapo"
    )
    scale_rewards: Annotated[
        Literal["group", "batch", "mean", "none"],
        option(
            "Divide advantages by the standard deviation of rewards in the group or batch, or by their mean in the "
            "group (MaxRL).",
            LOSS,
        ),
    ] = "group"
    importance_sampling_level: Annotated[
        Literal["token", "sequence"], option("Level of the probability ratios; sequence is GSPO.", LOSS)
    ] = "token"
    beta: Annotated[float, option("Weight of the KL divergence from the initial model.", LOSS, min=0)] = 0.0
    epsilon: Annotated[float, option("Lower clipping: 1 - epsilon.", LOSS, min=0)] = 0.2
    epsilon_high: Annotated[float, option("Upper clipping: 1 + epsilon.", LOSS, min=0)] = 0.28
    mask_truncated_completions: Annotated[bool, option("Leave truncated completions out of the loss.", LOSS)] = False
    discount: Annotated[
        float, option("Discount per line of the reward; 1: one advantage per completion.", LOSS, min=0.5, max=1)
    ] = 1.0
    trl: Annotated[
        tuple[str, ...], option("Other field of TRL's GRPOConfig; repeatable.", LOSS, metavar="KEY=VALUE")
    ] = ()

    rollouts: Annotated[
        Literal["auto", "transformers", "vllm", "vllm-server"],
        option("Engine; vLLM in the training processes, or a server by --trl vllm_server_base_url=URL.", COMPLETIONS),
    ] = "auto"
    temperature: Annotated[float, option("Sampling temperature.", COMPLETIONS, min=0.01, max=100)] = 1.0
    top_p: Annotated[float, option("Nucleus sampling.", COMPLETIONS, min=0.01, max=1)] = 1.0
    max_completion_length: Annotated[int, option("Maximum tokens of a completion.", COMPLETIONS, min=1)] = 256
    max_prompt_length: Annotated[
        int, option("Maximum tokens of a prompt; longer ones are an error.", COMPLETIONS, min=1)
    ] = 512

    learning_rate: Annotated[float, option("Peak learning rate.", OPTIMISER, min=0, max=1)] = 2e-4
    lr_scheduler_type: Annotated[
        Literal["constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"],
        option("Learning rate schedule.", OPTIMISER),
    ] = "constant"
    warmup_steps: Annotated[int, option("Steps of linear warmup.", OPTIMISER, min=0)] = 0
    weight_decay: Annotated[float, option("Decoupled weight decay.", OPTIMISER, min=0)] = 0.0
    adam_beta1: Annotated[float, option("Beta 1 of AdamW.", OPTIMISER, min=0, max=0.999999)] = 0.9
    adam_beta2: Annotated[float, option("Beta 2 of AdamW.", OPTIMISER, min=0, max=0.999999)] = 0.999
    max_grad_norm: Annotated[float, option("Maximum gradient norm.", OPTIMISER, min=0)] = 1.0

    tune: Annotated[Literal["lora", "all"], option("Train a LoRA adapter, or all weights.", MODEL)] = "lora"
    lora_r: Annotated[int, option("LoRA rank.", MODEL, min=1, max=4096)] = 16
    lora_alpha: Annotated[int, option("LoRA scale: alpha / r.", MODEL, min=1)] = 32
    lora_dropout: Annotated[float, option("LoRA dropout.", MODEL, min=0, max=1)] = 0.0
    precision: Annotated[Precision, option("Precision of the base.", MODEL)] = "nf4"
    gradient_checkpointing: Annotated[bool, option("Less memory, about a fifth slower.", MODEL)] = False

    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
    threads: Annotated[int, option("CPU threads; 0: all available.", RUN, min=0)] = 0
    save_steps: Annotated[int, option("Steps between checkpoints; 0: none.", RUN, min=0)] = 25
    save_minutes: Annotated[float, option("Minutes between further checkpoints; 0: none.", RUN, min=0)] = 0.0
    logging_steps: Annotated[int, option("Steps per row of the log.", RUN, min=1)] = 1
    sample_every: Annotated[int, option("Steps between saved completions; 0: none.", RUN, min=0)] = 10
    sample_size: Annotated[int, option("Completions saved at a time.", RUN, min=1)] = 4
    eval_every: Annotated[
        int, option("Steps between greedy evaluations on the validation split; 0: none.", RUN, min=0)
    ] = 0
    eval_size: Annotated[int, option("Puzzles of an evaluation, the first of the split.", RUN, min=1)] = 200
    keep: Annotated[Literal["last", "best"], option("Weights to write: of the last step or best evaluation.", RUN)] = (
        "last"
    )
    stop_on_collapse: Annotated[bool, option("Stop when a warning says that accuracy collapses.", RUN)] = False
    report_to: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        option("Tracker, offline, beside the log; repeatable.", RUN),
    ] = ()

    @property
    def kind(self) -> str:
        """The kind of the artifact that is written."""
        return "adapter" if self.tune == "lora" else "model"

    @property
    def round_steps(self) -> int:
        """Optimiser steps that use one round of completions. Only after a whole round can a run be resumed."""
        return self.steps_per_generation * self.num_iterations

    def micro_batches(self, count: int) -> int:
        """The micro-batches of a step in each of *count* processes.

        Raises:
            UsageError: the processes cannot share a step evenly.
        """
        micro_batches = processes.micro_batches(self.prompts * self.num_generations, self.micro_batch, count)
        if self.discount < 1 and self.prompts * self.steps_per_generation % count:
            raise UsageError(
                f"--discount compares the completions of a puzzle in one process, and {count} processes cannot share "
                f"{self.prompts} puzzles evenly; change --prompts."
            )
        return micro_batches

    def __post_init__(self) -> None:
        super().__post_init__()
        completions = self.prompts * self.num_generations
        if not self.micro_batch:
            fitting = max(size for size in range(1, MAX_MICRO_BATCH + 1) if completions % size == 0)
            object.__setattr__(self, "micro_batch", fitting)
        if completions % self.micro_batch:
            raise UsageError(
                f"--micro-batch {self.micro_batch} does not divide the {completions} completions of a step "
                f"({self.prompts} prompts x {self.num_generations} generations)."
            )
        if self.tune == "all" and self.precision == "nf4":
            raise UsageError("--tune all cannot train weights in 4 bits; add --precision auto.")
        if self.keep == "best" and not self.eval_every:
            raise UsageError("--keep best needs evaluations; add --eval-every.")
        if self.stop_on_collapse and self.keep != "best":
            raise UsageError("--stop-on-collapse goes back to the best weights; add --keep best and --eval-every.")
        for item in self.trl:
            key, equals, value = item.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"--trl {item} is not of the form key=value.")
            by_function = key == "multi_objective_aggregation" and value.strip('"') == "normalize_then_sum"
            if by_function and (self.discount < 1 or self.scale_rewards == "mean"):
                option = "--discount below 1" if self.discount < 1 else "--scale-rewards mean"
                raise UsageError(
                    f"--trl {item} normalizes every reward by itself, and advantages with {option} are of their sum; "
                    "leave one out."
                )
        if self.discount < 1 and self.scale_rewards in ("group", "batch"):
            raise UsageError(
                f"--scale-rewards {self.scale_rewards} has no effect with --discount below 1, whose advantages are not "
                "divided by a deviation; give --scale-rewards none or mean."
            )

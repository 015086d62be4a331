"""Options of ``train``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.errors import UsageError
from countdown_rl.options import Options, Precision

BATCH, LOSS, COMPLETIONS, OPTIMISER = "Batch", "Loss", "Completions", "Optimiser"
MODEL, RUN = "Adapter and precision", "Run"


@dataclass(frozen=True)
class TrainOptions(Options):
    """GRPO training of a LoRA adapter.

    Names shared with TRL's ``GRPOConfig`` and PEFT's ``LoraConfig`` have their meaning. ``prompts``,
    ``micro_batch`` and ``steps_per_generation`` count puzzles per step, completions per forward and backward pass,
    and optimiser steps per round of completions.
    """

    max_steps: Annotated[int, Option(min=1, help="Optimiser steps.", rich_help_panel=BATCH)] = 200
    prompts: Annotated[int, Option(min=1, help="Puzzles per step.", rich_help_panel=BATCH)] = 8
    num_generations: Annotated[
        int, Option(min=2, help="Completions per puzzle (group size).", rich_help_panel=BATCH)
    ] = 16
    micro_batch: Annotated[
        int, Option(min=1, help="Completions per forward and backward pass.", rich_help_panel=BATCH)
    ] = 16
    steps_per_generation: Annotated[
        int, Option(min=1, help="Steps per round of completions, each on its own part.", rich_help_panel=BATCH)
    ] = 1
    num_iterations: Annotated[int, Option(min=1, help="GRPO iterations per batch (mu).", rich_help_panel=BATCH)] = 1
    curriculum: Annotated[
        bool, Option(help="Sample more of the kinds of puzzles solved sometimes.", rich_help_panel=BATCH)
    ] = False

    reward: Annotated[
        tuple[str, ...],
        Option(metavar="NAME=WEIGHT", help="Reward function and its weight; repeatable.", rich_help_panel=LOSS),
    ] = ("correct=1", "format=0.1")
    loss_type: Annotated[
        Literal["dapo", "grpo", "dr_grpo", "bnpo"], Option(help="Normalisation of the loss.", rich_help_panel=LOSS)
    ] = "dapo"
    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        Option(help="Divide advantages by the standard deviation within.", rich_help_panel=LOSS),
    ] = "group"
    importance_sampling_level: Annotated[
        Literal["token", "sequence"],
        Option(help="Level of the probability ratios; sequence is GSPO.", rich_help_panel=LOSS),
    ] = "token"
    beta: Annotated[
        float, Option(min=0, help="Weight of the KL divergence from the initial model.", rich_help_panel=LOSS)
    ] = 0.0
    epsilon: Annotated[float, Option(min=0, help="Lower clipping: 1 - epsilon.", rich_help_panel=LOSS)] = 0.2
    epsilon_high: Annotated[float, Option(min=0, help="Upper clipping: 1 + epsilon.", rich_help_panel=LOSS)] = 0.28
    mask_truncated_completions: Annotated[
        bool, Option(help="Leave truncated completions out of the loss.", rich_help_panel=LOSS)
    ] = False
    trl: Annotated[
        tuple[str, ...],
        Option(metavar="KEY=VALUE", help="Other field of TRL's GRPOConfig; repeatable.", rich_help_panel=LOSS),
    ] = ()

    temperature: Annotated[float, Option(min=0.01, help="Sampling temperature.", rich_help_panel=COMPLETIONS)] = 1.0
    top_p: Annotated[float, Option(min=0.01, max=1, help="Nucleus sampling.", rich_help_panel=COMPLETIONS)] = 1.0
    max_completion_length: Annotated[
        int, Option(min=1, help="Maximum tokens of a completion.", rich_help_panel=COMPLETIONS)
    ] = 256
    max_prompt_length: Annotated[
        int, Option(min=1, help="Maximum tokens of a prompt; longer ones are an error.", rich_help_panel=COMPLETIONS)
    ] = 512

    learning_rate: Annotated[float, Option(min=0, help="Peak learning rate.", rich_help_panel=OPTIMISER)] = 2e-4
    lr_scheduler_type: Annotated[
        Literal["constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"],
        Option(help="Learning rate schedule.", rich_help_panel=OPTIMISER),
    ] = "constant"
    warmup_steps: Annotated[int, Option(min=0, help="Linear warmup.", rich_help_panel=OPTIMISER)] = 0
    weight_decay: Annotated[float, Option(min=0, rich_help_panel=OPTIMISER)] = 0.0
    adam_beta1: Annotated[float, Option(min=0, max=1, rich_help_panel=OPTIMISER)] = 0.9
    adam_beta2: Annotated[float, Option(min=0, max=1, rich_help_panel=OPTIMISER)] = 0.999
    max_grad_norm: Annotated[float, Option(min=0, help="Maximum gradient norm.", rich_help_panel=OPTIMISER)] = 1.0

    lora_r: Annotated[int, Option(min=1, help="LoRA rank.", rich_help_panel=MODEL)] = 16
    lora_alpha: Annotated[int, Option(min=1, help="LoRA scale: alpha / r.", rich_help_panel=MODEL)] = 32
    lora_dropout: Annotated[float, Option(min=0, max=1, rich_help_panel=MODEL)] = 0.0
    precision: Annotated[Precision, Option(help="Precision of the frozen base.", rich_help_panel=MODEL)] = "nf4"
    gradient_checkpointing: Annotated[
        bool, Option(help="Less memory, about a fifth slower.", rich_help_panel=MODEL)
    ] = False

    seed: Annotated[int, Option(min=0, help="Random seed.", rich_help_panel=RUN)] = 42
    threads: Annotated[int, Option(min=0, help="CPU threads; 0: all available.", rich_help_panel=RUN)] = 0
    save_steps: Annotated[int, Option(min=0, help="Steps between checkpoints; 0: none.", rich_help_panel=RUN)] = 25
    save_minutes: Annotated[
        float, Option(min=0, help="Minutes between further checkpoints; 0: none.", rich_help_panel=RUN)
    ] = 0.0
    logging_steps: Annotated[int, Option(min=1, help="Steps per row of the log.", rich_help_panel=RUN)] = 1
    sample_every: Annotated[
        int, Option(min=0, help="Steps between saved completions; 0: none.", rich_help_panel=RUN)
    ] = 10
    sample_size: Annotated[int, Option(min=1, help="Completions saved at a time.", rich_help_panel=RUN)] = 4
    report_to: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        Option(help="Tracker, offline, beside the log; repeatable.", rich_help_panel=RUN),
    ] = ()

    @property
    def round_steps(self) -> int:
        """Optimiser steps that use one round of completions. Only after a whole round can a run be resumed."""
        return self.steps_per_generation * self.num_iterations

    def __post_init__(self) -> None:
        super().__post_init__()
        completions = self.prompts * self.num_generations
        if completions % self.micro_batch:
            raise UsageError(
                f"--micro-batch {self.micro_batch} does not divide the {completions} completions of a step "
                f"({self.prompts} prompts x {self.num_generations} generations)."
            )
        for item in self.trl:
            key, equals, _ = item.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"--trl {item} is not of the form key=value.")

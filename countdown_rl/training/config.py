"""Options of ``train``."""

from dataclasses import dataclass

from countdown_rl.errors import UsageError
from countdown_rl.options import check_choices

TRACKERS = ("tensorboard", "wandb", "trackio")


TRAIN_CHOICES = {
    "scheduler": ("constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"),
    "loss_type": ("dapo", "grpo", "dr_grpo", "bnpo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance": ("token", "sequence"),
    "precision": ("auto", "nf4", "bf16", "fp32"),
}


@dataclass(frozen=True)
class TrainOptions:
    """``train``: what GRPO learns from, how far each step goes, and what it computes with.

    Names that GRPO's papers and TRL share keep their meaning; ``prompts``, ``micro_batch`` and
    ``steps_per_generation`` count what a person would count: puzzles a step, completions held in memory
    at once, optimiser steps taken on each batch of completions.
    """

    steps: int = 200
    prompts: int = 8
    generations: int = 16
    micro_batch: int = 16
    steps_per_generation: int = 1
    iterations: int = 1
    reward: tuple[str, ...] = ("correct=1", "format=0.1")

    temperature: float = 1.0
    top_p: float = 1.0
    max_completion_length: int = 256
    max_prompt_length: int = 512

    learning_rate: float = 2e-4
    scheduler: str = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0

    loss_type: str = "dapo"
    scale_rewards: str = "group"
    importance: str = "token"
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    mask_truncated: bool = False
    curriculum: bool = False
    trl: tuple[str, ...] = ()

    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0

    precision: str = "nf4"
    gradient_checkpointing: bool = False
    seed: int = 42
    threads: int = 0
    checkpoint_every: int = 25
    save_minutes: float = 0.0
    log_every: int = 1
    sample_every: int = 10
    sample_size: int = 4
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        completions = self.prompts * self.generations
        if self.generations < 2:
            raise UsageError("--generations must be at least 2: GRPO compares completions of one prompt.")
        if completions % self.micro_batch:
            raise UsageError(
                f"--micro-batch {self.micro_batch} does not divide the {completions} completions of a step "
                f"({self.prompts} prompts x {self.generations} generations)."
            )
        for one in self.trl:
            if not one.partition("=")[1] or not one.partition("=")[0].isidentifier():
                raise UsageError(f"--trl {one} is not of the form key=value.")
        for name in self.report_to:
            if name not in TRACKERS:
                raise UsageError(f"--report-to {name} is none of: {', '.join(TRACKERS)}.")
        check_choices(self, TRAIN_CHOICES)

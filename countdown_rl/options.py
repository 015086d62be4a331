"""The options of every stage, one frozen dataclass each: the only place where a default is written.

Field names are the flags of the command (``--batch-size`` is ``batch_size``). Light to import.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from countdown_rl.errors import UsageError


@dataclass(frozen=True)
class DataOptions:
    """``gen-data``: how many puzzles, of which kinds, and where the lines between splits fall.

    ``size``, ``numbers``, ``targets``, ``operators`` and ``rule`` say otherwise than the preset where they
    are given. ``from_`` is the flag ``--from``.
    """

    n: int = 50_000
    seed: int = 42
    valid: int | None = None
    test: int | None = None
    preset: str = "3to4"
    size: tuple[str, ...] = ()
    numbers: str | None = None
    targets: str | None = None
    operators: str | None = None
    rule: str | None = None
    impossible: float = 0.0
    balance: tuple[str, ...] = ()
    style: str | None = None
    task: str = "countdown"
    from_: str | None = None
    from_hub: str | None = None
    revision: str | None = None
    exclude: tuple[str, ...] = ()
    workers: int = 0


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


TRACKERS = ("tensorboard", "wandb", "trackio")
TRAIN_CHOICES = {
    "scheduler": ("constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"),
    "loss_type": ("dapo", "grpo", "dr_grpo", "bnpo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance": ("token", "sequence"),
    "precision": ("auto", "nf4", "bf16", "fp32"),
}


@dataclass(frozen=True)
class WarmupOptions:
    """``warmup``: supervised training on search traces, from nothing or from a model."""

    model: str | None = None
    revision: str | None = None
    steps: int = 2_600
    batch_size: int = 32
    optimizer: str = "muon"
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    give_up: float = 0.0
    max_lines: int = 12
    seed: int = 42
    vocab_size: int = 640
    hidden_size: int = 256
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 512
    context: int = 1_024
    threads: int = 0

    def __post_init__(self) -> None:
        check_choices(self, WARMUP_CHOICES)
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % 64:
                raise UsageError(f"--{name.replace('_', '-')} must be a multiple of 64, which 4-bit formats need.")
        if self.hidden_size % (2 * self.heads):
            raise UsageError(f"--heads {self.heads} does not divide --hidden-size {self.hidden_size} into even parts.")


WARMUP_CHOICES = {"optimizer": ("muon", "adamw")}


def check_choices(options: Any, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a value that is none of the *choices* for its field."""
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {getattr(options, name)} is none of: {', '.join(allowed)}.")


@dataclass(frozen=True)
class MergeOptions:
    """``merge``: which base an adapter is folded into, what it is rounded to, how closely it is checked."""

    base: str = "original"
    dtype: str = "auto"
    verify: str = "sample"


@dataclass(frozen=True)
class QuantizeOptions:
    """``quantize``: the format that full-precision weights go into, and what they may lose by it.

    ``n`` and ``max_new_tokens`` say how the result is scored where puzzles are given; ``max_drop`` is in
    percentage points.
    """

    format: str = "nf4"
    gguf_type: str = "q8_0"
    max_drop: float | None = None
    n: int | None = None
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        check_choices(self, QUANTIZE_CHOICES)


QUANTIZE_CHOICES = {"format": ("nf4", "gguf", "w4a16"), "gguf_type": ("f16", "q8_0", "q4_0", "q4_k_m")}


@dataclass(frozen=True)
class EvalOptions:
    """``eval``: how completions are drawn, and how many puzzles are asked."""

    n: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    samples: int = 1
    seed: int = 42
    batch_size: int = 0
    engine: str = "auto"
    agreement: int = 8
    precision: str = "auto"
    device: str = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        check_choices(self, EVAL_CHOICES)
        if self.samples > 1 and self.temperature == 0:
            raise UsageError("--samples draws the same completion each time without a --temperature above 0.")


EVAL_CHOICES = {
    "engine": ("auto", "transformers", "vllm", "llama-cpp"),
    "precision": ("auto", "nf4", "bf16", "fp32"),
    "device": ("auto", "cpu", "cuda", "mps"),
}


@dataclass(frozen=True)
class ReportOptions:
    """``report``: how much there is to read."""

    transcripts: int = 24


@dataclass(frozen=True)
class AskOptions:
    """``ask``: the rules of one puzzle, and how its completion is drawn."""

    rule: str = "exactly-once"
    operators: str = "+-*/"
    style: str = "begun"
    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 42
    precision: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_choices(self, ASK_CHOICES)


ASK_CHOICES = {
    "rule": ("exactly-once", "at-most-once", "television"),
    "style": ("begun", "own"),
    **{key: EVAL_CHOICES[key] for key in ("precision", "device")},
}


@dataclass(frozen=True)
class PublishOptions:
    """``publish``: what the card says beside what the manifests and measurements say.

    None takes what the chain of manifests gives. ``trained_on`` are data sets on the Hub to name, ``measured_on``
    the one there that the puzzles of the evaluation are of; ``license_file`` is the text that goes with the weights.
    """

    name: str | None = None
    base_model: str | None = None
    base_relation: str | None = None
    license: str | None = None
    license_file: str | None = None
    trained_on: tuple[str, ...] = ()
    measured_on: str | None = None
    min_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.base_relation is not None:
            check_choices(self, PUBLISH_CHOICES)


PUBLISH_CHOICES = {"base_relation": ("adapter", "finetune", "quantized", "merge")}

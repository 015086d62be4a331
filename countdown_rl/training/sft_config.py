"""Options of ``sft`` and ``collect``, and those that ``sft`` shares with ``train``."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Options, Precision, option

DEMONSTRATIONS, BATCH, OPTIMISER = "Demonstrations", "Batch", "Optimiser"
MODEL, RUN = "Weights and precision", "Run"

Schedule = Annotated[
    Literal["constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"],
    option("Learning rate schedule.", OPTIMISER),
]

#: Largest ``micro_batch`` that is chosen where the option is 0.
MAX_MICRO_BATCH = 16


@dataclass(frozen=True)
class TuningOptions(Options):
    """Options of every training of a LoRA adapter or of all weights.

    Names shared with PEFT's ``LoraConfig`` and TRL's configurations have their meaning.
    """

    micro_batch: Annotated[
        int,
        option("Examples per forward and backward pass; 0: as many as divide a step, up to 16.", BATCH, min=0),
    ] = 0
    lr_scheduler_type: Schedule = "cosine"

    tune: Annotated[Literal["lora", "all"], option("Train a LoRA adapter, or all weights.", MODEL)] = "lora"
    lora_r: Annotated[int, option("LoRA rank.", MODEL, min=1, max=4096)] = 16
    lora_alpha: Annotated[int, option("LoRA scale: alpha / r.", MODEL, min=1)] = 32
    lora_dropout: Annotated[float, option("LoRA dropout.", MODEL, min=0, max=1)] = 0.0
    precision: Annotated[Precision, option("Precision of the base; nf4 is QLoRA.", MODEL)] = "auto"
    gradient_checkpointing: Annotated[bool, option("Less memory, about a fifth slower.", MODEL)] = False

    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
    threads: Annotated[int, option("CPU threads; 0: all available.", RUN, min=0)] = 0
    save_steps: Annotated[int, option("Steps between checkpoints; 0: none.", RUN, min=0)] = 25
    eval_every: Annotated[
        int, option("Steps between greedy evaluations on the validation split of --data; 0: none.", RUN, min=0)
    ] = 0
    eval_size: Annotated[int, option("Puzzles of an evaluation, the first of the split.", RUN, min=1)] = 200
    keep: Annotated[
        Literal["last", "best"], option("Weights to write: of the last step, or of the best evaluation.", RUN)
    ] = "last"
    report_to: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        option("Tracker, offline, beside the log; repeatable.", RUN),
    ] = ()

    @property
    def kind(self) -> str:
        """The kind of the artifact that is written."""
        return "adapter" if self.tune == "lora" else "model"

    @property
    @abstractmethod
    def step_size(self) -> int:
        """Examples of an optimiser step."""

    def micro_batches(self, processes: int) -> int:
        """Return the micro-batches of a step in each of so many processes."""
        if self.step_size % (self.micro_batch * processes):
            raise UsageError(
                f"{processes} processes cannot share the {self.step_size} examples of a step evenly in batches of "
                f"--micro-batch {self.micro_batch}; lower that, or give a step more examples."
            )
        return self.step_size // (self.micro_batch * processes)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.micro_batch:
            fitting = max(size for size in range(1, MAX_MICRO_BATCH + 1) if self.step_size % size == 0)
            object.__setattr__(self, "micro_batch", fitting)
        if self.step_size % self.micro_batch:
            raise UsageError(
                f"--micro-batch {self.micro_batch} does not divide the {self.step_size} examples of a step."
            )


@dataclass(frozen=True)
class SftOptions(TuningOptions):
    """Supervised fine-tuning of a LoRA adapter or of all weights."""

    from_hub: Annotated[
        tuple[str, ...],
        option(
            "Hub data set, without its test and validation splits; repeatable.",
            DEMONSTRATIONS,
            metavar="NAME[:CONFIG][@REVISION]",
        ),
    ] = ()
    demonstrator: Annotated[
        str | None,
        option("Baseline whose answers to the training puzzles of --data are demonstrations.", DEMONSTRATIONS),
    ] = None
    keep_wrong: Annotated[bool, option("Also train on answers that are wrong by the grader.", DEMONSTRATIONS)] = False
    max_length: Annotated[
        int, option("Maximum tokens of prompt and completion; longer ones are an error.", DEMONSTRATIONS, min=8)
    ] = 1_024
    packing: Annotated[bool, option("Pack several demonstrations into sequences of --max-length.", DEMONSTRATIONS)] = (
        False
    )

    num_train_epochs: Annotated[float, option("Passes through the demonstrations.", BATCH, min=0)] = 3.0
    max_steps: Annotated[int, option("Optimiser steps; 0: by --num-train-epochs.", BATCH, min=0)] = 0
    batch_size: Annotated[int, option("Demonstrations (packed sequences) per step.", BATCH, min=1)] = 16
    learning_rate: Annotated[
        float | None, option("Peak learning rate.", OPTIMISER, min=0, max=1, show_default="by size, see docs/models.md")
    ] = None
    warmup_steps: Annotated[int, option("Steps of linear warmup.", OPTIMISER, min=0)] = 10
    weight_decay: Annotated[float, option("Decoupled weight decay.", OPTIMISER, min=0)] = 0.0
    max_grad_norm: Annotated[float, option("Maximum gradient norm.", OPTIMISER, min=0)] = 1.0
    max_completion_length: Annotated[int, option("Maximum tokens of a completion in an evaluation.", RUN, min=1)] = 256

    @property
    def step_size(self) -> int:
        return self.batch_size

    def rate(self, parameters: int) -> float:
        """Return the peak learning rate for a model of so many *parameters*, where none is given.

        LoRA: that of QLoRA (Dettmers et al. 2023, arXiv:2305.14314, table 9), 2e-4 up to 13 billion parameters and
        1e-4 above. All weights: a tenth of it ("LoRA Without Regret", Thinking Machines Lab 2025), which is also TRL's
        default of 2e-5; 1e-4 for models below half a billion, which learn at higher rates (SmolLM2-135M: up to 1e-3).
        """
        if self.learning_rate is not None:
            return self.learning_rate
        if self.tune == "lora":
            return 2e-4 if parameters <= 13e9 else 1e-4
        return 2e-5 if parameters > 5e8 else 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_steps and not self.num_train_epochs:
            raise UsageError("--num-train-epochs 0 trains nothing; give more, or --max-steps.")
        if self.tune == "all" and self.precision == "nf4":
            raise UsageError("--tune all cannot train weights in 4 bits; leave --precision nf4 out.")
        if self.keep == "best" and not self.eval_every:
            raise UsageError("--keep best needs evaluations; add --eval-every.")


@dataclass(frozen=True)
class CollectOptions(Options):
    """Selection among the completions of evaluations."""

    per_puzzle: Annotated[int, option("Most completions, or pairs, of a puzzle; 0: all.", min=0)] = 0
    shortest: Annotated[bool, option("Take the shortest of a puzzle first.", name="--shortest")] = False
    max_tokens: Annotated[int, option("Leave out completions of more tokens; 0: none.", min=0)] = 0
    pairs: Annotated[
        bool, option("Write preference pairs for TRL: a right and a wrong completion each.", name="--pairs")
    ] = False
    model: Annotated[
        str | None, option("Model whose chat template --pairs are for.", show_default="the evaluated one")
    ] = None

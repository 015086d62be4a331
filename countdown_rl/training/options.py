"""Options of ``train``, ``sft`` and ``collect``, and the table of losses."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.options import Options, Precision, option
from countdown_rl.tasks.options import Fields, RecordsPath
from countdown_rl.training import trl_fields

DEMONSTRATIONS, BATCH, LOSS, COMPLETIONS = "Demonstrations", "Batch", "Loss", "Completions"
OPTIMIZER, MODEL, RUN = "Optimizer", "Weights and precision", "Run"

#: Largest ``micro_batch`` that is chosen where the option is 0.
MAX_MICRO_BATCH = 16
#: Puzzles of an evaluation during training, the first of the validation split.
EVAL_SIZE = 200
#: Fields of TRL that only say where a run is shown.
TRACKERS = ("report_to=", "run_name=")


@dataclass(frozen=True)
class Loss:
    """How a loss of TRL's GRPO combines tokens."""

    #: A sum over the tokens of a step divided by their number, a mean over the rows of a
    #: micro-batch, or "": a mean over its tokens, which depends on how a step is cut.
    sum_over: Literal["step", "rows", ""]
    by_token: bool = False  # a token adds to the gradient whatever the other tokens of its row are
    epsilon_high: float = 0.28  # the upper clipping, where --trl epsilon_high does not give it


LOSSES = {
    "dapo": Loss("step", by_token=True),
    "grpo": Loss("rows"),
    "dr_grpo": Loss("rows"),
    "bnpo": Loss(""),
    # Its bound is on the ratios themselves, and is that of ScaleRL.
    "cispo": Loss("step", by_token=True, epsilon_high=5.0),
    "sapo": Loss("rows"),
    "vespo": Loss("step"),
    "luspo": Loss("rows"),
}
ADVANTAGES = ("group", "leave-one-out", "max-rl")
SAMPLERS = ("uniform", "curriculum", "dynamic")


@dataclass(frozen=True, kw_only=True)
class RunArguments(Options):
    """Inputs and outputs of a run."""

    model: Annotated[
        str, option("countdown-tiny, a directory of a stage, a GGUF file or a Hub id[@REVISION].")
    ] = "countdown-tiny"
    trust_remote_code: Annotated[bool, option("Run code that comes with the model.")] = False
    data: Annotated[
        Path | None, option("Directory of gen-data, or JSONL, JSON, CSV or Parquet.")
    ] = Path("artifacts/data")
    out: Annotated[
        Path | None,
        option("Directory to write.", show_default="artifacts/adapter or artifacts/model"),
    ] = None
    log: Annotated[
        Path | None,
        option(
            "CSV log, with checkpoints beside it.",
            RUN,
            show_default="OUT-run/log.csv with --out OUT",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SftArguments(RunArguments):
    """Inputs and outputs of a run of ``sft``."""

    out: Annotated[Path | None, option("Directory to write.", show_default="artifacts/sft")] = None
    data: Annotated[
        Path | None,
        option(
            "Data: its test puzzles are skipped, its validation puzzles evaluated.", DEMONSTRATIONS
        ),
    ] = None
    files: Annotated[
        tuple[Path, ...],
        option("JSONL, JSON, CSV, Parquet; repeatable.", DEMONSTRATIONS, "--from", metavar="FILE"),
    ] = ()


@dataclass(frozen=True)
class TuningOptions(Options):
    """Options of every training; names of PEFT and TRL have their meaning there."""

    method: ClassVar[Literal["grpo", "sft"]]
    command: ClassVar[str]
    #: Default learning rate schedule.
    SCHEDULE: ClassVar[str]
    #: Parameters from which ``precision`` auto holds the base of an adapter in NF4.
    NF4_FROM: ClassVar[float] = inf
    #: Default peak learning rates: the most parameters they are for, the rate of an adapter, that
    #: of all weights.
    RATES: ClassVar[tuple[tuple[float, float, float], ...]]

    micro_batch: Annotated[int, option("Examples per forward pass; 0: up to 16.", BATCH, min=0)] = 0
    learning_rate: Annotated[
        float | None,
        option(
            "Peak learning rate.",
            OPTIMIZER,
            min=0,
            max=1,
            show_default="by size, see docs/models.md",
        ),
    ] = None
    trl: Annotated[
        tuple[str, ...],
        option(
            "Field of TRL's configuration, such as lr_scheduler_type=cosine; repeatable.",
            OPTIMIZER,
            metavar="KEY=VALUE",
        ),
    ] = ()

    tune: Annotated[
        Literal["lora", "all"], option("Train a LoRA adapter, or all weights.", MODEL)
    ] = "lora"
    lora_r: Annotated[int, option("LoRA rank.", MODEL, min=1, max=4096)] = 16
    lora_alpha: Annotated[int, option("LoRA scale: alpha / r.", MODEL, min=1)] = 32
    precision: Annotated[
        Precision,
        option("Precision of the base; nf4 (QLoRA) is the default of train from 0.5B on.", MODEL),
    ] = "auto"

    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
    save_steps: Annotated[int, option("Steps between checkpoints; 0: none.", RUN, min=0)] = 25
    keep_checkpoints: Annotated[
        int,
        option("Checkpoints to keep after the run, the last ones; 0: none.", RUN, min=0),
    ] = 0
    eval_every: Annotated[
        int, option("Steps between evaluations on validation puzzles; 0: none.", RUN, min=0)
    ] = 0
    keep: Annotated[
        Literal["last", "best"], option("Weights to write: last step or best evaluation.", RUN)
    ] = "last"

    @property
    def round_steps(self) -> int:
        """Optimizer steps after which a run can be resumed."""
        return 1

    @property
    @abstractmethod
    def step_size(self) -> int:
        """Examples of an optimizer step."""

    @property
    def per_device_batch(self) -> int:
        """``micro_batch``, or the largest one by which the processes share a step evenly."""
        count = processes.world_size()
        sizes = range(MAX_MICRO_BATCH, 1, -1)
        even = (size for size in sizes if self.step_size % (size * count) == 0)
        return self.micro_batch or next(even, 1)

    @property
    def recorded(self) -> dict[str, object]:
        options = super().recorded | {"micro_batch": self.per_device_batch}
        # They change no weights.
        del options["save_steps"], options["keep_checkpoints"]
        options["trl"] = [item for item in self.trl if not item.startswith(TRACKERS)]
        return options

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step in each process."""
        return self.step_size // (self.per_device_batch * processes.world_size())

    def __post_init__(self) -> None:
        super().__post_init__()
        trl_fields.split(self.trl)
        for sentence in self._conflicts():
            raise UsageError(sentence)

    def _conflicts(self) -> Iterator[str]:
        """Sentences about options that exclude each other, or have no effect without another."""
        count = processes.world_size()
        if self.step_size % (self.per_device_batch * count):
            yield (
                f"--micro-batch {self.per_device_batch} does not divide the {self.step_size} "
                f"examples of a step (WORLD_SIZE {count})."
            )
        if self.tune == "all" and self.precision == "nf4":
            yield "--tune all with --precision nf4: 4 bits are frozen; add --precision auto."
        if self.tune == "all" and (name := self.given("lora_r", "lora_alpha")):
            yield f"--tune all trains no adapter; leave {flag(name)} out."
        if self.keep == "best" and not self.eval_every:
            yield "--keep best needs evaluations; add --eval-every."

    def given(self, *names: str) -> str:
        """The first of the options *names* that has another value than its default, or ""."""
        changed = (name for name in names if getattr(self, name) != getattr(type(self), name))
        return next(changed, "")

    def quantizes(self, parameters: int) -> bool:
        """Return True if ``precision`` auto is NF4 for a model with so many *parameters*."""
        return self.tune == "lora" and parameters >= self.NF4_FROM

    def rate(self, parameters: int) -> float:
        """The peak learning rate for a model with so many *parameters*, see docs/models.md."""
        if self.learning_rate is not None:
            return self.learning_rate
        _, adapter, all_weights = next(rates for rates in self.RATES if parameters <= rates[0])
        return adapter if self.tune == "lora" else all_weights


@dataclass(frozen=True)
class TrainOptions(TuningOptions):
    """GRPO training of a LoRA adapter or of all weights; ``micro_batch`` counts completions."""

    method, command, SCHEDULE = "grpo", "train", "constant"
    NF4_FROM, RATES = 5e8, ((5e8, 2e-4, 1e-5), (inf, 1e-5, 1e-6))

    max_steps: Annotated[int, option("Optimizer steps.", BATCH, min=1)] = 200
    prompts: Annotated[int, option("Puzzles per step.", BATCH, min=1)] = 8
    num_generations: Annotated[
        int, option("Completions per puzzle (group size).", BATCH, min=2)
    ] = 16
    sampler: Annotated[
        str,
        option(
            "Choice of puzzles: uniform, curriculum (oversample kinds with intermediate success "
            "rates), dynamic (resample groups whose rewards have zero variance, DAPO), or your own "
            "as module:function.",
            BATCH,
            metavar="NAME",
        ),
    ] = "uniform"

    reward: Annotated[
        tuple[str, ...],
        option(
            "Reward and weight; repeatable. correct, format, strict-format, well-formed, "
            "closeness, no-trailing, integer, length:TOKENS, proxy:NAME, or your own as "
            "module:function (docs/rewards.md).",
            LOSS,
            metavar="NAME=WEIGHT",
        ),
    ] = ("correct=1", "format=0.1")
    loss_type: Annotated[
        str,
        option(
            f"Loss, by the names of TRL: {', '.join(LOSSES)}; or your own as module:function.",
            LOSS,
            metavar="NAME",
        ),
    ] = "dapo"
    advantage: Annotated[
        str,
        option(
            "Advantage: group (reward less the mean of the group), leave-one-out (RLOO), max-rl, "
            "or your own as module:function.",
            LOSS,
            metavar="NAME",
        ),
    ] = "group"
    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        option("Divide advantages by the standard deviation of rewards.", LOSS),
    ] = "none"
    beta: Annotated[
        float, option("Weight of the KL divergence from the initial model.", LOSS, min=0)
    ] = 0.0
    discount: Annotated[
        float,
        option(
            "Per-line credit: a line followed by k lines gets reward * discount^k.",
            LOSS,
            min=0.5,
            max=1,
        ),
    ] = 1.0

    rollouts: Annotated[
        Literal["auto", "transformers", "vllm"], option("Sampling engine.", COMPLETIONS)
    ] = "auto"
    temperature: Annotated[float, option("Sampling temperature.", COMPLETIONS, min=0.01, max=2)] = (
        1.0
    )
    max_completion_length: Annotated[
        int, option("Maximum tokens of a completion.", COMPLETIONS, min=1)
    ] = 256

    @property
    def recorded(self) -> dict[str, object]:
        rewards = []
        for spec in sorted(self.reward):
            name, _, weight = spec.partition("=")
            rewards.append(f"{name}={weight or 1}".removesuffix(".0"))
        return super().recorded | {"reward": rewards}

    @property
    def round_steps(self) -> int:
        return int(trl_fields.split(self.trl).get("num_iterations", 1))

    @property
    def step_size(self) -> int:
        return self.prompts * self.num_generations

    @property
    def own_loss(self) -> bool:
        """True if ``loss_type`` is a function of the user's."""
        return ":" in self.loss_type

    @property
    def aggregation(self) -> Loss:
        """The entry of the loss in the table of losses, or that of a loss of the user's own."""
        return Loss("step") if self.own_loss else LOSSES[self.loss_type]

    def _conflicts(self) -> Iterator[str]:
        tables = {"loss_type": LOSSES, "advantage": ADVANTAGES, "sampler": SAMPLERS}
        for name, known in tables.items():
            value = getattr(self, name)
            if ":" not in value and value not in known:
                yield f"{flag(name)} {value} is not one of: {', '.join(known)}, module:function."
        yield from super()._conflicts()
        count = trl_fields.split(self.trl).get("num_iterations", "1")
        if not (count.isdecimal() and int(count)):
            yield f"--trl num_iterations={count}: give 1 or more."
        # A function of the user's may ask for tokens.
        replaced = self.advantage == "max-rl" or ":" in self.advantage
        if replaced and (name := self.given("discount", "scale_rewards")):
            yield f"--advantage {self.advantage} replaces {flag(name)}; leave one out."
        if self.discount < 1 and self.scale_rewards != "none":
            yield (
                f"--discount {self.discount} with --scale-rewards {self.scale_rewards}: advantages "
                "per line are not divided by a deviation; add --scale-rewards none."
            )
        grouped = self.discount < 1 or self.sampler == "dynamic" or ":" in self.advantage
        world = processes.world_size()
        if grouped and self.prompts % world:
            yield (
                "a process compares the completions of a puzzle with --discount, --sampler dynamic "
                f"or an --advantage of your own, and {world} processes cannot share "
                f"{plural(self.prompts, 'puzzle')} evenly; change --prompts."
            )


@dataclass(frozen=True)
class SftOptions(TuningOptions):
    """Supervised fine-tuning of a LoRA adapter or of all weights."""

    method = command = "sft"
    SCHEDULE = "cosine"
    RATES = ((5e8, 2e-4, 1e-4), (13e9, 2e-4, 2e-5), (inf, 1e-4, 2e-5))

    field: Fields = ()
    records: RecordsPath = None
    demonstrator: Annotated[
        str | None,
        option(
            "Answer --data by a baseline (solver, random), or your own as module:function.",
            DEMONSTRATIONS,
            metavar="NAME",
        ),
    ] = None
    keep_wrong: Annotated[
        bool, option("Also train on answers that the grader rejects.", DEMONSTRATIONS)
    ] = False

    num_train_epochs: Annotated[
        float, option("Passes through the demonstrations.", BATCH, min=0)
    ] = 3.0
    max_steps: Annotated[
        int, option("Optimizer steps; 0: by --num-train-epochs.", BATCH, min=0)
    ] = 0
    batch_size: Annotated[int, option("Demonstrations per step.", BATCH, min=1)] = 16
    max_completion_length: Annotated[
        int, option("Maximum tokens of a completion or a search.", RUN, min=1)
    ] = 256

    @property
    def step_size(self) -> int:
        return self.batch_size

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        if not self.max_steps and not self.num_train_epochs:
            yield "--num-train-epochs 0 trains nothing; give more, or --max-steps."
        if self.max_steps and self.given("num_train_epochs"):
            yield "--max-steps replaces --num-train-epochs; leave one out."


@dataclass(frozen=True)
class CollectOptions(Options):
    """Selection among the completions of evaluations."""

    per_puzzle: Annotated[int, option("Maximum completions per puzzle; 0: all.", min=0)] = 0

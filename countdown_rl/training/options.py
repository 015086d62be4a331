"""Options of ``train``, ``sft`` and ``collect``, and the table of losses."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.options import Options, Precision, option

DEMONSTRATIONS, BATCH, LOSS, COMPLETIONS = "Demonstrations", "Batch", "Loss", "Completions"
OPTIMIZER, MODEL, RUN = "Optimizer", "Weights and precision", "Run"

#: Most examples of an optimizer step.
MAX_STEP = 2**20
#: Largest ``micro_batch`` that is chosen where the option is 0, and on a GPU whose memory allows it.
MAX_MICRO_BATCH, MAX_GPU_MICRO_BATCH = 16, 32


@dataclass(frozen=True)
class Loss:
    """How a loss of TRL's GRPO combines tokens, and what it allows."""

    #: A sum over the tokens of a step divided by their number, a mean over the rows of a micro-batch, or else a mean
    #: over the tokens of a micro-batch, which depends on how a step is cut.
    sum_over: Literal["step", "rows", ""]
    by_token: bool = False  # a token adds to the gradient whatever the other tokens of its row are
    epsilon_high: float = 0.28  # the upper clipping, where --trl epsilon_high does not give it
    by_sequence: bool = True  # --trl importance_sampling_level=sequence is possible
    fields: tuple[str, ...] = (
        "epsilon",
        "delta",
    )  # beginnings of the fields of --trl that only some losses use


LOSSES = {
    "dapo": Loss("step", by_token=True),
    "grpo": Loss("rows"),
    "dr_grpo": Loss("rows"),
    "bnpo": Loss(""),
    # Its bound is on the ratios themselves, and is that of ScaleRL.
    "cispo": Loss("step", by_token=True, epsilon_high=5.0, fields=("epsilon_high",)),
    "sapo": Loss("rows", fields=("sapo_",)),
    "vespo": Loss(
        "step", by_sequence=False, fields=("vespo_",)
    ),  # it has weights per completion of its own
    "luspo": Loss("rows"),
}
#: A loss of the user's own, and the fields of ``--trl`` that it does not use.
_OWN = Loss("step", fields=())
_NOT_OWN = (
    "entropy_",
    "importance_sampling_level",
    "off_policy_mask",
    "top_entropy",
    "use_adaptive_entropy",
)
#: Fields of ``--trl`` that restrict the sampled tokens, and those of the KL divergence.
_RESTRICTIONS = ("top_p", "top_k", "min_p")
_WITH_BETA = (
    "sync_ref_model",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "use_bias_correction_kl",
)
_WARMUP = "{0} constant has no warmup; give {0} constant_with_warmup, or leave {1} out."

Schedule = Annotated[
    Literal["constant", "linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"],
    option("Learning rate schedule.", OPTIMIZER),
]


@dataclass(frozen=True, kw_only=True)
class RunArguments(Options):
    """Inputs and outputs of a run."""

    model: Annotated[
        str, option("countdown-tiny, a directory of a stage, a GGUF file or a Hub id.")
    ] = "countdown-tiny"
    revision: Annotated[str | None, option("Revision of a Hub model.")] = None
    base_model: Annotated[
        str | None, option("Base of an adapter, if not the recorded.", metavar="MODEL")
    ] = None
    trust_remote_code: Annotated[bool, option("Run code that comes with the model.")] = False
    data: Annotated[
        Path | None, option("Directory of gen-data, or JSONL, JSON, CSV or Parquet.")
    ] = Path("artifacts/data")
    out: Annotated[
        Path | None,
        option("Directory to write.", show_default="artifacts/adapter or artifacts/model"),
    ] = None
    log: Annotated[
        Path | None, option("CSV log.", RUN, show_default="OUT-run/log.csv with --out OUT")
    ] = None
    checkpoints: Annotated[
        Path | None, option("Directory of checkpoints.", RUN, show_default="beside the log")
    ] = None
    restart: Annotated[
        bool, option("Ignore checkpoints and start again.", RUN, name="--restart")
    ] = False


@dataclass(frozen=True, kw_only=True)
class SftArguments(RunArguments):
    """The same of a run of ``sft``."""

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
    """Options of every training; names of PEFT's ``LoraConfig`` and of TRL's configurations have their meaning."""

    method: ClassVar[Literal["grpo", "sft"]]
    command: ClassVar[str]
    #: Parameters from which ``precision`` auto holds the base of an adapter in NF4.
    NF4_FROM: ClassVar[float] = inf
    #: Default peak learning rates: the most parameters they are for, the rate of an adapter, that of all weights.
    RATES: ClassVar[tuple[tuple[float, float, float], ...]]

    micro_batch: Annotated[
        int,
        option(
            "Examples per forward pass; 0: up to 16, on a GPU as many as fit, up to 32.",
            BATCH,
            min=0,
        ),
    ] = 0
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
    lr_scheduler_type: Schedule = "cosine"

    tune: Annotated[
        Literal["lora", "all"], option("Train a LoRA adapter, or all weights.", MODEL)
    ] = "lora"
    lora_r: Annotated[int, option("LoRA rank.", MODEL, min=1, max=4096)] = 16
    lora_alpha: Annotated[int, option("LoRA scale: alpha / r.", MODEL, min=1)] = 32
    lora_dropout: Annotated[float, option("LoRA dropout.", MODEL, min=0, max=1)] = 0.0
    precision: Annotated[Precision, option("Precision of the base; nf4 is QLoRA.", MODEL)] = "auto"
    gradient_checkpointing: Annotated[
        bool, option("Recompute activations: less memory, 20% slower.", MODEL)
    ] = False

    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
    threads: Annotated[int, option("CPU threads; 0: all available.", RUN, min=0)] = 0
    save_steps: Annotated[int, option("Steps between checkpoints; 0: none.", RUN, min=0)] = 25
    eval_every: Annotated[
        int, option("Steps between evaluations on validation puzzles; 0: none.", RUN, min=0)
    ] = 0
    eval_size: Annotated[
        int, option("Puzzles of an evaluation, the first of the split.", RUN, min=1)
    ] = 200
    eval_samples: Annotated[
        int, option("Completions of each; N above 1 also logs pass@N.", RUN, min=1, max=4096)
    ] = 1
    eval_temperature: Annotated[
        float, option("Temperature of an evaluation; 0: greedy.", RUN, min=0, max=2)
    ] = 0.0
    keep: Annotated[
        Literal["last", "best"], option("Weights to write: last step or best evaluation.", RUN)
    ] = "last"
    report_to: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        option("Offline tracker; repeatable.", RUN),
    ] = ()

    @property
    def kind(self) -> str:
        """The kind of the artifact that is written."""
        return "adapter" if self.tune == "lora" else "model"

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
        """``micro_batch``, or the largest one that divides a step."""
        sizes = (size for size in range(MAX_MICRO_BATCH, 0, -1) if self.step_size % size == 0)
        return self.micro_batch or next(sizes)

    @property
    def recorded(self) -> dict[str, object]:
        return super().recorded | {"micro_batch": self.per_device_batch}

    def micro_batches(self, processes: int) -> int:
        """The micro-batches of a step in each process."""
        if self.step_size % (self.per_device_batch * processes):
            raise UsageError(
                f"{processes} processes cannot share the {self.step_size} examples of a step evenly in batches of "
                f"--micro-batch {self.per_device_batch}; lower that, or give a step more examples."
            )
        return self.step_size // (self.per_device_batch * processes)

    def __post_init__(self) -> None:
        super().__post_init__()
        for sentence in self._conflicts():
            raise UsageError(sentence)

    def _conflicts(self) -> Iterator[str]:
        """Sentences about options that exclude each other, or that have no effect without another one."""
        if self.step_size > MAX_STEP:
            yield f"a step has {plural(self.step_size, 'example')}, more than {MAX_STEP:,}; give it fewer."
        if self.step_size % self.per_device_batch:
            yield f"--micro-batch {self.micro_batch} does not divide the {self.step_size} examples of a step."
        if self.tune == "all" and self.precision == "nf4":
            yield "--tune all with --precision nf4: 4 bits are frozen; add --precision auto."
        if self.tune == "all" and (name := self.given("lora_r", "lora_alpha", "lora_dropout")):
            yield f"--tune all trains no adapter; leave {flag(name)} out."
        evaluation = self.given("eval_size", "eval_samples", "eval_temperature", "keep")
        if evaluation and not self.eval_every:
            yield f"{flag(evaluation)} needs evaluations; add --eval-every."
        if self.eval_samples > 1 and not self.eval_temperature:
            yield "--eval-samples needs --eval-temperature above 0; greedy completions are the same."

    def given(self, *names: str) -> str:
        """The first of the options *names* that has another value than its default, or ""."""
        defaults = {field.name: field.default for field in fields(self)}
        return next((name for name in names if getattr(self, name) != defaults[name]), "")

    def peak(self, max_steps: int, warmup_steps: int | None) -> float:
        """The highest learning rate that a run of *max_steps* reaches; the first step of a warmup has none."""
        return self.rate(0) * min(1.0, (max_steps - 1) / warmup_steps if warmup_steps else 1.0)

    def quantizes(self, parameters: int) -> bool:
        """Return True if ``precision`` auto is NF4 for a model with so many *parameters*."""
        return self.tune == "lora" and parameters >= self.NF4_FROM

    def rate(self, parameters: int) -> float:
        """The peak learning rate for a model with so many *parameters*; docs/models.md has the sources."""
        if self.learning_rate is not None:
            return self.learning_rate
        _, adapter, all_weights = next(rates for rates in self.RATES if parameters <= rates[0])
        return adapter if self.tune == "lora" else all_weights


@dataclass(frozen=True)
class TrainOptions(TuningOptions):
    """GRPO training of a LoRA adapter or of all weights; ``micro_batch`` counts completions."""

    method, command = "grpo", "train"
    NF4_FROM, RATES = 5e8, ((5e8, 2e-4, 1e-5), (inf, 1e-5, 1e-6))

    max_steps: Annotated[int, option("Optimizer steps.", BATCH, min=1)] = 200
    prompts: Annotated[int, option("Puzzles per step.", BATCH, min=1)] = 8
    num_generations: Annotated[
        int, option("Completions per puzzle (group size).", BATCH, min=2)
    ] = 16
    steps_per_generation: Annotated[
        int, option("Steps per round, each on its own completions.", BATCH, min=1)
    ] = 1
    num_iterations: Annotated[int, option("GRPO iterations per batch (mu).", BATCH, min=1)] = 1
    curriculum: Annotated[
        bool, option("Oversample puzzle kinds with intermediate success rates.", BATCH)
    ] = False
    sampler: Annotated[
        str | None, option("Your own choice of puzzles.", BATCH, metavar="MODULE:FUNCTION")
    ] = None
    dynamic_sampling: Annotated[
        bool, option("Resample groups whose rewards have zero variance (DAPO).", BATCH)
    ] = False

    reward: Annotated[
        tuple[str, ...],
        option(
            "Reward and weight; repeatable. correct, format, strict-format, well-formed, closeness, no-trailing, "
            "integer, length:TOKENS, proxy:NAME, or your own as module:function (docs/rewards.md).",
            LOSS,
            metavar="NAME=WEIGHT",
        ),
    ] = ("correct=1", "format=0.1")
    loss_type: Annotated[Literal[*LOSSES], option("Loss, by the names of TRL.", LOSS)] = "dapo"  # type: ignore[valid-type]
    loss: Annotated[
        str | None, option("Loss of your own, per token.", LOSS, metavar="MODULE:FUNCTION")
    ] = None
    baseline: Annotated[
        Literal["group", "leave-one-out"],
        option("Subtract the mean reward of the group or, RLOO, of the others.", LOSS),
    ] = "group"
    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        option("Divide advantages by the standard deviation of rewards.", LOSS),
    ] = "none"
    advantage: Annotated[
        str | None,
        option(
            "Replaces --baseline and --scale-rewards: max-rl, or module:function.",
            LOSS,
            metavar="NAME",
        ),
    ] = None
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
    trl: Annotated[
        tuple[str, ...],
        option(
            "Field of TRL's GRPOConfig (docs/rewards.md); repeatable.", LOSS, metavar="KEY=VALUE"
        ),
    ] = ()

    rollouts: Annotated[
        Literal["auto", "transformers", "vllm", "vllm-server"],
        option(
            "Sampling engine. vllm: in the run; vllm-server: at --trl vllm_server_base_url=URL.",
            COMPLETIONS,
        ),
    ] = "auto"
    temperature: Annotated[float, option("Sampling temperature.", COMPLETIONS, min=0.01, max=2)] = (
        1.0
    )
    max_completion_length: Annotated[
        int, option("Maximum tokens of a completion.", COMPLETIONS, min=1)
    ] = 256

    lr_scheduler_type: Schedule = "constant"
    precision: Annotated[
        Precision, option("Precision of the base; auto: nf4 (QLoRA) from 0.5B on.", MODEL)
    ] = "auto"

    @property
    def round_steps(self) -> int:
        return self.steps_per_generation * self.num_iterations

    @property
    def step_size(self) -> int:
        return self.prompts * self.num_generations

    @property
    def aggregation(self) -> Loss:
        """The entry of the loss in the table of losses, or that of a loss of the user's own."""
        return _OWN if self.loss else LOSSES[self.loss_type]

    @property
    def trl_fields(self) -> dict[str, str]:
        """The values of ``--trl KEY=VALUE``, as text."""
        return dict(item.split("=", 1) for item in self.trl)

    def micro_batches(self, processes: int) -> int:
        own = "advantage" if ":" in (self.advantage or "") else ""  # a function may ask for tokens
        grouped = self.given("discount", "dynamic_sampling") or own
        if grouped and self.prompts * self.steps_per_generation % processes:
            raise UsageError(
                f"compares the completions of a puzzle in one process, and {processes} processes "
                f"cannot share {plural(self.prompts, 'puzzle')} evenly; change --prompts.",
                option=grouped,
            )
        return super().micro_batches(processes)

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        for item in self.trl:
            if not item.partition("=")[1] or not item.partition("=")[0].isidentifier():
                yield f"--trl {item} is not of the form key=value."
        if self.curriculum and self.sampler:
            yield "--curriculum with --sampler: both choose the puzzles; leave one out."
        if self.dynamic_sampling and (order := self.given("curriculum", "sampler")):
            yield f"--dynamic-sampling with {flag(order)}, which would see no equal rewards: leave one out."
        if self.advantage and (name := self.given("baseline", "discount", "scale_rewards")):
            yield f"--advantage replaces {flag(name)}; leave one out."
        if self.loss and self.given("loss_type"):
            yield "--loss replaces --loss-type; leave one out."
        if self.discount < 1 and self.scale_rewards != "none":
            scale = "--scale-rewards"
            yield (
                f"--discount {self.discount} with {scale} {self.scale_rewards}: advantages per line are not "
                f"divided by a deviation; add {scale} none."
            )
        yield from self._trl_conflicts()

    def _trl_conflicts(self) -> Iterator[str]:
        """Sentences about values of ``--trl`` that exclude an option, or that have no effect."""
        given, trl = self.trl_fields, "--trl"
        by_sum = self.given("advantage", "baseline", "discount")
        if by_sum and given.get("multi_objective_aggregation") == "normalize_then_sum":
            yield f"{flag(by_sum)} uses the sum of rewards; leave {trl} multi_objective_aggregation out."
        loss = f"--loss-type {self.loss_type}"
        loss = f"--loss {self.loss}" if self.loss else loss
        if (
            not self.aggregation.by_sequence
            and given.get("importance_sampling_level") == "sequence"
        ):
            yield f"{loss} has weights per completion of its own; leave {trl} importance_sampling_level=sequence out."
        mode = given.get("vllm_importance_sampling_mode", "")
        if mode.startswith("sequence_") and (
            restriction := next((key for key in _RESTRICTIONS if key in given), "")
        ):
            # vLLM's log-probabilities are then those of the restricted distribution, and over a whole completion the
            # ratio is the product of the probabilities of the tokens that remain (huggingface/trl issue 6789).
            yield (
                f"{trl} {restriction}={given[restriction]} with {trl} vllm_importance_sampling_mode={mode}: without "
                "unlikely tokens the ratio of a whole completion is near 0; leave the mode out."
            )
        if self.lr_scheduler_type == "constant" and given.get("warmup_steps", "0").strip("0."):
            yield _WARMUP.format("--lr-scheduler-type", f"{trl} warmup_steps")
        engine = {"transformers": "vllm_", "vllm": "vllm_server_"}.get(self.rollouts, " ")
        for key in given:
            if key.startswith(engine):
                yield f"--rollouts {self.rollouts} does not use {trl} {key}; leave one out."
            if not self.beta and key in _WITH_BETA:
                yield f"{trl} {key} changes the KL divergence, which has no weight; add --beta."
            of_losses = any(key.startswith(entry.fields) for entry in LOSSES.values())
            unused = of_losses and not key.startswith(self.aggregation.fields)
            if unused or (self.loss and key.startswith(_NOT_OWN)):
                yield f"{loss} does not use {trl} {key}; leave one out."


@dataclass(frozen=True)
class SftOptions(TuningOptions):
    """Supervised fine-tuning of a LoRA adapter or of all weights."""

    method = command = "sft"
    RATES = ((5e8, 2e-4, 1e-4), (13e9, 2e-4, 2e-5), (inf, 1e-4, 2e-5))

    from_hub: Annotated[
        tuple[str, ...],
        option("Hub data set; repeatable.", DEMONSTRATIONS, metavar="NAME[:CONFIG][@REVISION]"),
    ] = ()
    demonstrator: Annotated[
        str | None,
        option(
            "Answer --data by search, stream-of-search or a baseline.",
            DEMONSTRATIONS,
            metavar="NAME",
        ),
    ] = None
    keep_wrong: Annotated[
        bool, option("Also train on answers that the grader rejects.", DEMONSTRATIONS)
    ] = False
    max_length: Annotated[
        int, option("Maximum tokens of prompt and completion.", DEMONSTRATIONS, min=8)
    ] = 1_024

    num_train_epochs: Annotated[
        float, option("Passes through the demonstrations.", BATCH, min=0)
    ] = 3.0
    max_steps: Annotated[
        int, option("Optimizer steps; 0: by --num-train-epochs.", BATCH, min=0)
    ] = 0
    batch_size: Annotated[int, option("Demonstrations per step.", BATCH, min=1)] = 16
    warmup_steps: Annotated[
        int | None,
        option(
            "Steps of linear warmup.",
            OPTIMIZER,
            min=0,
            show_default="10, at most a tenth of the run",
        ),
    ] = None
    weight_decay: Annotated[float, option("Decoupled weight decay.", OPTIMIZER, min=0)] = 0.0
    max_grad_norm: Annotated[float, option("Maximum gradient norm.", OPTIMIZER, min=0)] = 1.0
    max_completion_length: Annotated[
        int, option("Maximum tokens of a completion or a search.", RUN, min=1)
    ] = 256

    @property
    def step_size(self) -> int:
        return self.batch_size

    def warmup(self, max_steps: int) -> int:
        """The steps of warmup of a run of *max_steps*."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return 0 if self.lr_scheduler_type == "constant" else min(10, max_steps // 10)

    def _conflicts(self) -> Iterator[str]:
        yield from super()._conflicts()
        if not self.max_steps and not self.num_train_epochs:
            yield "--num-train-epochs 0 trains nothing; give more, or --max-steps."
        if self.max_steps and self.given("num_train_epochs"):
            yield "--max-steps replaces --num-train-epochs; leave one out."
        if self.lr_scheduler_type == "constant" and self.warmup_steps:
            yield _WARMUP.format("--lr-scheduler-type", "--warmup-steps")


@dataclass(frozen=True)
class CollectOptions(Options):
    """Selection among the completions of evaluations."""

    per_puzzle: Annotated[int, option("Maximum completions per puzzle; 0: all.", min=0)] = 0
    shortest: Annotated[
        bool, option("Select the shortest completions of a puzzle first.", name="--shortest")
    ] = False
    max_tokens: Annotated[int, option("Skip longer completions; 0: no limit.", min=0)] = 0

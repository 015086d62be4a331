"""A run of ``train`` or ``sft`` that was checked and can start: what GRPO and supervised fine-tuning share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch.nn import Module
from transformers import Trainer

from countdown_rl.core import packages, process_state, processes
from countdown_rl.core.errors import CountdownError, UsageError
from countdown_rl.core.formatting import flag
from countdown_rl.core.identity import Identity, run_directory
from countdown_rl.core.manifest import installed_versions
from countdown_rl.evaluation.training_log import LogRow
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference, shape, transformers_internals
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import weights
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import RunArguments, TuningOptions
from countdown_rl.training.state import Checkpoints, Journal, check_log

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")
#: Options that do not change the weights.
_LOGGING = ("save_steps", "report_to")

Arguments = TypeVar("Arguments", bound=RunArguments)
Settings = TypeVar("Settings", bound=TuningOptions)


@dataclass(frozen=True)
class Reporter:
    """Callbacks of a run: for the row of each step, progress (done, total, detail), remarks and warnings."""

    step: Callable[[LogRow], None] = lambda row: None
    progress: Callable[..., None] = lambda *values: None
    note: Callable[[str], None] = lambda text: None
    warning: Callable[[str], None] = lambda text: None


SILENT = Reporter()


@dataclass(frozen=True, kw_only=True)
class Places:
    """The paths that a run writes."""

    out: Path
    log: Path
    checkpoints: Checkpoints

    @classmethod
    def of(cls, arguments: RunArguments, options: TuningOptions) -> "Places":
        """The paths in *arguments*, or their defaults."""
        grpo = options.method == "grpo"
        out = arguments.out or Path("artifacts", options.kind if grpo else "sft")
        log = arguments.log or run_directory(out, by_default=grpo and not arguments.out) / "log.csv"
        return Places(out=out, log=log, checkpoints=Checkpoints(arguments.checkpoints or log.with_name("checkpoints")))


@dataclass(frozen=True, kw_only=True)
class Start(Places, Generic[Settings]):
    """A run whose model and validation rows are known, and not yet what it is trained on."""

    arguments: RunArguments
    options: Settings
    reporter: Reporter
    settings: Mapping[str, object]  # the options that an unfinished run is recognized by
    processes: int
    ref: reference.ModelRef
    loaded: load.Loaded  # the skeleton of the model
    adapted: Module  # the same with the trained adapter
    validation: list[Row]  # evaluated during training

    @classmethod
    def begin(cls, arguments: RunArguments, options: Settings, reporter: Reporter) -> Self:
        """Check the paths, options and model of a run; of a Hub model all files but the weights are downloaded."""
        processes.run_alone()
        count = max(arguments.processes, processes.world_size())
        options.micro_batches(count)
        places = Places.of(arguments, options)
        places.checkpoints.check_paths(places.out, options.kind, places.log)
        for name in options.report_to:
            if find_spec(name) is None:
                raise CountdownError(f"{flag('report_to')} {name} needs a package: {packages.pip_install(name)}.")
        load.silence_libraries("datasets.utils")
        process_state.remember_contents(*transformers_internals.accelerate_states())
        given = {name: getattr(arguments, name) for name in ("revision", "trust_remote_code", "base_model")}
        ref = reference.find_model(arguments.model, **given)
        light = reference.without_weights(ref)
        weights.check_model(light, options, sharded=processes.shards_weights())
        tokenizer, skeleton = load.load_tokenizer(light), load.skeleton(light.base or light)
        device = load.device_name("auto").partition(":")[0]
        parameters, precision = skeleton.num_parameters(), load.trained_precision(light, options.precision)
        if precision == "auto" and options.quantizes(parameters) and not processes.shards_weights():
            precision, options = "nf4", replace(options, precision="nf4")
        settings = {key: value for key, value in options.recorded.items() if key not in _LOGGING}
        return cls(
            **vars(places),
            arguments=arguments,
            options=replace(options, learning_rate=options.rate(parameters)),
            reporter=reporter,
            settings=settings | {"processes": count},  # each has its own random numbers
            processes=count,
            ref=ref,
            loaded=load.Loaded(skeleton, tokenizer, light, precision, device, "skeleton"),
            adapted=weights.adapted(light, skeleton, options),
            validation=_validation(arguments, options),
        )

    def recognized(self, row_type: type[LogRow], inputs: Mapping[str, object], **settings: object) -> dict[str, Any]:
        """The fields of :class:`Prepared` that tell a run on *inputs* from others; *settings* follow from the inputs.
        Raises ArtifactError if there is a checkpoint or a log of another run."""
        inputs = {"model": self.ref.as_input(), **inputs}
        versions = installed_versions(LIBRARIES)
        identity = Identity.of(type(self.options), {**self.settings, **settings}, inputs, versions=versions)
        resume = None if self.arguments.restart else self.checkpoints.to_resume(identity)
        check_log(self.log, row_type)
        return {"inputs": inputs, "identity": identity, "resume": resume}

    def longest_prompt(self, rows: Sequence[Row], limit: int) -> int:
        """The tokens of the longest prompt of *rows*; ModelError if *limit* more do not fit."""
        prompts = chat_template.encode(self.loaded.tokenizer, (row.messages() for row in rows))
        shape.check_tokens(self.adapted, prompts, self.arguments.model)
        longest = max(map(len, prompts), default=0)
        context = shape.ModelShape.of(self.loaded.model.config).context_length
        if prompts:
            shape.check_context(context, longest, limit, flag("max_completion_length"))
        return longest


def _validation(arguments: RunArguments, options: TuningOptions) -> list[Row]:
    """The rows that are evaluated during training."""
    if not options.eval_every:
        return []
    if arguments.data is None or arguments.data.is_file():
        raise UsageError(f"{flag('eval_every')} needs a validation split; give a data directory as {flag('data')}.")
    return jsonl.read_rows(arguments.data / "valid.jsonl")[: options.eval_size]


@dataclass(frozen=True, kw_only=True)
class Prepared(Start[Settings], ABC):
    """A run that was checked and can start."""

    row_type: ClassVar[type[LogRow]]
    less_memory: ClassVar[tuple[str, ...]]  # the options that reduce memory
    summary: ClassVar[str]  # the outcome in words, a format of the facts

    inputs: Mapping[str, Any]
    identity: Identity
    resume: Path | None
    max_steps: int
    longest: int  # tokens of the longest prompt (GRPO) or example
    first: str  # the first prompt as text, special tokens included
    learned: str = ""  # the completion after it, of ``sft``
    example: Sequence[Mapping[str, str]] | None  # for :func:`chat_template.complete_user_turn`
    details: Mapping[str, object]  # what ``--check --json`` prints beside the values of every run
    memory: Memory

    @abstractmethod
    def make_trainer(self, loaded: load.Loaded, journal: Journal) -> Any:
        """The trainer of *loaded*, and its ``CheckpointCallback``, which continues *journal*."""

    @abstractmethod
    def validate(self, trainer: Trainer, loaded: load.Loaded, prompts: list[str]) -> list[Completion]:
        """A completion of each of *prompts* at ``eval_temperature``, in every process."""

    def validation_loss(self, trainer: Trainer) -> dict[str, float]:
        """Further metrics of an evaluation, by their columns in the log."""
        return {}

    @abstractmethod
    def length_options(self, trainer: Trainer) -> str:
        """The options that bound what is in memory beside ``micro_batch``."""

    @abstractmethod
    def facts(self, rows: Sequence[Any], last: Any) -> dict[str, object]:
        """Facts for the manifest beside those of every run; *last* is the mean of the last tenth of the *rows*."""

    @property
    def recorded(self) -> dict[str, object]:
        """The options in the manifest."""
        return self.options.recorded | {"model": self.ref.portable_source, "revision": self.ref.revision}

    def check_result(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        skeleton, added = self.loaded.model, self.memory.trainable if self.options.tune == "lora" else 0
        values = {"model": self.ref.portable_source, "parameters": skeleton.num_parameters() + added}
        values |= {"first": self.first} | ({"learned": self.learned} if self.learned else {}) | dict(self.details)
        values |= {"learning_rate": self.options.learning_rate, "architecture": type(skeleton).__name__}
        return values | self.memory.as_dict()

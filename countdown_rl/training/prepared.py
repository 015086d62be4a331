"""A run of ``train`` or ``sft`` that was checked and can start."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch.nn import Module
from transformers import Trainer

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.core.identity import Identity
from countdown_rl.core.manifest import installed_versions
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.training_log import LogRow
from countdown_rl.inference.engine import Completion
from countdown_rl.models import chat_template, load, model_files, reference, shape
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import trl_fields, weights
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import EVAL_SIZE, RunArguments, TuningOptions
from countdown_rl.training.state import Journal, Places, check_log

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")

Settings = TypeVar("Settings", bound=TuningOptions)


@dataclass(frozen=True)
class Reporter:
    """Callbacks of a run: rows of the log, progress (done, total, detail), remarks, warnings."""

    step: Callable[[LogRow], None] = lambda row: None
    progress: Callable[..., None] = lambda *values: None
    note: Callable[[str], None] = lambda text: None
    warning: Callable[[str], None] = lambda text: None


SILENT = Reporter()


@dataclass(frozen=True, kw_only=True)
class Start(Places, Generic[Settings]):
    """A run whose model and validation rows are known, and not yet what it is trained on."""

    arguments: RunArguments
    options: Settings
    reporter: Reporter
    settings: Mapping[str, object]  # the options that an unfinished run is recognized by
    ref: reference.ModelRef
    loaded: load.Loaded  # the skeleton of the model
    adapted: Module  # the same with the trained adapter
    validation: list[Row]  # evaluated during training
    recorded: Mapping[str, object]  # the options in the manifest

    @classmethod
    def begin(cls, arguments: RunArguments, options: Settings, reporter: Reporter) -> Self:
        """Check the paths, options and model; of a Hub model all but the weights is downloaded."""
        processes.run_alone()
        places = Places.of(arguments, options)
        data = arguments.data
        validation = []
        if options.eval_every:
            if data is None or data.is_file():
                raise UsageError(
                    "needs a validation split; give a data directory as --data.",
                    option="eval_every",
                )
            validation = jsonl.read_rows(data / "valid.jsonl")[:EVAL_SIZE]
        ref = reference.find_model(arguments.model, trust_remote_code=arguments.trust_remote_code)
        light = reference.without_weights(ref)
        sharded = processes.shards_weights()
        weights.check_model(light, options, sharded=sharded)
        skeleton = load.skeleton(light.base or light)
        parameters = skeleton.num_parameters()
        precision = load.trained_precision(light, options.precision)
        if precision == "auto" and options.quantizes(parameters) and not sharded:
            precision = "nf4"
            options = replace(options, precision="nf4")
        settings = options.recorded
        del settings["micro_batch"]  # so that a run which outgrew the memory goes on
        schedule = trl_fields.split(options.trl).get("lr_scheduler_type", options.SCHEDULE)
        if schedule == "constant":
            settings.pop("max_steps")  # so a finished run goes on with more
        options = replace(options, learning_rate=options.rate(parameters))
        return cls(
            **vars(places),
            arguments=arguments,
            options=options,
            reporter=reporter,
            # Each process has its own random numbers.
            settings=settings | {"processes": processes.world_size()},
            ref=ref,
            loaded=load.Loaded(
                skeleton,
                load.load_tokenizer(light),
                light,
                precision,
                load.device_name("auto").partition(":")[0],
                "skeleton",
            ),
            adapted=weights.adapted(light, skeleton, options),
            validation=validation,
            recorded=options.recorded | {"model": ref.portable_source, "revision": ref.revision},
        )

    def recognized(
        self, row_type: type[LogRow], inputs: Mapping[str, object], max_steps: int
    ) -> JsonObject:
        """Return the fields of :class:`Prepared` that tell a run from others.

        Args:
            row_type: class of the rows of the log.
            inputs: what is trained on, as in a manifest.
            max_steps: optimizer steps.

        Raises:
            ArtifactError: there is a checkpoint or a log of another run.
        """
        inputs = {"model": self.ref.as_input(), **inputs}
        identity = Identity.of(self.settings, inputs, versions=installed_versions(LIBRARIES))
        resume = self.checkpoints.to_resume(identity, max_steps)
        check_log(self.log, row_type)
        return {"inputs": inputs, "identity": identity, "resume": resume}

    def trained_ids(self, rows: Iterable[Row | None]) -> list[str] | None:
        """Return the sorted ids of *rows* and of all that the model was trained on before.

        None if a row is not known, or what it was trained on before.
        """
        path = reference.local_path(self.loaded.ref) / model_files.TRAINED_IDS
        if self.ref.base is not None and not path.is_file():
            return None
        ids = model_files.read_trained_ids(path) if path.is_file() else set()
        for row in rows:
            if row is None:
                return None
            ids.add(row.id)
        return sorted(ids)

    def longest_prompt(self, rows: Sequence[Row], limit: int) -> int:
        """Return the tokens of the longest prompt.

        Args:
            rows: which are prompted.
            limit: tokens of a completion.

        Raises:
            ModelError: a prompt and a completion do not fit the context.
        """
        prompts = chat_template.encode(self.loaded.tokenizer, (row.messages() for row in rows))
        shape.check_tokens(self.adapted, prompts, self.arguments.model)
        longest = max(map(len, prompts), default=0)
        context = shape.ModelShape.of(self.loaded.model.config).context_length
        if prompts:
            shape.check_context(context, longest, limit, "--max-completion-length")
        return longest


@dataclass(frozen=True, kw_only=True)
class Prepared(Start[Settings], ABC):
    """A run that was checked and can start."""

    row_type: ClassVar[type[LogRow]]
    summary: ClassVar[str]  # the outcome in words, a format of the facts

    inputs: JsonObject
    identity: Identity
    resume: Path | None
    max_steps: int
    ids: Sequence[str] | None  # of the puzzles trained on, see :meth:`Start.trained_ids`
    longest: int  # tokens of the longest prompt (GRPO) or example
    first: str  # the first prompt as text, special tokens included
    learned: str = ""  # the completion after it, of ``sft``
    #: A prompt for :func:`chat_template.complete_user_turn`.
    example: Sequence[Mapping[str, str]] | None
    rollouts: str = "transformers"  # the engine, or "vllm"
    details: Mapping[str, object]  # what ``--check --json`` prints beside the values of every run
    memory: Memory

    @abstractmethod
    def make_trainer(self, loaded: load.Loaded, journal: Journal) -> Trainer:
        """Return the trainer of *loaded*, which continues *journal*."""

    @abstractmethod
    def validate(
        self, trainer: Trainer, loaded: load.Loaded, prompts: list[str]
    ) -> list[Completion]:
        """Return a greedy completion of each of *prompts*, in every process."""

    @abstractmethod
    def facts(self, rows: Sequence[Any], last: Any) -> JsonObject:
        """Return facts for the manifest.

        Args:
            rows: of the log, all of :attr:`row_type`.
            last: the mean of the last tenth of them.
        """

    def check_result(self) -> JsonObject:
        """Return the values that ``--check --json`` prints."""
        skeleton = self.loaded.model
        added = self.memory.trainable if self.options.tune == "lora" else 0
        learned = {"learned": self.learned} if self.learned else {}
        return {
            "model": self.ref.portable_source,
            "parameters": skeleton.num_parameters() + added,
            "first": self.first,
            **learned,
            **self.details,
            "learning_rate": self.options.learning_rate,
            "architecture": type(skeleton).__name__,
            **self.memory.as_dict(),
        }

"""A run of ``train`` or ``sft``: check it, train, and write its artifact."""

import atexit
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from peft import PeftModel
from torch.nn import Module
from transformers import Trainer

from countdown_rl.core import artifacts, packages, processes
from countdown_rl.core.errors import CountdownError, ModelError, UsageError, out_of_memory
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.manifest import installed_versions
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import LogRow
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference, shape
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import weights
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import RunArguments, TuningOptions
from countdown_rl.training.state import Journal, Places, check_log, step_of

if TYPE_CHECKING:
    from countdown_rl.training.callbacks import CheckpointCallback

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
        count = processes.world_size()
        options.micro_batches(count)
        places, data = Places.of(arguments, options), arguments.data
        if options.eval_every and (data is None or data.is_file()):
            raise UsageError(
                "needs a validation split; give a data directory as --data.", option="eval_every"
            )
        validation = (
            jsonl.read_rows(data / "valid.jsonl")[: options.eval_size]
            if data and options.eval_every
            else []
        )
        for name in options.report_to:
            if find_spec(name) is None:
                raise CountdownError(
                    f"--report-to {name} needs a package: {packages.pip_install(name)}."
                )
        given = {
            name: getattr(arguments, name)
            for name in ("revision", "trust_remote_code", "base_model")
        }
        ref = reference.find_model(arguments.model, **given)
        light = reference.without_weights(ref)
        weights.check_model(light, options, sharded=processes.shards_weights())
        tokenizer, skeleton = load.load_tokenizer(light), load.skeleton(light.base or light)
        device = load.device_name("auto").partition(":")[0]
        parameters, precision = (
            skeleton.num_parameters(),
            load.trained_precision(light, options.precision),
        )
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
            validation=validation,
        )

    def recognized(
        self, row_type: type[LogRow], inputs: Mapping[str, object], **settings: object
    ) -> dict[str, Any]:
        """The fields of :class:`Prepared` that tell a run on *inputs* from others; *settings* follow from the inputs.
        Raises ArtifactError if there is a checkpoint or a log of another run."""
        inputs = {"model": self.ref.as_input(), **inputs}
        versions = installed_versions(LIBRARIES)
        identity = Identity.of({**self.settings, **settings}, inputs, versions=versions)
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
            shape.check_context(context, longest, limit, "--max-completion-length")
        return longest


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

    def outcome_warnings(self, facts: Mapping[str, Any], start: float | None) -> dict[str, str]:
        """Warnings about a finished run with these *facts*, whose validation accuracy was *start* before."""
        texts = {}
        if facts["steps"] > 1 and facts.get("loss_last_tenth", 0.0) >= facts.get("loss_first", 1.0):
            texts["loss"] = "the loss did not fall; more steps or another --learning-rate."
        if start is not None and (share := facts.get("eval_correct", start)) < start:
            fall = f"validation accuracy fell from {start:.1%} to {share:.1%}"
            texts["fall"] = f"{fall}; --keep best keeps the best weights."
        return texts

    @abstractmethod
    def make_trainer(
        self, loaded: load.Loaded, journal: Journal
    ) -> "tuple[Trainer, CheckpointCallback]":
        """The trainer of *loaded*, and its ``CheckpointCallback``, which continues *journal*."""

    @abstractmethod
    def validate(
        self, trainer: Trainer, loaded: load.Loaded, prompts: list[str]
    ) -> list[Completion]:
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
        return self.options.recorded | {
            "model": self.ref.portable_source,
            "revision": self.ref.revision,
        }

    def check_result(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        skeleton, added = (
            self.loaded.model,
            self.memory.trainable if self.options.tune == "lora" else 0,
        )
        values = {
            "model": self.ref.portable_source,
            "parameters": skeleton.num_parameters() + added,
        }
        values |= (
            {"first": self.first}
            | ({"learned": self.learned} if self.learned else {})
            | dict(self.details)
        )
        values |= {
            "learning_rate": self.options.learning_rate,
            "architecture": type(skeleton).__name__,
        }
        return values | self.memory.as_dict()


#: Checks everything that a run needs before its weights are loaded, and writes nothing.
Prepare = Callable[[Arguments, Settings, Reporter], Prepared[Settings]]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    out: Path
    log: Path
    rows: Sequence[LogRow] = field(
        repr=False
    )  # one per step; empty if the artifact of the same run was already there
    facts: Mapping[str, Any]
    warnings: Mapping[str, str] = field(
        default_factory=dict
    )  # the printed sentences by a short name
    resumed: int | None = None  # the step from which the run was resumed
    memory: Mapping[str, int] | None = None  # bytes of a GPU: measured peak and estimate


def execute(
    prepare: Prepare[Arguments, Settings],
    arguments: Arguments,
    options: Settings,
    reporter: Reporter = SILENT,
    *,
    overwrite: bool = False,
) -> Result:
    """Prepare and train, unless the artifact of this run is there; with *overwrite* it is made again."""
    places = Places.of(arguments, options)
    written = [places.out, places.checkpoints.directory, places.log] if processes.is_main() else []
    with artifacts.locked(*written):
        try:
            run = prepare(arguments, options, reporter)
            if result := _finished(run, overwrite):
                return result
            processes.train_once()
            return train(run)
        except (KeyboardInterrupt, processes.Terminated):
            reporter.note(places.checkpoints.how_to_continue())
            raise


def _finished(run: Prepared[Settings], overwrite: bool) -> Result | None:
    """The result that is there already, see :func:`finished`."""
    identity = Identity(run.recorded, run.inputs, {"code": run.identity.machine["code"]})
    manifest = finished(run.out, run.options.kind, identity, overwrite=overwrite)
    if manifest is None:
        return None
    if processes.is_main():
        run.checkpoints.clear_own(run.identity)  # the run was killed between its last two steps
    return Result(run.out, run.log, [], manifest.facts)


def train(run: Prepared[Settings]) -> Result:
    """Train, and write an ``adapter`` artifact, or a ``model`` artifact of all weights.

    A signal other than Ctrl-C finishes the round and saves a checkpoint of it before ``Terminated`` is raised.
    """
    from countdown_rl.training.callbacks import Validation

    options, note = run.options, run.reporter.note
    run.reporter.progress(0, run.max_steps, "")
    journal = Journal(run.log if processes.is_main() else None, run.max_steps, run.row_type)
    if run.resume:
        journal.load(run.resume)
    journal.threads = journal.threads or options.threads or processes.cpu_threads()
    loaded = weights.load_model(run.ref, options, run.memory, journal.threads)
    dtype = load.dtype_name(loaded.model.dtype)
    threads = f"{journal.threads} CPU thread{'s' if journal.threads > 1 else ''}"
    base = "" if loaded.precision == dtype else f"; base weights in {loaded.precision}"
    note(f"Computing in {dtype} on {threads if loaded.device == 'cpu' else loaded.device}{base}.")
    if remark := chat_template.note(loaded.tokenizer):
        note(remark)
    if run.resume:
        note(f"Continuing after step {step_of(run.resume)}.")
    with _tracking(run):
        trainer, callback = run.make_trainer(loaded, journal)
        if run.validation:
            callback.validation = Validation(run, journal, trainer, loaded)
        _optimize(run, trainer, journal)
    return _finish(run, trainer, loaded, journal)


@contextmanager
def _tracking(run: Prepared[Settings]) -> Iterator[None]:
    """Let trackers write beside the log, offline unless the environment says otherwise, and print to stderr."""
    directory = run.log.parent.absolute()
    settings: dict[str, object] = {
        "TENSORBOARD_LOGGING_DIR": directory / "tensorboard",
        "TRACKIO_DIR": directory / "trackio",
    }
    settings |= {"WANDB_DIR": directory, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    for key, value in settings.items() if run.options.report_to else ():
        os.environ.setdefault(key, str(value))
    with redirect_stdout(sys.stderr) if run.options.report_to else nullcontext():
        yield


def _optimize(run: Prepared[Settings], trainer: Trainer, journal: Journal) -> None:
    """Train to the last step, or Terminated by a signal. Exhausted memory is ModelError, beside rank 0 MemoryError."""
    trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
    if not run.resume and processes.is_main():
        run.checkpoints.start(run.identity)
    trainer.accelerator.wait_for_everyone()
    journal.write()
    with processes.deferred_signals():
        try:
            trainer.train(resume_from_checkpoint=str(run.resume) if run.resume else None)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            # A CountdownError is printed by rank 0 alone, and the memory of another process may be exhausted.
            lower = (
                f"--micro-batch or {run.length_options(trainer)}, or add --gradient-checkpointing"
            )
            kind = ModelError if processes.is_main() else MemoryError
            raise kind(f"the run does not fit in memory; lower {lower}.") from error
        if (number := processes.received_signal()) and trainer.state.global_step < run.max_steps:
            raise processes.Terminated(number)


def _finish(
    run: Prepared[Settings], trainer: Trainer, loaded: load.Loaded, journal: Journal
) -> Result:
    """Write the artifact, clear the checkpoints, and report the outcome."""
    options, note = run.options, run.reporter.note
    facts = all_facts(run, trainer, loaded, journal)
    best = journal.best() if options.keep == "best" else None
    state = None if best else weights.gathered(trainer)
    if processes.is_main():
        with artifacts.writing(
            run.out, options.kind, options=run.recorded, inputs=run.inputs, libraries=LIBRARIES
        ) as writer:
            if best:
                shutil.copytree(run.checkpoints.best(best[0]), writer.path, dirs_exist_ok=True)
            else:
                weights.save(trainer, run.ref, options, writer.path, state)
            if run.example:
                chat_template.complete_user_turn(loaded.tokenizer, run.example)
            loaded.tokenizer.save_pretrained(writer.path)
            writer.facts.update(facts)
        run.checkpoints.clear()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    if run.processes > 1:
        # Gloo's thread may still release its last work, for which it needs Python's lock. A process group that is
        # freed now would wait for that thread for ever, with the lock held.
        atexit.register(id, trainer.model_wrapped)
    peak = None
    if loaded.device.startswith("cuda"):
        peak = {
            "peak": torch.cuda.max_memory_allocated(),
            "estimate": run.memory.estimates[-1].peak,
        }
        measured, expected = (f"{count / 2**30:.1f} GiB" for count in peak.values())
        note(f"Peak memory of the GPU: {measured}, estimated {expected}.")
    note(f"Wrote {run.out}: {run.summary.format_map(facts)}")
    if "kept_step" in facts:
        step = f"step {facts['kept_step']}" if facts["kept_step"] else "the initial policy"
        after = f"{facts['eval_correct']:.1%} after; the weights are those of {step}."
        note(f"Validation accuracy: {journal.start:.1%} before training, {after}")
    journal.warn(run.outcome_warnings(facts, journal.start), run.reporter.warning)
    resumed = step_of(run.resume) if run.resume else None
    return Result(run.out, run.log, journal.rows, facts, journal.warnings, resumed, peak)


def all_facts(
    run: Prepared[Settings], trainer: Trainer, loaded: load.Loaded, journal: Journal
) -> dict[str, object]:
    """The facts of the manifest."""
    # Counts packed and sharded weights too; it reads nothing but named_parameters.
    trainable, total = PeftModel.get_nb_trainable_parameters(trainer.model)
    rows = journal.rows
    best = journal.best() if run.options.keep == "best" else None
    step, correct = best or (rows[-1].step, rows[-1].eval_correct)
    facts = {
        **({"code": code} if (code := run.identity.machine["code"]) else {}),
        "command": f"countdown-rl {run.options.command}",
        "method": run.options.method,
        "steps": rows[-1].step,
        "precision": loaded.precision,
        "path": loaded.storage,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "processes": processes.world_size(),
    }
    if loaded.device == "cpu":  # the rounding, and so the bytes of the weights, depend on these
        facts |= {
            "threads": journal.threads,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
    if correct is not None:
        facts |= {"kept_step": step, "eval_correct": correct}
    return facts | run.facts(rows, training_log.mean(rows[-max(1, len(rows) // 10) :]))

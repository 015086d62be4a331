"""A run of ``train`` or ``sft``: what GRPO and supervised fine-tuning share."""

import atexit
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from countdown_rl.core import artifacts, packages, process_state, processes
from countdown_rl.core.errors import CountdownError, ModelError, UsageError, out_of_memory
from countdown_rl.core.formatting import flag
from countdown_rl.core.identity import Identity, finished, run_directory
from countdown_rl.core.manifest import installed_versions
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import SftRow, StepRow
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference, shape, transformers_internals
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import weights
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import RunArguments
from countdown_rl.training.state import Checkpoints, Journal, check_log, step_of

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")

#: Options that do not change the weights.
_LOGGING = ("save_steps", "report_to")


@dataclass(frozen=True)
class Reporter:
    """Callbacks of a run: for the row of each step, progress (done, total, detail), remarks and warnings."""

    step: Callable[[Any], None] = lambda row: None
    progress: Callable[..., None] = lambda *values: None
    note: Callable[[str], None] = lambda text: None
    warning: Callable[[str], None] = lambda text: None


SILENT = Reporter()


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        rows: one per step; empty if the artifact of the same run was already there.
        warnings: the printed sentences by a short name.
        resumed: the step from which the run was resumed, or None.
        memory: measured peak of the GPU and the estimate for it, in bytes; None on a CPU.
    """

    out: Path
    log: Path
    rows: list[Any] = field(repr=False)
    facts: dict[str, Any]
    warnings: dict[str, str] = field(default_factory=dict)
    resumed: int | None = None
    memory: dict[str, int] | None = None


class Run(ABC):
    """A run that was checked and can start.

    Attributes:
        validation: the rows that are evaluated during training.
        parameters: of the model without the adapter.
        longest: tokens of the longest prompt (GRPO) or example.
        example: messages that the chat template is completed by, see :func:`chat_template.complete_user_turn`.
        first: the first prompt as text, special tokens included; *learned*: the completion after it, of ``sft``.
        details: what ``--check --json`` prints beside the values of every run.
    """

    command: ClassVar[str]
    row_type: ClassVar[type[StepRow] | type[SftRow]]
    #: The option that bounds the tokens of a sequence, and the options that reduce memory.
    length_option: str
    less_memory: ClassVar[str]

    validation: list[Row]
    inputs: dict[str, Any]
    ref: reference.ModelRef
    checkpoints: Checkpoints
    resume: Path | None
    journal: Journal
    parameters: int
    max_steps: int
    longest: int
    first: str
    learned: str = ""
    example: Sequence[Mapping[str, str]] | None
    details: dict[str, Any]
    memory: Memory

    def __init__(self, arguments: RunArguments, options: Any, reporter: Reporter = SILENT) -> None:
        self.arguments, self.options, self.reporter = arguments, options, reporter
        grpo = self.command == "train"
        self.out = arguments.out or Path("artifacts", options.kind if grpo else "sft")
        self.log = arguments.log or run_directory(self.out, by_default=grpo and not arguments.out) / "log.csv"
        self.checkpoints = Checkpoints(
            arguments.checkpoints or self.log.with_name("checkpoints"), Identity(type(options), {}, {})
        )
        self.processes = max(arguments.processes, processes.world_size())

    @abstractmethod
    def read(self) -> dict[str, Any]:
        """Read what is trained on, and return its entries for the manifest."""

    @abstractmethod
    def encode(self, loaded: load.Loaded, adapted: Any) -> Memory:
        """Check the token ids of what is trained on; set the attributes from ``max_steps`` on; estimate the memory.

        Args:
            loaded: the skeleton of the model; *adapted* has the adapter too.
        """

    @abstractmethod
    def make_trainer(self, loaded: load.Loaded) -> tuple[Any, Any]:
        """The trainer of *loaded*, and its ``CheckpointCallback``."""

    @abstractmethod
    def validate(self, trainer: Any, loaded: load.Loaded, prompts: list[str]) -> list[Completion]:
        """A completion of each of *prompts* at ``eval_temperature``, in every process."""

    def validation_loss(self, trainer: Any) -> dict[str, float]:
        """Further figures of an evaluation, by their columns in the log."""
        return {}

    @abstractmethod
    def facts(self, last: Any) -> dict[str, Any]:
        """Facts for the manifest beside those of every run; *last* is the mean row of the last tenth of the run."""

    @abstractmethod
    def summary(self, facts: Mapping[str, Any]) -> str:
        """The outcome in words."""

    @classmethod
    def execute(
        cls, arguments: RunArguments, options: Any, reporter: Reporter = SILENT, *, overwrite: bool = False
    ) -> Result:
        """Prepare and train, unless the artifact of this run is there; with *overwrite* it is made again."""
        run = cls(arguments, options, reporter)
        written = [run.out, run.checkpoints.directory, run.log] if processes.is_main() else []
        with artifacts.locked(*written):
            try:
                run._prepare()
                return run._finished(overwrite) or run.train()
            except (KeyboardInterrupt, processes.Terminated):
                reporter.note(run.checkpoints.how_to_continue())
                raise

    @classmethod
    def prepare(cls, arguments: RunArguments, options: Any, reporter: Reporter = SILENT) -> Self:
        """Check everything that a run needs before its weights are loaded; nothing is written.

        Of a model on the Hub all files but the weights are downloaded.
        """
        run = cls(arguments, options, reporter)
        run._prepare()
        return run

    def _prepare(self) -> None:
        arguments, options = self.arguments, self.options
        processes.run_alone()
        options.micro_batches(self.processes)
        self.checkpoints.check_paths(self.out, options.kind, self.log)
        for name in options.report_to:
            if find_spec(name) is None:
                raise CountdownError(f"{flag('report_to')} {name} needs a package: {packages.pip_install(name)}.")
        load.silence_libraries("datasets.utils")
        process_state.remember_contents(*transformers_internals.accelerate_states())
        self.ref = reference.find_model(
            arguments.model,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
            base_model=arguments.base_model,
        )
        light = reference.without_weights(self.ref)
        weights.check_model(light, options, sharded=processes.shards_weights())
        self.tokenizer = load.load_tokenizer(light)
        inputs = self.read()
        self.validation = []
        if options.eval_every:
            if arguments.data is None or arguments.data.is_file():
                raise UsageError(
                    f"{flag('eval_every')} needs a data directory with a validation split; give one as {flag('data')}."
                )
            self.validation = jsonl.read_rows(arguments.data / "valid.jsonl")[: options.eval_size]
        self.inputs = {"model": self.ref.as_input(), **inputs}
        settings = {key: value for key, value in options.recorded.items() if key not in _LOGGING}
        settings["processes"] = self.processes  # each has its own random numbers
        machine = {"versions": installed_versions(LIBRARIES)}
        identity = Identity(type(options), settings, self.inputs, machine)
        self.checkpoints = Checkpoints(self.checkpoints.directory, identity)
        self.resume = None if arguments.restart else self.checkpoints.to_resume()
        check_log(self.log, self.row_type)

        skeleton = load.skeleton(light.base or light)
        adapted = weights.adapted(light, skeleton, options)
        precision = load.trained_precision(light, options.precision)
        device = load.device_name("auto").partition(":")[0]
        loaded = load.Loaded(skeleton, self.tokenizer, light, precision, device, "skeleton")
        self.parameters = skeleton.num_parameters()
        self.options = replace(options, learning_rate=options.rate(self.parameters))
        self.memory = self.encode(loaded, adapted)
        self.details |= {"learning_rate": self.options.learning_rate, "architecture": type(skeleton).__name__}
        self.journal = Journal(self.log if processes.is_main() else None, self.max_steps, self.row_type)

    def longest_prompt(self, rows: Sequence[Row], loaded: load.Loaded, adapted: Any) -> int:
        """The tokens of the longest prompt of *rows*; 0 without rows.

        Raises:
            ModelError: the embeddings lack a token, or prompt and completion exceed the context length.
        """
        prompts = chat_template.encode(loaded.tokenizer, (row.messages() for row in rows))
        shape.check_tokens(adapted, prompts, self.arguments.model)
        longest = max(map(len, prompts), default=0)
        context, limit = shape.ModelShape.of(loaded.model.config).context_length, self.options.max_completion_length
        if prompts:
            shape.check_context(context, longest, limit, flag("max_completion_length"))
        return longest

    def check_result(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        added = self.memory.trainable if self.options.tune == "lora" else 0
        values = {"model": self.ref.portable_source, "parameters": self.parameters + added, "first": self.first}
        values |= {"learned": self.learned} if self.learned else {}
        return values | self.details | self.memory.as_dict()

    def _finished(self, overwrite: bool) -> Result | None:
        """The result that is there already, see :func:`finished`."""
        identity = Identity(type(self.options), self._described(), self.inputs)
        manifest = finished(self.out, self.options.kind, identity, overwrite=overwrite)
        if manifest is None:
            return None
        if processes.is_main():
            self.checkpoints.clear_own()  # the run was killed between its last two steps
        return Result(self.out, self.log, [], manifest.facts)

    def _described(self) -> dict[str, Any]:
        """The options in the manifest."""
        return self.options.recorded | {"model": self.ref.portable_source, "revision": self.ref.revision}

    def train(self) -> Result:
        """Train, and write an ``adapter`` artifact, or a ``model`` artifact of all weights.

        A signal other than Ctrl-C finishes the round and saves a checkpoint of it before ``Terminated`` is raised.
        """
        options, journal, note = self.options, self.journal, self.reporter.note
        self.reporter.progress(0, self.max_steps, "")
        if self.resume:
            journal.load(self.resume)
        journal.threads = journal.threads or options.threads or processes.cpu_threads()
        loaded = weights.load_model(self.ref, options, journal.threads)
        dtype = "bf16" if loaded.model.dtype == torch.bfloat16 else "fp32"
        threads = f"{journal.threads} CPU thread{'s' if journal.threads > 1 else ''}"
        base = "" if loaded.precision == dtype else f"; base weights in {loaded.precision}"
        note(f"Computing in {dtype} on {threads if loaded.device == 'cpu' else loaded.device}{base}.")
        if remark := chat_template.note(loaded.tokenizer):
            note(remark)
        if self.resume:
            note(f"Continuing after step {step_of(self.resume)}.")
        with self._tracking():
            trainer, callback = self.make_trainer(loaded)
            if self.validation:
                callback.validate_with(trainer, loaded)
            self._optimize(trainer)
        return self._finish(trainer, loaded)

    @contextmanager
    def _tracking(self) -> Iterator[None]:
        """Let trackers write beside the log, offline unless the environment says otherwise, and print to stderr."""
        directory = self.log.parent.absolute()
        settings = {
            "TENSORBOARD_LOGGING_DIR": directory / "tensorboard",
            "TRACKIO_DIR": directory / "trackio",
            "WANDB_DIR": directory,
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
        }
        if not self.options.report_to:
            yield
            return
        for key, value in settings.items():
            os.environ.setdefault(key, str(value))
        with redirect_stdout(sys.stderr):
            yield

    def _optimize(self, trainer: Any) -> None:
        """Train from the checkpoint or from the start, until the last step or a signal.

        Raises:
            Terminated: a signal came.
            ModelError: the memory is exhausted; MemoryError in all but the first process.
        """
        trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
        if not self.resume and processes.is_main():
            self.checkpoints.start()
        trainer.accelerator.wait_for_everyone()
        self.journal.write()
        with processes.deferred_signals():
            try:
                trainer.train(resume_from_checkpoint=str(self.resume) if self.resume else None)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                # A CountdownError is printed by rank 0 alone, and the memory of another process may be exhausted.
                raise (ModelError if processes.is_main() else MemoryError)(
                    f"the run does not fit in memory; lower {flag('micro_batch')} or {self.length_option}, or add "
                    f"{flag('gradient_checkpointing')}."
                ) from error
            if (number := processes.received_signal()) and trainer.state.global_step < self.max_steps:
                raise processes.Terminated(number)

    def _finish(self, trainer: Any, loaded: load.Loaded) -> Result:
        """Write the artifact, clear the checkpoints, and report the outcome."""
        options, journal, note = self.options, self.journal, self.reporter.note
        facts = self.all_facts(trainer, loaded)
        best = journal.best() if options.keep == "best" else None
        state = None if best else weights.gathered(trainer)
        if processes.is_main():
            described = self._described()
            with artifacts.writing(
                self.out, options.kind, options=described, inputs=self.inputs, libraries=LIBRARIES
            ) as writer:
                if best:
                    shutil.copytree(self.checkpoints.best(best[0]), writer.path, dirs_exist_ok=True)
                else:
                    weights.save(trainer, self.ref, options, writer.path, state)
                if self.example:
                    chat_template.complete_user_turn(loaded.tokenizer, self.example)
                loaded.tokenizer.save_pretrained(writer.path)
                writer.facts.update(facts)
            self.checkpoints.clear()
        trainer.accelerator.wait_for_everyone()
        trainer.accelerator.end_training()
        if self.processes > 1:
            # Gloo's thread may still release its last work, for which it needs Python's lock. A process group that is
            # freed now would wait for that thread for ever, with the lock held.
            atexit.register(id, trainer.model_wrapped)
        peak = None
        if loaded.device.startswith("cuda"):
            peak = {"peak": torch.cuda.max_memory_allocated(), "estimate": self.memory.estimates[-1].peak}
            measured, expected = (f"{count / 2**30:.1f} GiB" for count in peak.values())
            note(f"Peak memory of the GPU: {measured}, estimated {expected}.")
        note(f"Wrote {self.out}: {self.summary(facts)}")
        if "kept_step" in facts:
            step = f"step {facts['kept_step']}" if facts["kept_step"] else "the start"
            note(f"Its weights are those of {step}: {facts['eval_correct']:.1%} of the validation puzzles solved.")
        resumed = step_of(self.resume) if self.resume else None
        return Result(self.out, self.log, journal.rows, facts, journal.warnings, resumed, peak)

    def all_facts(self, trainer: Any, loaded: load.Loaded) -> dict[str, Any]:
        """The facts of the manifest."""
        from peft import PeftModel

        # Counts packed and sharded weights too; it reads nothing but named_parameters.
        trainable, total = PeftModel.get_nb_trainable_parameters(trainer.model)
        rows = self.journal.rows
        best = self.journal.best() if self.options.keep == "best" else None
        step, correct = best or (rows[-1].step, rows[-1].eval_correct)
        facts: dict[str, Any] = {
            "command": f"countdown-rl {self.command}",
            "steps": rows[-1].step,
            "precision": loaded.precision,
            "path": loaded.storage,
            "trainable_parameters": trainable,
            "total_parameters": total,
            "processes": processes.world_size(),
        }
        if loaded.device == "cpu":  # the rounding, and so the bytes of the weights, depend on these
            facts |= {"threads": self.journal.threads, "cpu_capability": torch.backends.cpu.get_cpu_capability()}
        if correct is not None:
            facts |= {"kept_step": step, "eval_correct": correct}
        return facts | self.facts(training_log.mean(rows[-max(1, len(rows) // 10) :]))

"""A run of ``train`` or ``sft``: what GRPO and supervised fine-tuning share."""

import atexit
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ModelError, UsageError, out_of_memory
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, reference, shape
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import log, memory, trackers, weights
from countdown_rl.training.checkpoints import Checkpoints, step_of
from countdown_rl.training.log import Journal, SftRow, StepRow
from countdown_rl.training.memory import Memory

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")

#: Options about logging and checkpoints, which do not change the weights.
_LOGGING = ("save_steps", "report_to")


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Inputs, outputs and processes of a run.

    Attributes:
        data: a data artifact; for GRPO also one file of rows.
        files: demonstrations.
        checkpoints: directory of an unfinished run, which is resumed if options, data and model are the same.
        log: the CSV of the run; samples of completions go beside it.
        base_model: of an adapter, in place of the one that it records.
        restart: start from the beginning, whatever *checkpoints* holds.
        sharded: each process holds a part of the weights.
        zero: the stage of DeepSpeed's ZeRO; 0 without DeepSpeed.
    """

    model: str
    out: Path
    checkpoints: Path
    data: Path | None = None
    files: Sequence[Path] = ()
    log: Path | None = None
    revision: str | None = None
    base_model: str | None = None
    restart: bool = False
    trust_remote_code: bool = False
    sharded: bool = field(default_factory=processes.shards_weights)
    zero: int = field(default_factory=processes.zero_stage)
    processes: int = field(default_factory=processes.world_size)


@dataclass(frozen=True)
class Reporter:
    """Callbacks of a run: for the row of each step, progress (done, total, detail), remarks and warnings."""

    step: Callable[[Any], None] = _ignore
    progress: Callable[..., None] = _ignore
    note: Callable[[str], None] = _ignore
    warning: Callable[[str], None] = _ignore


SILENT = Reporter()


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        rows: one per step; none if the artifact was there already, made by the same run.
        facts: as in the manifest.
        warnings: the sentences that were printed, by a short name.
        resumed: the step from which the run was resumed, or None.
        memory: measured peak of the GPU and the estimate for it, in bytes; None on a CPU.
    """

    out: Path
    rows: list[Any]
    facts: dict[str, Any]
    warnings: dict[str, str] = field(default_factory=dict)
    resumed: int | None = None
    memory: dict[str, int] | None = None


class Run(ABC):
    """A run that was checked and can start.

    Attributes:
        validation: the rows that are evaluated during training.
        inputs: entries of the manifest.
        resume: the checkpoint to continue from.
        parameters: of the model without the adapter.
        longest: tokens of the longest prompt (GRPO) or example.
        example: messages that the chat template is completed by, see :func:`chat_template.complete_user_turn`.
        details: what ``--check --json`` prints beside the values of every run.
    """

    command: ClassVar[str]
    row_type: ClassVar[type[StepRow] | type[SftRow]]
    #: The option that bounds the tokens of a sequence, and those of which lower values need less memory.
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
    example: Sequence[Mapping[str, str]] | None
    details: dict[str, Any]
    memory: Memory

    def __init__(self, arguments: RunArguments, options: Any, reporter: Reporter = SILENT) -> None:
        self.arguments, self.options, self.reporter = arguments, options, reporter

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
        written = [arguments.out, arguments.checkpoints, arguments.log] if processes.is_main() else []
        with artifacts.locked(*written):
            try:
                run = cls.prepare(arguments, options, reporter)
                return run.finished(overwrite) or run.train()
            except (KeyboardInterrupt, processes.Terminated):
                reporter.note(Checkpoints(arguments.checkpoints, {}).how_to_continue())
                raise

    @classmethod
    def prepare(cls, arguments: RunArguments, options: Any, reporter: Reporter = SILENT) -> Self:
        """Check everything that a run needs before its weights are loaded; nothing is written.

        Of a model on the Hub all files but the weights are downloaded.
        """
        processes.run_alone()
        options.micro_batches(arguments.processes)
        Checkpoints(arguments.checkpoints, {}).check_paths(arguments.out, options.kind, arguments.log)
        trackers.check_trackers(options.report_to)
        load.silence_libraries()
        run = cls(arguments, options, reporter)
        inputs = run.read()
        run.validation = run._read_validation()
        run.ref = reference.find_model(
            arguments.model,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
            base_model=arguments.base_model,
        )
        light = reference.without_weights(run.ref)
        weights.check_model(light, options, sharded=arguments.sharded)
        run.inputs = {"model": run.ref.as_input(), **inputs}
        run.checkpoints = Checkpoints(arguments.checkpoints, run._identity())
        run.resume = None if arguments.restart else run.checkpoints.to_resume()
        log.check_log(arguments.log, cls.row_type)

        skeleton = load.skeleton(light.base or light)
        adapted = weights.adapted(light, skeleton, options)
        precision = load.trained_precision(light, options.precision)
        device = load.device_name("auto").partition(":")[0]
        loaded = load.Loaded(skeleton, load.load_tokenizer(light), light, precision, device, "skeleton")
        run.parameters = skeleton.num_parameters()
        run.options = replace(options, learning_rate=options.rate(run.parameters))
        run.memory = run.encode(loaded, adapted)
        run.details |= {"learning_rate": run.options.learning_rate, "architecture": type(skeleton).__name__}
        run.journal = Journal(arguments.log if processes.is_main() else None, run.max_steps, cls.row_type)
        return run

    def _read_validation(self) -> list[Row]:
        if not self.options.eval_every:
            return []
        if self.arguments.data is None or self.arguments.data.is_file():
            raise UsageError("--eval-every needs a data directory with a validation split; give one as --data.")
        return jsonl.read_rows(self.arguments.data / "valid.jsonl")[: self.options.eval_size]

    def _identity(self) -> dict[str, Any]:
        """Everything that decides the weights."""
        settings = {key: value for key, value in asdict(self.options).items() if key not in _LOGGING}
        settings["processes"] = self.arguments.processes  # each has its own random numbers
        return artifacts.identity(settings, self.inputs, versions=artifacts.versions(LIBRARIES))

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
            shape.check_context(context, longest, limit, "--max-completion-length")
        return longest

    def estimate_memory(self, loaded: load.Loaded, adapted: Any, **sizes: Any) -> Memory:
        """The memory of the run by the *sizes* of :func:`memory.estimate`."""
        arguments = self.arguments
        sizes |= {"zero": arguments.zero, "shards": arguments.processes if arguments.sharded or arguments.zero else 1}
        return memory.plan(loaded.model, adapted, self.options, loaded.precision, **sizes)

    def check_result(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        added = self.memory.trainable if self.options.tune == "lora" else 0
        values = {"model": self.ref.portable_source, "parameters": self.parameters + added}
        return values | self.details | self.memory.as_dict()

    def finished(self, overwrite: bool) -> Result | None:
        """The result that is there already, see :func:`artifacts.finished`."""
        identity = artifacts.identity(self._described(), self.inputs)
        manifest = artifacts.finished(self.arguments.out, self.options.kind, identity, overwrite=overwrite)
        if manifest is None:
            return None
        if processes.is_main():
            self.checkpoints.clear_own()  # the run was killed between its last two steps
        return Result(self.arguments.out, [], manifest.facts)

    def _described(self) -> dict[str, Any]:
        """The options in the manifest."""
        return asdict(self.options) | {"model": self.ref.portable_source, "revision": self.ref.revision}

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
        note(_arithmetic(loaded, journal.threads))
        if remark := chat_template.note(loaded.tokenizer):
            note(remark)
        if self.resume:
            note(f"Continuing after step {step_of(self.resume)}.")
        with trackers.tracking(options.report_to, (self.arguments.log or self.arguments.checkpoints).parent):
            trainer, callback = self.make_trainer(loaded)
            if self.validation:
                callback.validate_with(trainer, loaded)
            self._optimise(trainer)
        return self._finish(trainer, loaded)

    def _optimise(self, trainer: Any) -> None:
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
                    f"the run does not fit in memory; lower --micro-batch or {self.length_option}, or add "
                    "--gradient-checkpointing."
                ) from error
            if (number := processes.received_signal()) and trainer.state.global_step < self.max_steps:
                raise processes.Terminated(number)

    def _finish(self, trainer: Any, loaded: load.Loaded) -> Result:
        """Write the artifact, clear the checkpoints, and report the outcome."""
        import torch

        options, journal, out, note = self.options, self.journal, self.arguments.out, self.reporter.note
        facts = self.all_facts(trainer, loaded)
        best = journal.best() if options.keep == "best" else None
        state = None if best else weights.gathered(trainer)
        if processes.is_main():
            described = self._described()
            with artifacts.writing(
                out, options.kind, options=described, inputs=self.inputs, libraries=LIBRARIES
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
        if self.arguments.processes > 1:
            # Gloo's thread may still release its last work, for which it needs Python's lock. A process group that is
            # freed now would wait for that thread for ever, with the lock held.
            atexit.register(id, trainer.model_wrapped)
        memory = None
        if loaded.device.startswith("cuda"):
            memory = {"peak": torch.cuda.max_memory_allocated(), "estimate": self.memory.estimates[-1].peak}
            peak, expected = (f"{count / 2**30:.1f} GiB" for count in memory.values())
            note(f"Peak memory of the GPU: {peak}, estimated {expected}.")
        note(f"Wrote {out}: {self.summary(facts)}")
        if "kept_step" in facts:
            step = f"step {facts['kept_step']}" if facts["kept_step"] else "the start"
            note(f"Its weights are those of {step}: {facts['eval_correct']:.1%} of the validation puzzles solved.")
        resumed = step_of(self.resume) if self.resume else None
        return Result(out, journal.rows, facts, journal.warnings, resumed, memory)

    def all_facts(self, trainer: Any, loaded: load.Loaded) -> dict[str, Any]:
        """The facts of the manifest."""
        import torch
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
        return facts | self.facts(log.mean(rows[-max(1, len(rows) // 10) :]))


def _arithmetic(loaded: load.Loaded, threads: int) -> str:
    """What *loaded* is trained in, as a sentence."""
    import torch

    dtype = "bf16" if loaded.model.dtype == torch.bfloat16 else "fp32"
    place = f"{threads} CPU thread{'s' if threads > 1 else ''}" if loaded.device == "cpu" else loaded.device
    base = "" if loaded.precision == dtype else f"; base weights in {loaded.precision}"
    return f"Computing in {dtype} on {place}{base}."

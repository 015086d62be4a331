"""A run of ``train`` or ``sft``: train, and write its artifact."""

import atexit
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TypeVar

import torch
from accelerate.utils.memory import clear_device_cache
from peft import PeftModel
from transformers import Trainer

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ModelError, out_of_memory
from countdown_rl.core.formatting import plural
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.manifest import file_sha256
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import LogRow
from countdown_rl.models import chat_template, load, model_files, torch_internals
from countdown_rl.training import trl_fields, weights
from countdown_rl.training.callbacks import AlreadyTrainedError, Validation
from countdown_rl.training.options import RunArguments
from countdown_rl.training.prepared import LIBRARIES, SILENT, Prepared, Reporter, Settings
from countdown_rl.training.state import Journal, Places, step_of

Arguments = TypeVar("Arguments", bound=RunArguments)

#: Checks everything that a run needs before its weights are loaded, and writes nothing.
Prepare = Callable[[Arguments, Settings, Reporter], Prepared[Settings]]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    out: Path
    log: Path
    #: One row per step; none if the artifact of the same run was already there.
    rows: Sequence[LogRow] = field(repr=False)
    facts: JsonObject
    warnings: Mapping[str, str] = field(default_factory=dict)  # sentences by a short name
    resumed: int | None = None  # the step from which the run was resumed
    peak_memory: int | None = None  # bytes of a GPU


class _TooLargeError(Exception):
    """The first step does not fit in memory."""


def execute(
    prepare: Prepare[Arguments, Settings],
    arguments: Arguments,
    options: Settings,
    reporter: Reporter = SILENT,
    *,
    overwrite: bool = False,
) -> Result:
    """Prepare and train, unless the artifact of this run is there.

    Args:
        prepare: of ``train`` or ``sft``.
        arguments: inputs and outputs.
        options: how to train.
        reporter: callbacks; those of rank 0 are called.
        overwrite: make a finished artifact again.
    """
    if not processes.is_main():
        reporter = SILENT
    places = Places.of(arguments, options)
    written = [places.out, places.checkpoints.directory, places.log]
    with artifacts.locked(*written if processes.is_main() else ()):
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
    """The result that is there already, see :func:`finished`; None if the run goes on."""
    recorded = dict(run.recorded)
    goes_on = False
    if run.resume and artifacts.peek(run.out) == run.kind:
        before = artifacts.read(run.out, run.kind, verify=False)
        goes_on = before.facts.get("steps", inf) < run.max_steps
        if goes_on:
            recorded |= {name: before.options[name] for name in ("max_steps", "micro_batch")}
    identity = Identity(recorded, run.inputs, {"code": run.identity.machine["code"]})
    manifest = finished(run.out, run.kind, identity, overwrite=overwrite)
    if manifest is None or goes_on:
        return None
    return Result(run.out, run.log, [], manifest.facts)


def train(run: Prepared[Settings]) -> Result:
    """Train, and write an ``adapter`` artifact, or a ``model`` artifact of all weights.

    A micro-batch whose first step does not fit in memory is halved. A signal finishes the round and
    saves a checkpoint of it before ``Terminated`` is raised.
    """
    while True:
        try:
            return _train(run)
        except _TooLargeError:
            size = run.options.per_device_batch // 2
            run.reporter.warning(
                f"the first step does not fit in memory; going on with --micro-batch {size}."
            )
            run = replace(run, options=replace(run.options, micro_batch=size))
        clear_device_cache(garbage_collection=True)  # after the error, which refers to the model


def _train(run: Prepared[Settings]) -> Result:
    """Train *run*; _TooLargeError if its first step does not fit in memory."""
    note = run.reporter.note
    run.reporter.progress(0, run.max_steps, "")
    journal = Journal(run.log if processes.is_main() else None, run.max_steps, run.row_type)
    if run.resume:
        journal.load(run.resume)
    journal.threads = journal.threads or processes.cpu_threads()
    if torch.cuda.is_available() and run.rollouts != "vllm":
        torch_internals.expand_segments()
    loaded = weights.load_model(run.ref, run.options, journal.threads)
    note(_computation(loaded, journal.threads))
    if remark := chat_template.note(loaded.tokenizer):
        note(remark)
    if run.resume:
        note(f"Continuing after step {step_of(run.resume)}.")
    tracked = "report_to" in trl_fields.split(run.options.trl)
    with redirect_stdout(sys.stderr if tracked else sys.stdout):  # stdout is for data
        with trl_fields.rejected(run.options.trl):
            trainer = run.make_trainer(loaded, journal)
        if run.validation:
            trainer.add_callback(Validation(run, journal, trainer, loaded))
        _optimize(run, trainer, journal)
    return _finish(run, trainer, loaded, journal)


def _computation(loaded: load.Loaded, threads: int) -> str:
    """The device and precision of *loaded* in words."""
    dtype = load.dtype_name(loaded.model.dtype)
    device = loaded.device
    if device == "cpu":
        device = plural(threads, "CPU thread")
    base = "" if loaded.precision == dtype else f"; base weights in {loaded.precision}"
    return f"Computing in {dtype} on {device}{base}."


def _optimize(run: Prepared[Settings], trainer: Trainer, journal: Journal) -> None:
    """Train to the last step.

    Raises:
        Terminated: a signal ended the run after a checkpoint.
        ModelError: the memory is exhausted (in the first process; in others MemoryError).
    """
    trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
    if not run.resume and processes.is_main():
        run.checkpoints.start(run.identity)
    trainer.accelerator.wait_for_everyone()
    journal.write()
    first_step = step_of(run.resume)
    with processes.deferred_signals():
        try:
            trainer.train(resume_from_checkpoint=str(run.resume) if run.resume else None)
        except AlreadyTrainedError:  # the weights are loaded
            trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            halves = run.options.per_device_batch % 2 == 0 and processes.world_size() == 1
            if halves and trainer.state.global_step == first_step:
                raise _TooLargeError from error
            # A CountdownError is printed by rank 0 alone, and another process may be the one.
            kind = ModelError if processes.is_main() else MemoryError
            raise kind(
                "the run does not fit in memory; go on with a lower --micro-batch, or begin again "
                "with a lower --max-completion-length or --trl gradient_checkpointing=true."
            ) from error
        number = processes.received_signal()
        if number and trainer.state.global_step < run.max_steps:
            raise processes.Terminated(number)


def _finish(
    run: Prepared[Settings], trainer: Trainer, loaded: load.Loaded, journal: Journal
) -> Result:
    """Write the artifact, clear the checkpoints, and report the outcome."""
    note = run.reporter.note
    facts = all_facts(run, trainer, loaded, journal)
    _write(run, trainer, loaded, journal, facts)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    if trainer.accelerator.num_processes > 1:
        # Gloo's thread may still release its last work, for which it needs Python's lock. A process
        # group that is freed now would wait for that thread for ever, with the lock held.
        atexit.register(id, trainer.model_wrapped)
    peak = None
    if loaded.device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated()
        note(f"Peak memory of the GPU: {peak / 2**30:.1f} GiB.")
    note(f"Wrote {run.out}: {run.summary.format_map(facts)}")
    if "kept_step" in facts:
        step = f"step {facts['kept_step']}" if facts["kept_step"] else "the initial policy"
        after = f"{facts['eval_correct']:.1%} after; the weights are those of {step}."
        note(f"Validation accuracy: {journal.start:.1%} before training, {after}")
    journal.warn(outcome_warnings(facts, journal.start), run.reporter.warning)
    resumed = step_of(run.resume) or None
    return Result(run.out, run.log, journal.rows, facts, journal.warnings, resumed, peak)


def _write(
    run: Prepared[Settings],
    trainer: Trainer,
    loaded: load.Loaded,
    journal: Journal,
    facts: JsonObject,
) -> None:
    """Write the artifact of *run*, and remove its checkpoints.

    Args:
        run: that is finished.
        trainer: with the weights of the last step.
        loaded: the model.
        journal: of the run.
        facts: of the artifact, to which the ids of its puzzles are added.
    """
    options = run.options
    best = journal.best() if options.keep == "best" else None
    state = None if best else weights.gathered(trainer)
    if not trainer.is_world_process_zero():
        return
    with artifacts.writing(
        run.out, run.kind, options=run.recorded, inputs=run.inputs, libraries=LIBRARIES
    ) as writer:
        if best:
            shutil.copytree(run.checkpoints.best(best[0]), writer.path, dirs_exist_ok=True)
        else:
            weights.save(trainer, run.ref, options, writer.path, state)
        if run.example:
            chat_template.complete_user_turn(loaded.tokenizer, run.example)
        loaded.tokenizer.save_pretrained(writer.path)
        if run.ids is not None:
            ids = writer.path / model_files.TRAINED_IDS
            model_files.write_trained_ids(ids, run.ids)
            shutil.copyfile(ids, training_log.beside(run.log, ids.name))
            digest = file_sha256(ids)
            count = len(run.ids)
            facts["trained_ids"] = {"file": ids.name, "sha256": digest, "count": count}
        writer.facts.update(facts)
    if not options.keep_checkpoints:
        run.checkpoints.clear()


def outcome_warnings(facts: JsonObject, start: float | None) -> dict[str, str]:
    """Return warnings about a finished run.

    Args:
        facts: of the run.
        start: the validation accuracy before the first step, if known.
    """
    texts = {}
    if facts["steps"] > 1 and facts.get("loss_last_tenth", 0.0) >= facts.get("loss_first", 1.0):
        texts["loss"] = "the loss did not fall; more steps or another --learning-rate."
    share = facts.get("eval_correct")
    if start is not None and share is not None and share < start:
        fall = f"validation accuracy fell from {start:.1%} to {share:.1%}"
        texts["fall"] = f"{fall}; --keep best keeps the best weights."
    return texts


def all_facts(
    run: Prepared[Settings], trainer: Trainer, loaded: load.Loaded, journal: Journal
) -> JsonObject:
    """Return the facts of the manifest."""
    # Counts packed and sharded weights too; it reads nothing but named_parameters.
    trainable, total = PeftModel.get_nb_trainable_parameters(trainer.model)
    rows = journal.rows
    facts: JsonObject = {
        "command": f"countdown-rl {run.options.command}",
        "method": run.options.method,
        "steps": rows[-1].step,
        "precision": loaded.precision,
        "path": loaded.storage,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "processes": trainer.accelerator.num_processes,
    }
    micro_batch = trainer.args.per_device_train_batch_size
    if micro_batch != run.recorded["micro_batch"]:  # halved, as its first step did not fit
        facts["micro_batch"] = micro_batch
    if code := run.identity.machine["code"]:
        facts["code"] = code
    if loaded.device == "cpu":  # the rounding, and so the bytes of the weights, depend on these
        facts["threads"] = journal.threads
        facts["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    best = journal.best() if run.options.keep == "best" else None
    step, correct = best or (rows[-1].step, rows[-1].eval_correct)
    if correct is not None:
        facts |= {"kept_step": step, "eval_correct": correct}
    last_tenth = rows[-max(1, len(rows) // 10) :]
    return facts | run.facts(rows, training_log.mean(last_tenth))

"""A run of ``train`` or ``sft``: prepare it, train, and write its artifact."""

import atexit
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import Trainer

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ModelError, out_of_memory
from countdown_rl.core.formatting import flag
from countdown_rl.core.identity import Identity, finished
from countdown_rl.evaluation import training_log
from countdown_rl.models import chat_template, load
from countdown_rl.models.load import Loaded
from countdown_rl.training import weights
from countdown_rl.training.prepared import LIBRARIES, SILENT, Arguments, LogRow, Places, Prepared, Reporter, Settings
from countdown_rl.training.state import Journal, step_of

#: Checks everything that a run needs before its weights are loaded, and writes nothing.
Prepare = Callable[[Arguments, Settings, Reporter], Prepared[Settings]]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    out: Path
    log: Path
    rows: Sequence[LogRow] = field(repr=False)  # one per step; empty if the artifact of the same run was already there
    facts: Mapping[str, Any]
    warnings: Mapping[str, str] = field(default_factory=dict)  # the printed sentences by a short name
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
            return _finished(run, overwrite) or train(run)
        except (KeyboardInterrupt, processes.Terminated):
            reporter.note(places.checkpoints.how_to_continue())
            raise


def _finished(run: Prepared[Settings], overwrite: bool) -> Result | None:
    """The result that is there already, see :func:`finished`."""
    identity = Identity(type(run.options), run.recorded, run.inputs, {"code": run.identity.machine["code"]})
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
            lower = f"{flag('micro_batch')} or {run.length_options(trainer)}, or add {flag('gradient_checkpointing')}"
            kind = ModelError if processes.is_main() else MemoryError
            raise kind(f"the run does not fit in memory; lower {lower}.") from error
        if (number := processes.received_signal()) and trainer.state.global_step < run.max_steps:
            raise processes.Terminated(number)


def _finish(run: Prepared[Settings], trainer: Trainer, loaded: Loaded, journal: Journal) -> Result:
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
        peak = {"peak": torch.cuda.max_memory_allocated(), "estimate": run.memory.estimates[-1].peak}
        measured, expected = (f"{count / 2**30:.1f} GiB" for count in peak.values())
        note(f"Peak memory of the GPU: {measured}, estimated {expected}.")
    note(f"Wrote {run.out}: {run.summary.format_map(facts)}")
    if "kept_step" in facts:
        step = f"step {facts['kept_step']}" if facts["kept_step"] else "the initial policy"
        after = f"{facts['eval_correct']:.1%} after; the weights are those of {step}."
        note(f"Validation accuracy: {journal.start:.1%} before training, {after}")
    resumed = step_of(run.resume) if run.resume else None
    return Result(run.out, run.log, journal.rows, facts, journal.warnings, resumed, peak)


def all_facts(run: Prepared[Settings], trainer: Trainer, loaded: Loaded, journal: Journal) -> dict[str, object]:
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
        facts |= {"threads": journal.threads, "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    if correct is not None:
        facts |= {"kept_step": step, "eval_correct": correct}
    return facts | run.facts(rows, training_log.mean(rows[-max(1, len(rows) // 10) :]))

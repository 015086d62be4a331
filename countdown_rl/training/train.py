"""Training stage: GRPO on a LoRA adapter or on all weights, from artifacts to an ``adapter`` or ``model`` artifact.

A run that was killed resumes from its last checkpoint.
"""

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl import artifacts, processes
from countdown_rl.errors import ModelError
from countdown_rl.inference.generate import STOP, out_of_memory
from countdown_rl.models import chat_template, load, lora, reference
from countdown_rl.runlog import log, trackers
from countdown_rl.runlog.journal import Journal
from countdown_rl.runlog.log import StepRow
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row
from countdown_rl.training import rewards, trl_config
from countdown_rl.training.checkpoints import Checkpoints, step_of
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import Curriculum, in_turn
from countdown_rl.training.prepare import LIBRARIES, Prepared

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        rows: one per step.
        facts: as in the manifest of the adapter.
        warnings: the sentences that were printed, by a short name.
        resumed: the step from which the run was resumed, or None.
        loading: Python that loads the adapter with PEFT; None where all weights were trained.
        memory: measured peak of the GPU and the estimate for it, in bytes; None on another device.
    """

    out: Path
    rows: list[StepRow]
    facts: dict[str, Any]
    warnings: dict[str, str]
    resumed: int | None
    loading: str | None
    memory: dict[str, int] | None = None


def train(
    prepared: Prepared,
    *,
    on_step: Callable[[StepRow], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Train with GRPO; write an ``adapter`` artifact, or a ``model`` artifact of all weights.

    Args:
        prepared: from :func:`countdown_rl.training.prepare.prepare`.
        on_step: called after every optimiser step.
        on_note: called with remarks.
        on_warning: called once with each warning about the course of training.

    Raises:
        CountdownError: the weights cannot be loaded, and nothing was changed; or a loss, gradient or weight is not
            finite, and the last checkpoint is kept.
        Terminated: a signal other than Ctrl-C came; the round was finished, and a checkpoint of it saved.
    """
    run, options, resume = prepared.run, prepared.options, prepared.resume
    main = processes.is_main()  # only rank 0 logs and writes
    if not main:
        on_note = lambda _: None  # noqa: E731 - as its default
    journal = Journal(run.log if main else None, options.logging_steps, options.max_steps)
    prepared.check_memory()
    trackers.prepare(options.report_to, (run.log or run.checkpoints).parent)
    for caution in options.cautions():
        on_warning(caution)
    loaded = _load(prepared)
    if loaded.note:
        on_note(loaded.note)
    if resume:
        journal.load(resume)
        on_note(f"Continuing after step {step_of(resume)}.")
    trainer = _trainer(prepared, loaded, journal, on_step=on_step, on_warning=on_warning)
    base = prepared.ref.base or prepared.ref
    save = partial(_save, trainer, base, options)
    if prepared.validation:
        from countdown_rl.training.validation import Validation

        trainer.add_callback(Validation(options, trainer, prepared.validation, journal, prepared.store, save))
    _run(trainer, prepared, journal)

    facts = _facts(trainer, options, loaded, journal)
    memory = _peak_memory(prepared, on_note) if loaded.device.startswith("cuda") else None
    best = journal.best() if options.keep == "best" else None
    state = None if best else trainer.gathered()
    if main:
        described = asdict(options) | {"model": prepared.ref.reference, "revision": prepared.ref.revision}
        with artifacts.writing(
            run.out, options.kind, options=described, inputs=prepared.inputs, libraries=LIBRARIES
        ) as draft:
            if best:
                shutil.copytree(prepared.store.best(best[0]), draft.path, dirs_exist_ok=True)
            else:
                save(draft.path, state)
            chat_template.complete_user_turn(loaded.tokenizer, prepared.rows[0].messages())
            loaded.tokenizer.save_pretrained(draft.path)
            draft.facts.update(facts, task=prepared.rows[0].task)
        prepared.store.clear()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    loading = lora.loading_code(run.out, base) if options.tune == "lora" else None
    resumed = step_of(resume) if resume else None
    return TrainResult(run.out, journal.rows, facts, journal.warnings, resumed, loading, memory)


def how_to_continue(checkpoints: Path) -> str:
    """The sentence for a user who stopped a run."""
    latest = Checkpoints(checkpoints, {}).newest()
    if latest is None:
        return "There is no checkpoint of this run yet; the same command starts it again."
    return f"The same command continues after step {step_of(latest)}; add --restart to begin again."


def _load(prepared: Prepared) -> load.Loaded:
    import torch

    torch.set_num_threads(prepared.options.threads or processes.cpu_threads())
    loaded = load.load(
        prepared.ref,
        precision=prepared.options.precision,
        trust_remote_code=prepared.run.trust_remote_code,
        trainable=prepared.ref.base is not None,  # an adapter is trained further
        sharded=processes.uses_fsdp(),
    )
    if loaded.device == "cpu":
        processes.keep_freed_memory()
    return loaded


def _trainer(
    prepared: Prepared,
    loaded: load.Loaded,
    journal: Journal,
    *,
    on_step: Callable[[StepRow], None],
    on_warning: Callable[[str], None],
) -> "Trainer":
    import peft
    from transformers import PrinterCallback

    from countdown_rl.inference.stop import Stop
    from countdown_rl.training import rollouts
    from countdown_rl.training.callbacks import Recorder
    from countdown_rl.training.trainer import Trainer

    options, rows = prepared.options, prepared.rows
    first_round = step_of(prepared.resume) // options.round_steps if prepared.resume else 0
    round_size = options.steps_per_generation * options.prompts
    curriculum = None
    if options.curriculum:
        curriculum = Curriculum(rows, size=round_size, seed=options.seed, evidence=journal.evidence)
        order = partial(curriculum.indices, first_round)
    else:
        order = partial(in_turn, len(rows), options.seed, first_round * round_size)
    recorder = Recorder(
        options, journal, prepared.store, curriculum, task_of(rows[0]), on_step=on_step, on_warning=on_warning
    )
    grading = rewards.Grading(rows, loaded.tokenizer, recorder.on_graded)
    lora_config = peft.LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    weights = prepared.weights
    trainer = Trainer(
        options,
        rollouts.Rollouts(Stop(loaded.tokenizer, loaded.model, STOP)),
        model=loaded.model,
        reward_funcs=[grading.function(name) for name in weights],
        args=trl_config.grpo_config(options, loaded, list(weights.values()), prepared.store.directory),
        train_dataset=_prompts(rows, order, loaded.tokenizer),
        processing_class=loaded.tokenizer,
        callbacks=[recorder],
        # An adapter is trained further as it is.
        peft_config=lora_config if options.tune == "lora" and loaded.ref.base is None else None,
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for data
    engine = rollouts.resolve(options, loaded, sharded=trainer.shards_weights)
    if engine != "transformers":
        length = prepared.longest_prompt + options.max_completion_length
        rollouts.use_engine(trainer, engine, loaded, length, on_warning)
    return trainer


def _run(trainer: "Trainer", prepared: Prepared, journal: Journal) -> None:
    resume, max_steps, report_to = prepared.resume, prepared.options.max_steps, prepared.options.report_to
    trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
    if not resume and processes.is_main():
        prepared.store.begin()
    trainer.accelerator.wait_for_everyone()
    journal.write()
    with trackers.prints_to_stderr(report_to), processes.deferred_signals():
        try:
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            # A CountdownError is printed by rank 0 alone, and the memory of another process may be exhausted.
            raise (ModelError if processes.is_main() else MemoryError)(
                "the run does not fit in memory; lower --micro-batch or --max-completion-length, or add "
                "--gradient-checkpointing."
            ) from error
        if (number := processes.pending_signal()) and trainer.state.global_step < max_steps:
            raise processes.Terminated(number)
    if journal.rows[-1].step < max_steps:  # stopped on a collapse
        journal.write()


def _peak_memory(prepared: Prepared, on_note: Callable[[str], None]) -> dict[str, int]:
    import torch

    memory = {"peak": torch.cuda.max_memory_allocated(), "estimate": prepared.estimates[-1].peak}
    peak, expected = (f"{count / 2**30:.1f} GiB" for count in memory.values())
    on_note(f"Peak memory of the GPU: {peak}, estimated {expected}.")
    return memory


def _prompts(rows: Sequence[Row], order: Callable[[], Iterator[int]], tokenizer: Any) -> Any:
    """The endless data set of prompts, each with the index of its row."""
    import datasets

    def examples() -> Iterator[dict[str, Any]]:
        for index in order():
            yield {"prompt": chat_template.render(tokenizer, rows[index].messages()), "row": index}

    return datasets.IterableDataset.from_generator(examples)


def _save(
    trainer: "Trainer", base: reference.ModelRef, options: TrainOptions, directory: Path, state: dict[str, Any] | None
) -> None:
    """Write the trained weights to *directory*: an adapter over *base*, or a checkpoint of the whole model in bf16.

    Args:
        state: the weights, where the processes hold parts of them.
    """
    import torch

    policy = trainer.accelerator.unwrap_model(trainer.model)
    if options.tune == "lora":
        lora.save(policy, directory, base=base.location, revision=base.revision, weights=state)
        return
    dtype = torch.float32 if options.precision == "fp32" else torch.bfloat16
    tensors = (state or policy.state_dict()).items()
    tied = policy.all_tied_weights_keys
    policy.save_pretrained(directory, state_dict={name: value.to(dtype) for name, value in tensors if name not in tied})
    config = copy.deepcopy(policy.config)
    config.dtype = dtype  # not of the weights that are being trained
    config.save_pretrained(directory)


def _facts(trainer: "Trainer", options: TrainOptions, loaded: load.Loaded, journal: Journal) -> dict[str, Any]:
    import peft

    # Counts packed and sharded weights too; it reads nothing but named_parameters.
    trainable, total = peft.PeftModel.get_nb_trainable_parameters(trainer.model)
    rows = journal.rows
    last = log.mean(rows[-max(1, len(rows) // 10) :])
    return {
        "steps": rows[-1].step,
        "precision": loaded.precision,
        "path": loaded.storage,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "reward_first": rows[0].reward,
        "reward_last_tenth": last.reward,
        "correct_last_tenth": last.correct,
        "reward_best": max(row.reward for row in rows),
    } | _evaluated(options, journal)


def _evaluated(options: TrainOptions, journal: Journal) -> dict[str, Any]:
    """The step of the weights that are kept, and their evaluation; nothing without evaluations."""
    last = journal.rows[-1]
    step, correct = (options.keep == "best" and journal.best()) or (last.step, last.eval_correct)
    return {} if correct is None else {"kept_step": step, "eval_correct": correct}

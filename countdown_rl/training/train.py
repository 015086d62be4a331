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
from countdown_rl.errors import ArtifactError, ModelError
from countdown_rl.inference.generate import STOP, out_of_memory
from countdown_rl.models import chat_template, load, lora, reference
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog import trackers
from countdown_rl.runlog.journal import Journal
from countdown_rl.runlog.log import StepRow
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row
from countdown_rl.training import preflight, rewards, trl_config
from countdown_rl.training.checkpoints import Checkpoints, step_of
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import Curriculum, in_turn

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")
#: Options about logging and checkpoints, which do not change the weights.
_LOGGING = ("save_steps", "save_minutes", "logging_steps", "sample_every", "sample_size", "report_to")


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
    options: TrainOptions,
    *,
    model: str,
    data: Path,
    out: Path,
    checkpoints: Path,
    log: Path | None = None,
    revision: str | None = None,
    restart: bool = False,
    trust_remote_code: bool = False,
    on_step: Callable[[StepRow], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Train *model* with GRPO; write an ``adapter`` artifact at *out*, or a ``model`` artifact of all weights.

    Args:
        data: a data artifact, of which ``train.jsonl`` and for evaluations ``valid.jsonl`` are used, or one JSONL file.
        checkpoints: directory of an unfinished run. One with the same options, data and model is resumed, another
            one is refused. Cleared at the end.
        log: the CSV of the run, one :class:`StepRow` a line; samples of completions go beside it.
        restart: start from the beginning, whatever *checkpoints* holds.
        on_step: called after every optimiser step.
        on_note: called with remarks.
        on_warning: called once with each warning about the course of training.

    Raises:
        CountdownError: an argument or an input is not valid, and nothing was changed; or a loss, gradient or weight
            is not finite, and the last checkpoint is kept.
        Terminated: a signal other than Ctrl-C came; the round was finished, and a checkpoint of it saved.
    """
    preflight.check_paths(options, out=out, checkpoints=checkpoints, log=log)
    if not processes.is_main():  # only rank 0 logs and writes
        log, on_note = None, lambda _: None
    processes.ignore_scheduler()
    weights = rewards.parse(options.reward)
    rows, data_input = preflight.read_rows(data)
    rewards.check(weights, rows[:2])
    validation = preflight.read_validation(data, options) if options.eval_every else []
    ref = reference.resolve(model, revision=revision)
    preflight.check_model(ref, options, sharded=processes.shards_weights())
    inputs = {"model": ref.as_input(), "data": data_input}
    store = Checkpoints(checkpoints, _identity(options, inputs))
    resume = None if restart else _latest(store)
    trackers.prepare(options.report_to, (log or checkpoints).parent)
    if options.importance_sampling_level == "sequence" and options.loss_type != "grpo":
        on_warning(
            f"--importance-sampling-level sequence with --loss-type {options.loss_type} weights each completion by its "
            "length; GSPO is --loss-type grpo."
        )

    loaded = _load(ref, options, trust_remote_code)
    if loaded.device == "cpu":
        processes.keep_freed_memory()
    if loaded.note:
        on_note(loaded.note)
    count = processes.world_size()
    preflight.check_memory(loaded, options, count)
    longest = preflight.check_prompts(loaded, rows, options, validation)
    estimate = (
        preflight.estimate(ref, options, "cuda", loaded.precision, longest, count, trust_remote_code=trust_remote_code)
        if loaded.device.startswith("cuda")
        else None
    )
    journal = Journal(log, options.logging_steps, options.max_steps)
    if resume:
        journal.load(resume)
        on_note(f"Continuing after step {step_of(resume)}.")
    trainer = _trainer(options, loaded, rows, weights, store, journal, resume, on_step=on_step, on_warning=on_warning)
    _choose_engine(trainer, options, loaded, longest + options.max_completion_length, on_warning)
    save = partial(_save, trainer, ref.base or ref, options)
    if validation:
        from countdown_rl.training.validation import Validation

        trainer.add_callback(Validation(options, trainer, validation, journal, store, save))
    _run(trainer, options, store, journal, resume)

    facts = _facts(trainer, options, loaded, journal)
    memory = _peak_memory(estimate.peak, on_note) if estimate else None
    best = journal.best() if options.keep == "best" else None
    state = None if best else trainer.gathered()
    if processes.is_main():
        described = asdict(options) | {"model": ref.reference, "revision": ref.revision}
        with artifacts.writing(out, options.kind, options=described, inputs=inputs, libraries=LIBRARIES) as draft:
            if best:
                shutil.copytree(store.best(best[0]), draft.path, dirs_exist_ok=True)
            else:
                save(draft.path, state)
            chat_template.complete_user_turn(loaded.tokenizer, rows[0].messages())
            loaded.tokenizer.save_pretrained(draft.path)
            draft.facts.update(facts, task=rows[0].task)
        store.clear()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    loading = lora.loading_code(Path(out), ref.base or ref) if options.tune == "lora" else None
    resumed = step_of(resume) if resume else None
    return TrainResult(Path(out), journal.rows, facts, journal.warnings, resumed, loading, memory)


def how_to_continue(checkpoints: Path) -> str:
    """The sentence for a user who stopped a run."""
    latest = Checkpoints(checkpoints, {}).newest()
    if latest is None:
        return "There is no checkpoint of this run yet; the same command starts it again."
    return f"The same command continues after step {step_of(latest)}; add --restart to begin again."


def _identity(options: TrainOptions, inputs: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides the weights; only a run of the same identity is resumed."""
    settings = {key: value for key, value in asdict(options).items() if key not in _LOGGING}
    if processes.world_size() > 1:  # each has its own random numbers
        settings["processes"] = processes.world_size()
    return {"options": settings, "inputs": inputs, "versions": artifacts.versions(LIBRARIES)}


def _latest(store: Checkpoints) -> Path | None:
    """The checkpoint to resume from.

    Raises:
        ArtifactError: the directory holds an unfinished run of another identity.
    """
    latest = store.latest()
    if latest is None and (differences := store.differences()):
        raise ArtifactError(
            f"{store.directory} holds an unfinished run that is not this one ({'; '.join(differences)}); "
            "use its options to continue it, or give --restart (or delete that directory) to begin again."
        )
    return latest


def _load(ref: reference.ModelRef, options: TrainOptions, trust_remote_code: bool) -> load.Loaded:
    load.silence_libraries()
    import torch

    torch.set_num_threads(options.threads or processes.cpu_threads())
    trainable = ref.base is not None  # an adapter is trained further
    return load.load(
        ref,
        precision=options.precision,
        trust_remote_code=trust_remote_code,
        trainable=trainable,
        sharded=processes.uses_fsdp(),
    )


def _trainer(
    options: TrainOptions,
    loaded: load.Loaded,
    rows: Sequence[Row],
    weights: dict[str, float],
    store: Checkpoints,
    journal: Journal,
    resume: Path | None,
    *,
    on_step: Callable[[StepRow], None],
    on_warning: Callable[[str], None],
) -> "Trainer":
    import peft
    from transformers import PrinterCallback

    from countdown_rl.inference.stop import Stop
    from countdown_rl.training.callbacks import Recorder
    from countdown_rl.training.trainer import Trainer

    first_round = step_of(resume) // options.round_steps if resume else 0
    round_size = options.steps_per_generation * options.prompts
    curriculum = None
    if options.curriculum:
        curriculum = Curriculum(rows, size=round_size, seed=options.seed, evidence=journal.evidence)
        order = partial(curriculum.indices, first_round)
    else:
        order = partial(in_turn, len(rows), options.seed, first_round * round_size)
    recorder = Recorder(options, journal, store, curriculum, task_of(rows[0]), on_step=on_step, on_warning=on_warning)
    grading = rewards.Grading(rows, loaded.tokenizer, recorder.on_graded)
    lora_config = peft.LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = Trainer(
        model=loaded.model,
        reward_funcs=[grading.function(name) for name in weights],
        args=trl_config.grpo_config(options, loaded, list(weights.values()), store.directory),
        train_dataset=_prompts(rows, order, loaded.tokenizer),
        processing_class=loaded.tokenizer,
        callbacks=[recorder],
        # An adapter is trained further as it is.
        peft_config=lora_config if options.tune == "lora" and loaded.ref.base is None else None,
        stop=Stop(loaded.tokenizer, loaded.model, STOP),
        mask_truncated=options.mask_truncated_completions,
        discount=options.discount,
        divide_by_mean=options.scale_rewards == "mean",
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for data
    return trainer


def _choose_engine(
    trainer: "Trainer", options: TrainOptions, loaded: load.Loaded, length: int, on_warning: Callable[[str], None]
) -> None:
    """Let vLLM complete the prompts of *trainer*, of *length* tokens with their completions, where it is to."""
    from countdown_rl.training import rollouts

    name = rollouts.resolve(options, loaded, sharded=trainer.shards_weights)
    if name != "transformers":
        engine = rollouts.engine(trainer, name, loaded, length)
        trainer.use_engine(engine)
        if name == "vllm-server" and processes.is_main() and not engine.server_reports_drawn_probabilities():
            on_warning(
                "the vLLM server reports log-probabilities before temperature and top-p, which biases the importance "
                "sampling correction; start it with --logprobs-mode processed_logprobs."
            )


def _run(trainer: "Trainer", options: TrainOptions, store: Checkpoints, journal: Journal, resume: Path | None) -> None:
    trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
    if not resume and processes.is_main():
        store.begin()
    trainer.accelerator.wait_for_everyone()
    journal.write()
    with trackers.prints_to_stderr(options.report_to), processes.deferred_signals():
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
        if (number := processes.pending_signal()) and trainer.state.global_step < options.max_steps:
            raise processes.Terminated(number)
    if journal.rows[-1].step < options.max_steps:  # stopped on a collapse
        journal.write()


def _peak_memory(estimate: int, on_note: Callable[[str], None]) -> dict[str, int]:
    import torch

    memory = {"peak": torch.cuda.max_memory_allocated(), "estimate": estimate}
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
    last = trainlog.mean(rows[-max(1, len(rows) // 10) :])
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

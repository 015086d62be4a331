"""Parts of a fine-tuning run that ``sft`` and ``train`` share: loading, running, saving, and the artifact."""

import atexit
import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ModelError, UsageError, first_line, out_of_memory
from countdown_rl.models import chat_template, ends, load, lora, reference, torch_internals
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import log, trackers
from countdown_rl.training.checkpoints import Checkpoints, step_of
from countdown_rl.training.journal import Journal

AnyTrainer = TypeVar("AnyTrainer", bound=Any)

LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")

#: Options about logging and checkpoints, which do not change the weights.
_LOGGING = ("save_steps", "sample_every", "report_to")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The inputs, outputs and processes of a run.

    Attributes:
        checkpoints: directory of an unfinished run. One with the same options, data and model is resumed, another
            one is refused. Cleared at the end.
        log: the CSV of the run, one row a step; samples of completions go beside it.
        base_model: of an adapter, in place of the one that it records.
        restart: start from the beginning, whatever *checkpoints* holds.
        processes: number of processes that train; *sharded*: each holds a part of the weights.
        zero: the stage of DeepSpeed's ZeRO; 0 without DeepSpeed.
    """

    model: str
    out: Path
    checkpoints: Path
    log: Path | None = None
    revision: str | None = None
    base_model: str | None = None
    restart: bool = False
    trust_remote_code: bool = False
    sharded: bool = field(default_factory=processes.shards_weights)
    zero: int = field(default_factory=processes.zero_stage)
    processes: int = field(default_factory=processes.world_size)


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        rows: one per step.
        facts: as in the manifest.
        warnings: the sentences that were printed, by a short name.
        resumed: the step from which the run was resumed, or None.
        memory: measured peak of the GPU and the estimate for it, in bytes; None where they are not compared.
    """

    out: Path
    rows: list[Any]
    facts: dict[str, Any]
    warnings: dict[str, str]
    resumed: int | None
    memory: dict[str, int] | None = None


def checkpoints(run: Run, options: Any, inputs: Mapping[str, Any]) -> Checkpoints:
    """The checkpoints of *run*; their identity is everything that decides the weights."""
    settings = {key: value for key, value in asdict(options).items() if key not in _LOGGING}
    settings["processes"] = run.processes  # each has its own random numbers
    return Checkpoints(run.checkpoints, artifacts.identity(settings, inputs, versions=artifacts.versions(LIBRARIES)))


def read_validation(data: Path, options: Any) -> list[Row]:
    """The rows of the validation split of *data* that are evaluated during training."""
    if not options.eval_every:
        return []
    if data.is_file():
        raise UsageError(f"--eval-every needs a data directory with a validation split, and {data} is one file.")
    return jsonl.read_rows(data / "valid.jsonl")[: options.eval_size]


def resolve(run: Run) -> reference.ModelRef:
    """The model of *run*."""
    return reference.resolve(
        run.model, revision=run.revision, trust_remote_code=run.trust_remote_code, base_model=run.base_model
    )


def check_model(ref: reference.ModelRef, options: Any, *, sharded: bool) -> None:
    """Check that *ref* can be trained with *options*."""
    if options.tune == "all" and ref.base is not None:
        raise UsageError(f"--tune all trains a whole model, and {ref.source} is an adapter; merge it first.")
    if sharded and load.trained_precision(ref, options.precision) == "nf4":
        raise UsageError("FSDP and ZeRO-3 cannot shard 4-bit weights; add --precision bf16, or use --launch zero2.")


def new_adapter(options: Any) -> Any:
    """The configuration of a new adapter, on all linear layers."""
    from peft import LoraConfig

    return LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def check_adapter(ref: reference.ModelRef, skeleton: Any, options: Any) -> Any:
    """Put the adapter that a run of *options* trains on the *skeleton* of *ref*, as the run will, and return it."""
    from peft import get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    if options.tune == "all":
        return skeleton
    if ref.base is not None:
        adapter = lora.Adapter(reference.local_path(ref))
        adapter.check_unchanged_base()
        adapted = adapter.attach(skeleton, trainable=True)
        if isinstance(adapted.get_output_embeddings(), BaseTunerLayer):
            raise ModelError(
                f"{ref.source} has LoRA on its output head, which TRL's losses cannot train; merge it first."
            )
        return adapted
    try:
        return get_peft_model(skeleton, new_adapter(options), low_cpu_mem_usage=True)
    except ValueError as error:  # of an architecture whose layers PEFT does not adapt
        raise ModelError(f"{ref.source} takes no LoRA adapter: {first_line(error)} Give --tune all.") from error


def begin(prepared: Any, journal: Journal, on_note: Callable[[str], None]) -> load.Loaded:
    """Load the model of the run *prepared*, and into *journal* the past of a run that is resumed."""
    run, resume = prepared.run, prepared.resume
    trackers.prepare(prepared.options.report_to, (run.log or run.checkpoints).parent)
    if resume:
        journal.load(resume)
    journal.threads = journal.threads or prepared.options.threads or processes.cpu_threads()
    loaded = load_model(prepared.ref, prepared.options, journal.threads)
    on_note(_arithmetic(loaded))
    if note := chat_template.note(loaded.tokenizer):
        on_note(note)
    if resume:
        on_note(f"Continuing after step {step_of(resume)}.")
    return loaded


def finished(prepared: Any, *, overwrite: bool) -> artifacts.Manifest | None:
    """Return the manifest of what the run *prepared* has written already, see :func:`artifacts.finished`."""
    options = prepared.options
    this_run = artifacts.identity(_described(prepared), prepared.inputs)
    manifest = artifacts.finished(prepared.run.out, options.kind, this_run, overwrite=overwrite)
    if manifest and processes.is_main():
        prepared.store.clear_own()  # the run was killed between its last two steps
    return manifest


def _described(prepared: Any) -> dict[str, Any]:
    """The options in the manifest of the run *prepared*."""
    return asdict(prepared.options) | {"model": prepared.ref.portable_source, "revision": prepared.ref.revision}


def load_model(ref: reference.ModelRef, options: Any, threads: int | None = None) -> load.Loaded:
    """Load the model *ref* for training in *threads*; an adapter is trained further as it is."""
    import torch

    torch.set_num_threads(threads or options.threads or processes.cpu_threads())
    loaded = load.load_model(
        ref,
        precision=options.precision,
        trainable=ref.base is not None,
        sharded=processes.uses_fsdp(),
    )
    if loaded.device == "cpu":
        from countdown_rl.training import sft_internals

        processes.keep_freed_memory()
        sft_internals.score_less_at_a_time()
    return loaded


def computes_in_bf16(loaded: load.Loaded) -> bool:
    """Return True if autocast computes in bf16: where the model does, on CUDA GPUs and CPUs with such products."""
    import torch

    in_bf16 = loaded.model.dtype == torch.bfloat16 and loaded.device != "mps"
    return in_bf16 and torch_internals.has_bf16_products(loaded.device)


def _arithmetic(loaded: load.Loaded) -> str:
    """What *loaded* is trained in, as a sentence."""
    import torch

    dtype = "bf16" if loaded.model.dtype == torch.bfloat16 else "fp32"
    threads = torch.get_num_threads()
    where = f"{threads} CPU thread{'s' if threads > 1 else ''}" if loaded.device == "cpu" else loaded.device
    base = "" if loaded.precision == dtype else f"; base weights in {loaded.precision}"
    return f"Computing in {dtype} on {where}{base}."


def make_trainer(make: Callable[..., AnyTrainer], loaded: load.Loaded, options: Any, **settings: Any) -> AnyTrainer:
    """The trainer of *loaded* that *make* returns, quiet and with the trained weights in fp32.

    TRL casts one over 4-bit weights to bf16, in which small updates are lost.
    """
    import torch
    from transformers import PrinterCallback

    exact = {parameter: parameter.data for parameter in loaded.model.parameters() if parameter.requires_grad}
    trainer = make(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        peft_config=new_adapter(options) if options.tune == "lora" and loaded.ref.base is None else None,
        **settings,
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for data
    trainer.create_model_card = lambda *_, **__: None  # a checkpoint needs none
    if not trainer.is_deepspeed_enabled:  # which keeps fp32 copies of its own
        for parameter in trainer.model.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                parameter.data = exact.get(parameter, parameter.data).float()
    for adapter in getattr(trainer.model, "peft_config", {}).values():
        adapter.base_model_name_or_path = ""  # else PEFT asks the Hub for its vocabulary at every checkpoint
    return trainer


def run(trainer: Any, prepared: Any, journal: Journal, *, longest: str) -> None:
    """Train from the checkpoint of *prepared* or from the start, until the last step or a signal.

    Args:
        longest: the option that bounds the tokens of a sequence.

    Raises:
        Terminated: a signal came.
        ModelError: the memory is exhausted; MemoryError in all but the first process.
    """
    store, resume = prepared.store, prepared.resume
    trainer.accelerator.wait_for_everyone()  # until all processes have read the checkpoint
    if not resume and processes.is_main():
        store.begin()
    trainer.accelerator.wait_for_everyone()
    journal.write()
    with trackers.prints_to_stderr(prepared.options.report_to), processes.deferred_signals():
        try:
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            # A CountdownError is printed by rank 0 alone, and the memory of another process may be exhausted.
            raise (ModelError if processes.is_main() else MemoryError)(
                f"the run does not fit in memory; lower --micro-batch or {longest}, or add --gradient-checkpointing."
            ) from error
        if (number := processes.received_signal()) and trainer.state.global_step < journal.max_steps:
            raise processes.Terminated(number)
    if journal.rows[-1].step < journal.max_steps:  # stopped on a collapse
        journal.write()


def gathered(trainer: Any) -> dict[str, Any] | None:
    """The weights by name, in the first process, where each holds a part of them, else None. Call it in all of them."""
    zero = getattr(trainer.accelerator.state.deepspeed_plugin, "zero_stage", 0)
    if not (trainer.is_fsdp_enabled or zero == 3):
        return None
    state: dict[str, Any] | None = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return state


def save_weights(
    trainer: Any, ref: reference.ModelRef, options: Any, directory: Path, state: dict[str, Any] | None = None
) -> None:
    """Write the trained weights of *ref* to *directory*: an adapter, or a checkpoint of the whole model in bf16.

    Args:
        state: the weights, where the processes hold parts of them.
    """
    import torch

    policy, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    if options.tune == "lora":
        base = ref.base or ref
        further = lora.Adapter(reference.local_path(ref)).specs if ref.base else ()
        lora.save(policy, directory, base=base.location, revision=base.revision, weights=state, further=further)
    else:
        dtype = torch.float32 if options.precision == "fp32" else torch.bfloat16
        tied = policy.all_tied_weights_keys
        tensors = {name: value.to(dtype) for name, value in (state or policy.state_dict()).items() if name not in tied}
        policy.save_pretrained(directory, state_dict=tensors)
        config = copy.deepcopy(policy.config)
        config.dtype = dtype  # not of the weights that are being trained
        config.tie_word_embeddings = bool(tied)  # its file may say so beside a head of its own
        config.save_pretrained(directory)
    named, size = policy.generation_config.eos_token_id, policy.config.get_text_config().vocab_size
    ends.write(directory, ends.token_ids(tokenizer, named, size), tokenizer.pad_token_id)


def finish(
    trainer: Any,
    loaded: load.Loaded,
    prepared: Any,
    journal: Journal,
    facts: dict[str, Any],
    *,
    prompt: Sequence[Mapping[str, str]] | None,
) -> Result:
    """Write the artifact of the run *prepared*, and clear its checkpoints.

    Args:
        prompt: messages that the chat template is completed by, see :func:`chat_template.complete_user_turn`.
    """
    options, store, ref = prepared.options, prepared.store, prepared.ref
    facts = facts | _rounding(loaded, journal)
    best = journal.best() if options.keep == "best" else None
    state = None if best else gathered(trainer)
    if processes.is_main():
        described = _described(prepared)
        with artifacts.writing(
            prepared.run.out, options.kind, options=described, inputs=prepared.inputs, libraries=LIBRARIES
        ) as draft:
            if best:
                shutil.copytree(store.best(best[0]), draft.path, dirs_exist_ok=True)
            else:
                save_weights(trainer, ref, options, draft.path, state)
            if prompt:
                chat_template.complete_user_turn(loaded.tokenizer, prompt)
            loaded.tokenizer.save_pretrained(draft.path)
            draft.facts.update(facts)
        store.clear()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    if prepared.run.processes > 1:
        # Gloo's thread may still release its last work, for which it needs Python's lock. A process group that is freed
        # now would wait for that thread for ever, with the lock held.
        atexit.register(id, trainer.model_wrapped)
    resumed = step_of(prepared.resume) if prepared.resume else None
    return Result(prepared.run.out, journal.rows, facts, journal.warnings, resumed)


def _rounding(loaded: load.Loaded, journal: Journal) -> dict[str, Any]:
    """Facts of this machine on which the rounding, and so the bytes of the weights, depend."""
    import torch

    shared: dict[str, Any] = {"processes": processes.world_size()}
    if loaded.device != "cpu":
        return shared
    return shared | {"threads": journal.threads, "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def facts(trainer: Any, loaded: load.Loaded, options: Any, journal: Journal) -> tuple[dict[str, Any], Any]:
    """The facts of a manifest that both stages state, and the mean row of the last tenth of the run."""
    from peft import PeftModel

    # Counts packed and sharded weights too; it reads nothing but named_parameters.
    trainable, total = PeftModel.get_nb_trainable_parameters(trainer.model)
    rows = journal.rows
    step, correct = (options.keep == "best" and journal.best()) or (rows[-1].step, rows[-1].eval_correct)
    return {
        "steps": rows[-1].step,
        "precision": loaded.precision,
        "path": loaded.storage,
        "trainable_parameters": trainable,
        "total_parameters": total,
        **({} if correct is None else {"kept_step": step, "eval_correct": correct}),
    }, log.mean(rows[-max(1, len(rows) // 10) :])

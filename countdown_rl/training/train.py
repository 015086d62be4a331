"""The train stage: GRPO on a LoRA adapter, from artifacts to an artifact, continued where it was killed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl import artifacts, processes
from countdown_rl.data import jsonl
from countdown_rl.errors import ArtifactError, InputError, ModelError
from countdown_rl.models import chat_template, load, lora, reference
from countdown_rl.runlog import journal as history
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog import trackers
from countdown_rl.runlog.journal import History, Journal
from countdown_rl.runlog.log import StepRow
from countdown_rl.tasks.response_format import ANSWER_CLOSE
from countdown_rl.tasks.task import Row, parse_row
from countdown_rl.training import rewards, trl_config
from countdown_rl.training.checkpoints import Checkpoints, Due, step_of
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import Curriculum, in_turn, kind

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer

#: A completion that has given its answer has nothing more to say.
STOP = ANSWER_CLOSE
LIBRARIES = ("accelerate", "peft", "torch", "transformers", "trl")
#: Options that change how a run is watched or kept, and nothing of what it computes.
_WATCHING = ("save_steps", "save_minutes", "logging_steps", "sample_every", "sample_size", "report_to")


@dataclass(frozen=True)
class TrainResult:
    """What a finished run left: a row for every step, the sentences that it was warned with, by name, and
    the step it was continued from, or None."""

    out: Path
    rows: list[StepRow]
    facts: dict[str, Any]
    warnings: dict[str, str]
    resumed: int | None


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
    on_step: Callable[[StepRow], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a LoRA adapter on *model* with GRPO and write it at *out* as an ``adapter`` artifact.

    Args:
        data: a data artifact (its ``train.jsonl`` is used) or one JSONL file.
        checkpoints: where an unfinished run is kept; one with the same options, data and model continues
            from its last checkpoint, one with others is refused. Cleared when the run is finished.
        log: where the CSV of the run goes, one :class:`StepRow` a line; beside it go samples of completions
            and, at the end, a picture of the run.
        restart: begin again though there is something to continue, or something else in the way.
        on_step: called after every optimiser step.
        on_note: called with a sentence worth reading.
        on_warning: called with a sentence that says what goes wrong with the learning, each once.

    Raises:
        CountdownError: anything of the above is not as it should be; nothing was changed.
    """
    if not processes.is_main():  # the others compute, and neither write nor speak
        log = on_step = on_note = on_warning = None
    note = on_note or (lambda _: None)
    weights = rewards.parse(options.reward)
    artifacts.check_writable(out, "adapter")
    rows, data_input = read(data)
    ref = reference.resolve(model, revision=revision)
    inputs = {"model": ref.as_input(), "data": data_input}
    identity = {
        "options": {key: value for key, value in asdict(options).items() if key not in _WATCHING},
        "inputs": inputs,
        "versions": artifacts.versions(LIBRARIES),
    }
    if processes.world_size() > 1:  # each draws from random numbers of its own
        identity["options"]["processes"] = processes.world_size()
    store = Checkpoints(checkpoints, identity)
    resume = None if restart else store.latest()
    if not restart and not resume and (differences := store.differences()):
        raise ArtifactError(
            f"{checkpoints} holds an unfinished run that is not this one ({'; '.join(differences)}); "
            "go back to what it was to continue it, or give --restart (or delete that directory) to begin again."
        )
    beside = (log or checkpoints).parent
    trackers.prepare(options.report_to, beside)

    load.silence_libraries()
    import torch

    torch.set_num_threads(options.threads or processes.cpu_threads())
    loaded = load.load(
        ref, precision=options.precision, trust_remote_code=trust_remote_code, trainable=ref.base is not None
    )
    if loaded.note:
        note(loaded.note)
    check_prompts(loaded, rows, options)

    past = history.load(resume) if resume else History()
    journal = Journal(past, log, steps=options.max_steps, every=options.logging_steps)
    run = _Run(
        options,
        loaded,
        rows,
        weights,
        store,
        past,
        journal,
        on_step=on_step or (lambda _: None),
        on_warning=on_warning or (lambda _: None),
    )
    trainer = _trainer(run, step_of(resume) if resume else 0)
    if resume:
        note(f"Continuing after step {step_of(resume)}.")
    together = trainer.accelerator.wait_for_everyone
    together()  # until all have seen what there is to continue
    if not resume and processes.is_main():
        store.begin()
    together()
    journal.begin()
    with trackers.aside(options.report_to):
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)

    facts = _facts(trainer, run)
    whole = trainer.gathered()
    if processes.is_main():
        with artifacts.writing(
            out,
            "adapter",
            options=asdict(options) | {"model": ref.reference, "revision": ref.revision},
            inputs=inputs,
            libraries=LIBRARIES,
        ) as draft:
            base = ref.base or ref
            policy = trainer.accelerator.unwrap_model(trainer.model)
            lora.save(policy, draft.path, base=base.location, revision=base.revision, weights=whole)
            loaded.tokenizer.save_pretrained(draft.path)
            draft.facts.update(facts)
        journal.end()
        store.clear()
    together()
    trainer.accelerator.end_training()
    return TrainResult(Path(out), past.rows, facts, past.warnings, step_of(resume) if resume else None)


def how_to_continue(checkpoints: Path) -> str:
    """What a person who stopped a run should know."""
    latest = Checkpoints(checkpoints, {}).newest()
    if latest is None:
        return "Nothing was kept of this run; the same command begins it again."
    return f"The same command continues after step {step_of(latest)}; add --restart to begin again."


def read(data: Path) -> tuple[list[Row], dict[str, Any]]:
    """The training rows at *data* (a data artifact or one JSONL file), and how they are written down as an input."""
    data = Path(data)
    if data.is_file():
        return jsonl.read_rows(data), artifacts.file_input(data)
    manifest = artifacts.read(data, "data")
    return jsonl.read_rows(data / "train.jsonl"), manifest.as_input()


def check_prompts(loaded: load.Loaded, rows: Sequence[Row], options: TrainOptions) -> int:
    """Refuse what the run would draw and could not train on, before any time is spent.

    Returns:
        The tokens of the longest prompt that the run would draw.

    Raises:
        InputError: a prompt is longer than its budget; the row is named.
        ModelError: prompt and completion together are longer than the model can read.
    """
    longest = 0
    count = -(-options.max_steps // options.num_iterations) * options.prompts
    drawn: Sequence[int] = range(len(rows))  # any, where a curriculum chooses
    if not options.curriculum:
        drawn = sorted(set(islice(in_turn(len(rows), options.seed), count)))
    for start in range(0, len(drawn), 1024):
        part = [rows[index] for index in drawn[start : start + 1024]]
        prompts = [_prompt(loaded.tokenizer, row) for row in part]
        for row, ids in zip(part, loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"], strict=True):
            longest = max(longest, len(ids))
            if len(ids) > options.max_prompt_length:
                raise InputError(
                    f"the prompt of row {row.get('id', '?')} has {len(ids)} tokens and --max-prompt-length "
                    f"is {options.max_prompt_length}; raise it, or leave that row out."
                )
    room = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if room and longest + options.max_completion_length > room:
        raise ModelError(
            f"the model reads {room} tokens, but the longest prompt ({longest}) and --max-completion-length "
            f"({options.max_completion_length}) need {longest + options.max_completion_length}."
        )
    return longest


def _prompt(tokenizer: Any, row: Row) -> str:
    return chat_template.render(tokenizer, row.messages())


@dataclass
class _Run:
    """What a run is made of, on its way into a trainer."""

    options: TrainOptions
    loaded: load.Loaded
    rows: Sequence[Row]
    weights: Mapping[str, float]
    store: Checkpoints
    past: History
    journal: Journal
    on_step: Callable[[StepRow], None]
    on_warning: Callable[[str], None]

    @property
    def round_steps(self) -> int:
        """Steps that a batch of completions serves; only between rounds is nothing in flight that a
        checkpoint would lack."""
        return self.options.steps_per_generation * self.options.num_iterations


def _trainer(run: _Run, done: int) -> "Trainer":
    """The trainer of *run*, which has *done* steps behind it."""
    import datasets
    import peft
    from transformers import PrinterCallback

    from countdown_rl.inference.cpu_decoder import Stop
    from countdown_rl.training.callbacks import Graded, Grading, Recorder
    from countdown_rl.training.trainer import Trainer

    options, loaded, rows, past = run.options, run.loaded, run.rows, run.past
    tokenizer = loaded.tokenizer
    puzzles = options.steps_per_generation * options.prompts  # a round
    first = done // run.round_steps
    curriculum = None
    if options.curriculum:
        curriculum = Curriculum(rows, size=puzzles, seed=options.seed, evidence=past.evidence)

    def prompts() -> Iterator[dict[str, Any]]:
        order = curriculum.draws(first) if curriculum else in_turn(len(rows), options.seed, first * puzzles)
        for index in order:
            yield {"prompt": _prompt(tokenizer, rows[index]), "row": rows[index]}

    def graded(step: int, batch: Sequence[Graded]) -> None:
        recorder.graded(step, batch)
        if curriculum:
            from accelerate.utils import gather_object

            outcomes = gather_object([(kind(one.row), bool(one.grade.correct)) for one in batch])
            curriculum.saw(outcomes, options.num_generations)

    def stepped(row: StepRow) -> None:
        run.journal.step(row)
        run.on_step(row)

    def checkpoint_written(path: Path) -> None:
        if curriculum:
            past.evidence = curriculum.evidence
        past.save(path)
        run.store.keep(path)

    recorder = Recorder(
        past.rows,
        warnings=past.warnings,
        seed=options.seed,
        sample_size=options.sample_size,
        sampled=lambda step: _passes(step, options.sample_every, run.round_steps),
        due=Due(options, run.round_steps),
        on_step=stepped,
        on_warning=run.on_warning,
        on_sample=run.journal.sample,
        on_checkpoint=checkpoint_written,
    )
    grading = Grading(
        lambda text, row: parse_row(row).grade(text),
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        graded,
    )
    lora = peft.LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = Trainer(
        model=loaded.model,
        reward_funcs=[grading.function(name, rewards.reward(name)) for name in run.weights],
        args=config(options, loaded, list(run.weights.values()), run.store),
        train_dataset=datasets.IterableDataset.from_generator(prompts),
        processing_class=tokenizer,
        callbacks=[recorder],
        peft_config=None if loaded.ref.base else lora,  # an adapter is trained on as it is
        stop=Stop(tokenizer, loaded.model, STOP),
        mask_truncated=options.mask_truncated_completions,
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for data
    recorder.trainer = trainer
    return trainer


def _passes(step: int, every: int, stride: int) -> bool:
    """Whether one of the steps 1, 1 + *every*, ... lies within the *stride* steps up to *step*."""
    return every > 0 and (step - 1) // every != (step - 1 - stride) // every


def config(options: TrainOptions, loaded: load.Loaded, weights: list[float], store: Checkpoints) -> Any:
    """What TRL is told of a run."""
    accumulation = processes.micro_batches(
        options.prompts * options.num_generations, options.micro_batch, processes.world_size()
    )
    mixed = loaded.device.startswith("cuda") and loaded.precision != "fp32"
    own = dict(  # noqa: C408 - the names are those of GRPOConfig
        output_dir=str(store.directory),
        max_steps=options.max_steps,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * options.steps_per_generation,
        num_iterations=options.num_iterations,
        num_generations=options.num_generations,
        max_completion_length=options.max_completion_length,
        temperature=options.temperature,
        top_p=options.top_p,
        reward_weights=weights,
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.lr_scheduler_type,
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        adam_beta1=options.adam_beta1,
        adam_beta2=options.adam_beta2,
        max_grad_norm=options.max_grad_norm,
        loss_type=options.loss_type,
        scale_rewards=options.scale_rewards,
        importance_sampling_level=options.importance_sampling_level,
        beta=options.beta,
        epsilon=options.epsilon,
        epsilon_high=options.epsilon_high,
        gradient_checkpointing=options.gradient_checkpointing,
        bf16=mixed,
        ddp_find_unused_parameters=False,  # every part of the adapter is used
        use_cpu=loaded.device == "cpu",
        seed=options.seed,
        shuffle_dataset=False,  # the order of draws is ours, so that a continued run can start in its middle
        ignore_data_skip=True,
        save_strategy="no",  # the recorder says when
        logging_steps=1,
        report_to=list(options.report_to) or "none",
        project=trackers.PROJECT,
        disable_tqdm=True,
    )
    return trl_config.whole(own, options.trl)


def _facts(trainer: "Trainer", run: _Run) -> dict[str, Any]:
    parameters = list(trainer.model.parameters())
    rows = run.past.rows
    last = trainlog.mean(rows[-max(1, len(rows) // 10) :])
    return {
        "steps": run.options.max_steps,
        "precision": run.loaded.precision,
        "path": run.loaded.storage,
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "total_parameters": sum(p.numel() for p in parameters),
        "reward_first": rows[0].reward,
        "reward_last_tenth": last.reward,
        "correct_last_tenth": last.correct,
        "reward_best": max(row.reward for row in rows),
    }

"""Supervised fine-tuning by TRL's ``SFTTrainer``, from demonstrations to an ``adapter`` or ``model`` artifact.

The loss and its gradient are TRL's: the mean negative log-likelihood of the completions' tokens. Unlike TRL, trained
weights are held in fp32. A run that was killed resumes from its last checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from countdown_rl.core import processes
from countdown_rl.inference.generate import Decoding, Generator, batches
from countdown_rl.models.load import Loaded
from countdown_rl.training import trackers, tuning
from countdown_rl.training.journal import Journal
from countdown_rl.training.log import SftRow
from countdown_rl.training.prepare_sft import PreparedSft


def train(
    prepared: PreparedSft,
    *,
    on_step: Callable[[SftRow], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> tuning.Result:
    """Fine-tune; write an ``adapter`` artifact, or a ``model`` artifact of all weights.

    Args:
        prepared: from :func:`countdown_rl.training.prepare_sft.prepare`.
        on_step: called after every optimiser step.
        on_note: called with remarks.
        on_warning: called if no validation puzzle is solved at the end.
    """
    journal = Journal(prepared.run.log if processes.is_main() else None, prepared.max_steps, SftRow)
    loaded = tuning.begin(prepared, journal, on_note)
    trainer = _trainer(prepared, loaded, journal, on_step, on_warning)
    on_note(f"Training on {len(prepared.examples):,} examples, {prepared.max_steps:,} steps.")
    tuning.run(trainer, prepared, journal, longest="--max-length")
    facts = _facts(prepared, trainer, loaded, journal)
    known = prepared.demonstrations.kept
    prompts = (each.prompt for each in known if each.row is not None and not isinstance(each.prompt, str))
    return tuning.finish(trainer, loaded, prepared, journal, facts, prompt=next(prompts, None))


def _trainer(
    prepared: PreparedSft,
    loaded: Loaded,
    journal: Journal,
    on_step: Callable[[SftRow], None],
    on_warning: Callable[[str], None] = lambda _: None,
) -> Any:
    from trl import SFTTrainer

    from countdown_rl.training.validation import SftRecorder, Validation

    options, store = prepared.options, prepared.store
    recorder = SftRecorder(options, journal, store, on_step=on_step)
    trainer = tuning.make_trainer(
        SFTTrainer,
        loaded,
        options,
        args=sft_config(prepared, loaded),
        train_dataset=prepared.examples,
        callbacks=[recorder],
    )
    if prepared.validation:
        complete = partial(_complete, trainer, loaded, options.max_completion_length)
        trainer.add_callback(
            Validation(
                prepared, trainer, loaded, journal, complete=complete, figures=recorder.figures, on_warning=on_warning
            )
        )
    return trainer


def sft_config(prepared: PreparedSft, loaded: Loaded) -> Any:
    """The ``SFTConfig`` of a run."""
    from trl import SFTConfig

    options = prepared.options
    names = ("gradient_checkpointing", "lr_scheduler_type", "max_grad_norm", "seed", "warmup_steps", "weight_decay")
    return SFTConfig(
        **{name: getattr(options, name) for name in names},
        output_dir=str(prepared.store.directory),
        max_steps=prepared.max_steps,
        learning_rate=prepared.learning_rate,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.micro_batches(prepared.run.processes),
        max_length=None,  # longer demonstrations are an error already
        padding_free=options.packing,
        bf16=tuning.computes_in_bf16(loaded),
        use_cpu=loaded.device == "cpu",
        ddp_find_unused_parameters=False,
        save_strategy="no",  # the callback decides
        logging_steps=1,
        logging_nan_inf_filter=False,  # training stops there
        report_to=list(options.report_to) or "none",
        project=trackers.PROJECT,
        disable_tqdm=True,
    )


def _complete(trainer: Any, loaded: Loaded, max_new_tokens: int, prompts: list[str]) -> list[str]:
    """The most likely completion of each prompt; in several processes each completes a share of them."""
    from accelerate.utils import gather_object

    policy = trainer.accelerator.unwrap_model(trainer.model)
    policy.eval()
    generator = Generator(replace(loaded, model=policy), Decoding(max_new_tokens))
    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    own = range(trainer.accelerator.process_index, len(ids), trainer.accelerator.num_processes)
    texts: dict[int, str] = {}
    lengths = [len(ids[index]) for index in own]
    for batch in batches(lengths, lambda length: generator.max_rows(length, max_new_tokens)):
        indices = [own[position] for position in batch]
        completions = generator.complete([ids[index] for index in indices])
        texts |= {index: each.text for index, each in zip(indices, completions, strict=True)}
    policy.train()
    merged = {index: text for part in gather_object([texts]) for index, text in part.items()}
    return [merged[index] for index in range(len(prompts))]


def _facts(prepared: PreparedSft, trainer: Any, loaded: Loaded, journal: Journal) -> dict[str, Any]:
    facts, last = tuning.facts(trainer, loaded, prepared.options, journal)
    row = prepared.demonstrations.row()
    return facts | {
        "command": "countdown-rl sft",
        **({"task": row.task, "layout": row.layout} if row else {}),
        "demonstrations": prepared.demonstrations.facts(),
        "learning_rate": prepared.learning_rate,
        "tokens": int(journal.rows[-1].tokens),
        "loss_first": journal.rows[0].loss,
        "loss_last_tenth": last.loss,
        "token_accuracy_last_tenth": last.token_accuracy,
    }

"""Supervised fine-tuning by TRL's ``SFTTrainer``: what ``sft`` adds to a run.

The loss and its gradient are TRL's: the mean negative log-likelihood of the completions' tokens.
Unlike TRL, trained weights are held in fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log

import datasets
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from countdown_rl.core import processes
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.training_log import SftRow
from countdown_rl.inference.engine import Completion, batches
from countdown_rl.inference.generate import Generator
from countdown_rl.inference.sampling import Decoding
from countdown_rl.models import load, shape
from countdown_rl.tasks import probe
from countdown_rl.training import memory, weights
from countdown_rl.training.callbacks import CheckpointCallback
from countdown_rl.training.options import SftArguments, SftOptions
from countdown_rl.training.prepared import SILENT, Prepared, Reporter, Start
from countdown_rl.training.sft import demonstrations, tokens
from countdown_rl.training.sft.demonstrations import Demonstrations
from countdown_rl.training.state import Journal


class SftCallback(CheckpointCallback):
    """Warns of a model that predicts worse than a guess."""

    def warnings(self) -> dict[str, str]:
        first = self.journal.rows[0].loss
        uniform = log(self.run.loaded.model.config.get_text_config().vocab_size)
        if first <= uniform:
            return {}
        text = (
            f"the first loss is {first:.2f}, above {uniform:.2f} of a uniform guess; the model is "
            "not trained, or never writes such completions (`countdown-rl ask` shows what it does)."
        )
        return {"start": text}


@dataclass(frozen=True, kw_only=True)
class SftRun(Prepared[SftOptions]):
    """A run of ``sft`` that can start; *examples* are those of :func:`tokens.tokenize`."""

    row_type = SftRow
    summary = (
        "loss {loss_first:.3f} → {loss_last_tenth:.3f} nats per token (first step → last 10%), "
        "mean token accuracy {token_accuracy_last_tenth:.1%}."
    )

    demonstrations: Demonstrations
    examples: datasets.Dataset

    def make_trainer(self, loaded: load.Loaded, journal: Journal) -> Trainer:
        fields = weights.trainer_arguments(self.options, loaded, self.checkpoints.directory)
        fields |= {"max_steps": self.max_steps, "max_length": None}  # nothing is cut
        multiple = 32 if loaded.device.startswith("cuda") else None
        warmup = min(10, self.max_steps // 10)
        defaults = {"warmup_steps": warmup, "pad_to_multiple_of": multiple}
        return weights.make_trainer(
            SFTTrainer,
            loaded,
            self.options,
            args=weights.config(SFTConfig, self.options, fields, defaults),
            train_dataset=self.examples,
            callbacks=[SftCallback(self, journal)],
        )

    def validate(
        self, trainer: Trainer, loaded: load.Loaded, prompts: list[str]
    ) -> list[Completion]:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        policy.eval()
        limit = self.options.max_completion_length
        generator = Generator(replace(loaded, model=policy), Decoding(limit))
        ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
        completions: dict[int, Completion] = {}
        lengths = [len(prompt) + limit for prompt in ids]
        for batch in batches(lengths, generator.max_rows):
            completed = generator.complete([ids[index] for index in batch])
            completions |= zip(batch, completed, strict=True)
        policy.train()
        return [completions[index] for index in range(len(prompts))]

    def facts(self, rows: Sequence[SftRow], last: SftRow) -> JsonObject:
        asked: JsonObject = {}
        rows_of = [demonstration.row for demonstration in self.demonstrations.filtered]
        if row := next(filter(None, rows_of), None):
            learned = probe.prompt(row) | {"first": self.first}
            asked = {"task": row.task, "layout": row.layout, "prompt": learned}
        return {
            **asked,
            "demonstrations": self.demonstrations.facts(),
            "learning_rate": self.options.learning_rate,
            "tokens": int(rows[-1].tokens),
            "loss_first": rows[0].loss,
            "loss_last_tenth": last.loss,
            "token_accuracy_last_tenth": last.token_accuracy,
        }


def prepare(arguments: SftArguments, options: SftOptions, reporter: Reporter = SILENT) -> SftRun:
    """Check all that a run of ``sft`` needs before its weights are loaded; nothing is written."""
    start = Start.begin(arguments, options, reporter)
    options, tokenizer = start.options, start.loaded.tokenizer
    if options.eval_every and processes.shards_weights():
        raise UsageError(
            "needs all weights in each process, which FSDP and ZeRO-3 split.", option="eval_every"
        )
    known, inputs = demonstrations.read(
        options, arguments.files, arguments.data, tokenizer, reporter.progress
    )
    for text in known.notes:
        reporter.note(f"Of the demonstrations: {text}.")
    if known.warning:
        reporter.warning(known.warning)
    examples = tokens.tokenize(known.filtered, tokenizer)
    ids, count = examples[0]["input_ids"], examples[0]["labels"].count(-100)
    dataset = datasets.Dataset.from_list(examples)
    shape.check_tokens(start.adapted, dataset["input_ids"], arguments.model)
    start.longest_prompt(start.validation, options.max_completion_length)
    lengths = list(map(len, dataset["input_ids"]))
    longest = max(lengths)
    context = shape.ModelShape.of(start.loaded.model.config).context_length
    if context and longest > context:
        place = known.filtered[lengths.index(longest)].place
        raise InputError(
            f"{place}: prompt and completion have {longest} tokens, and the model reads {context}; "
            "remove that row."
        )
    max_steps = options.max_steps or ceil(
        options.num_train_epochs * ceil(len(dataset) / options.batch_size)
    )
    recognized = start.recognized(SftRow, inputs, max_steps)
    reporter.note(
        f"{plural(known.read, 'demonstration')}, {known.graded:,} graded; skipped: "
        f"{known.skipped() or 'none'}. {plural(max_steps, 'step')} at a peak rate of "
        f"{options.learning_rate:g}."
    )
    if known.wrong:
        reporter.note(f"Wrong: {known.why_wrong()}.")

    example = None
    for demonstration in known.filtered:
        if demonstration.row and not isinstance(demonstration.prompt, str):
            example = demonstration.prompt
            break
    return SftRun(
        **vars(start) | recognized,
        demonstrations=known,
        examples=dataset,
        max_steps=max_steps,
        ids=start.trained_ids(demonstration.row for demonstration in known.filtered),
        longest=longest,
        first=tokenizer.decode(ids[:count]),
        learned=tokenizer.decode(ids[count:]),
        example=example,
        details={"max_steps": max_steps, "longest": longest, "demonstrations": known.facts()},
        memory=memory.of_run(start.loaded, start.adapted),
    )

"""Supervised fine-tuning by TRL's ``SFTTrainer``: what ``sft`` adds to a run.

The loss and its gradient are TRL's: the mean negative log-likelihood of the completions' tokens. Unlike TRL, trained
weights are held in fp32.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.evaluation.training_log import SftRow
from countdown_rl.inference.generate import Completion, Decoding, Generator, batches
from countdown_rl.models import load, shape
from countdown_rl.training import memory, weights
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import SftArguments, SftOptions
from countdown_rl.training.run import Run
from countdown_rl.training.sft import demonstrations, tokens
from countdown_rl.training.sft.demonstrations import Demonstrations


class SftRun(Run):
    """A run of ``sft``; *examples* are token ids and labels, see :func:`tokens.tokenize`, packed or not."""

    command = "sft"
    row_type = SftRow
    length_option = "--max-length"
    less_memory = "--micro-batch or --max-length"

    arguments: SftArguments
    options: SftOptions
    demonstrations: Demonstrations
    examples: Any
    validation_examples: list[dict[str, list[int]]]

    def read(self) -> dict[str, Any]:
        if self.options.eval_every and processes.shards_weights():
            raise UsageError(f"{flag('eval_every')} needs all weights in each process, which FSDP and ZeRO-3 split.")
        self.demonstrations, inputs = demonstrations.read(
            self.options,
            self.arguments.files,
            self.arguments.data,
            lambda count: self.reporter.progress(count, count, "demonstrations read"),
            self.tokenizer,
        )
        for text in self.demonstrations.notes:
            self.reporter.note(f"Of the demonstrations: {text}.")
        if warning := self.demonstrations.warning:
            self.reporter.warning(warning)
        return inputs

    def encode(self, loaded: load.Loaded, adapted: Any) -> Memory:
        options, known = self.options, self.demonstrations
        if options.packing:
            tokens.check_packing(loaded.model.config, trust_remote_code=self.arguments.trust_remote_code)
        examples = tokens.tokenize(known, loaded.tokenizer, options.max_length)
        ids, count = examples[0]["input_ids"], examples[0]["labels"].count(-100)
        self.first, self.learned = map(loaded.tokenizer.decode, (ids[:count], ids[count:]))
        self.examples = tokens.dataset(examples, options)
        evaluated = Demonstrations(known.validation)
        self.validation_examples = tokens.tokenize(evaluated, loaded.tokenizer, options.max_length)
        shape.check_tokens(adapted, self.examples["input_ids"], self.arguments.model)
        self.longest_prompt(self.validation, loaded, adapted)
        self.longest = max(map(len, self.examples["input_ids"]))
        context = shape.ModelShape.of(loaded.model.config).context_length
        if context and self.longest > context:
            raise UsageError(
                f"the model reads {context} tokens, and a demonstration has {self.longest}; lower {flag('max_length')}."
            )
        steps_per_epoch = ceil(len(self.examples) / options.batch_size)
        self.max_steps = options.max_steps or ceil(options.num_train_epochs * steps_per_epoch)
        messages = (each.prompt for each in known.filtered if each.row is not None and not isinstance(each.prompt, str))
        self.example = next(messages, None)
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in known.left_out.items() if count)
        self.reporter.note(
            f"{plural(known.read, 'demonstration')}, {known.graded:,} graded; skipped: {skipped or 'none'}. "
            f"{plural(self.max_steps, 'step')} at a peak rate of {options.learning_rate:g}."
        )
        if known.wrong:
            self.reporter.note(f"Wrong: {known.why_wrong()}.")
        self.details = {"max_steps": self.max_steps, "longest": self.longest, "demonstrations": known.facts()}
        sizes = {"length": self.longest, "scored": self.longest}
        return memory.plan(loaded.model, adapted, options, loaded.precision, **sizes)

    def make_trainer(self, loaded: load.Loaded) -> tuple[Any, Any]:
        from trl import SFTTrainer

        from countdown_rl.training.callbacks import SftCallback

        callback = SftCallback(self)
        config = sft_config(self.options, loaded, self.checkpoints.directory, max_steps=self.max_steps)
        trainer = weights.make_trainer(
            SFTTrainer, loaded, self.options, args=config, train_dataset=self.examples, callbacks=[callback]
        )
        return trainer, callback

    def validate(self, trainer: Any, loaded: load.Loaded, prompts: list[str]) -> list[Completion]:
        policy, options = trainer.accelerator.unwrap_model(trainer.model), self.options
        limit = options.max_completion_length
        policy.eval()
        decoding = Decoding(limit, temperature=options.eval_temperature, seed=options.seed)
        generator = Generator(replace(loaded, model=policy), decoding)
        ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
        completions: dict[int, Completion] = {}
        for batch in batches(list(map(len, ids)), lambda length: generator.max_rows(length, limit)):
            number = len(completions)  # a seed for each batch
            completions |= zip(batch, generator.complete([ids[index] for index in batch], number), strict=True)
        policy.train()
        return [completions[index] for index in range(len(prompts))]

    def validation_loss(self, trainer: Any) -> dict[str, float]:
        """Mean negative log-likelihood in nats, and accuracy, of the tokens of the validation demonstrations."""
        policy, loss, correct, count = trainer.accelerator.unwrap_model(trainer.model), 0.0, 0, 0
        policy.eval()
        examples = self.validation_examples
        for batch in batches([len(example["input_ids"]) for example in examples], lambda _: self.options.micro_batch):
            # Padding on the right needs no mask: tokens do not see what follows them.
            ids, labels = (
                pad_sequence([torch.tensor(examples[index][name]) for index in batch], True, padding).to(policy.device)
                for name, padding in (("input_ids", 0), ("labels", -100))
            )
            learned = labels[:, 1:] != -100
            with torch.inference_mode():
                logits = policy(input_ids=ids).logits[:, :-1][learned].float()
            targets = labels[:, 1:][learned]
            loss += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            correct += int((logits.argmax(-1) == targets).sum())
            count += len(targets)
        policy.train()
        return {"eval_loss": loss / count, "eval_token_accuracy": correct / count} if count else {}

    def facts(self, last: SftRow) -> dict[str, Any]:
        row, logged = self.demonstrations.row(), self.journal.rows
        return {
            **({"task": row.task, "layout": row.layout} if row else {}),
            "demonstrations": self.demonstrations.facts(),
            "learning_rate": self.options.learning_rate,
            "tokens": int(logged[-1].tokens),
            "loss_first": logged[0].loss,
            "loss_last_tenth": last.loss,
            "token_accuracy_last_tenth": last.token_accuracy,
        }

    def summary(self, facts: Mapping[str, Any]) -> str:
        return (
            f"loss {facts['loss_first']:.3f} nats per token at first and {facts['loss_last_tenth']:.3f} in the last "
            f"tenth of the run, where {facts['token_accuracy_last_tenth']:.1%} of the tokens were the likeliest."
        )


def sft_config(options: SftOptions, loaded: load.Loaded, directory: Path, *, max_steps: int) -> Any:
    """The ``SFTConfig`` of a run with checkpoints in *directory*."""
    from trl import SFTConfig

    return SFTConfig(
        **weights.trainer_arguments(options, loaded, directory),
        max_steps=max_steps,
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        max_length=None,  # longer demonstrations are an error already
        padding_free=options.packing,
    )

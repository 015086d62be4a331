"""Supervised fine-tuning by TRL's ``SFTTrainer``: what ``sft`` adds to a run.

The loss and its gradient are TRL's: the mean negative log-likelihood of the completions' tokens. Unlike TRL, trained
weights are held in fp32.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import torch

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.evaluation.training_log import SftRow
from countdown_rl.inference.generate import Completion, Decoding, Generator, batches
from countdown_rl.models import load, shape
from countdown_rl.training import demonstrations, memory, trl_config, weights
from countdown_rl.training.config import SftArguments, SftOptions
from countdown_rl.training.demonstrations import Demonstrations
from countdown_rl.training.memory import Memory
from countdown_rl.training.run import Run


class SftRun(Run):
    """A run of ``sft``; *examples* are token ids and labels, see :func:`demonstrations.tokenize`, packed or not."""

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
            raise UsageError("--eval-every needs all weights in each process, which FSDP and ZeRO-3 split.")
        self.demonstrations, inputs = demonstrations.read(
            self.options,
            self.arguments.files,
            self.arguments.data,
            lambda count: self.reporter.progress(count, count, "demonstrations read"),
            self.tokenizer,
        )
        for text in self.demonstrations.notes:
            self.reporter.note(f"Of the demonstrations: {text}.")
        return inputs

    def encode(self, loaded: load.Loaded, adapted: Any) -> Memory:
        options, known = self.options, self.demonstrations
        if options.packing:
            check_packing(loaded.model.config, trust_remote_code=self.arguments.trust_remote_code)
        examples = demonstrations.tokenize(known, loaded.tokenizer, options.max_length)
        ids, count = examples[0]["input_ids"], examples[0]["labels"].count(-100)
        self.first, self.learned = map(loaded.tokenizer.decode, (ids[:count], ids[count:]))
        self.examples = dataset(examples, options)
        evaluated = Demonstrations(known.validation)
        self.validation_examples = demonstrations.tokenize(evaluated, loaded.tokenizer, options.max_length)
        shape.check_tokens(adapted, self.examples["input_ids"], self.arguments.model)
        self.longest_prompt(self.validation, loaded, adapted)
        self.longest = max(map(len, self.examples["input_ids"]))
        context = shape.ModelShape.of(loaded.model.config).context_length
        if context and self.longest > context:
            raise UsageError(
                f"the model reads {context} tokens, and a demonstration has {self.longest}; lower --max-length."
            )
        steps_per_epoch = ceil(len(self.examples) / options.batch_size)
        self.max_steps = options.max_steps or ceil(options.num_train_epochs * steps_per_epoch)
        messages = (each.prompt for each in known.filtered if each.row is not None and not isinstance(each.prompt, str))
        self.example = next(messages, None)
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in known.left_out.items() if count)
        self.reporter.note(
            f"{known.read:,} demonstrations, {known.graded:,} of them graded; skipped: {skipped or 'none'}. "
            f"{self.max_steps:,} steps at a peak rate of {options.learning_rate:g}."
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
        config = trl_config.sft_config(self.options, loaded, self.checkpoints.directory, max_steps=self.max_steps)
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
        for example in self.validation_examples:
            ids, labels = (torch.tensor(example[name], device=policy.device) for name in ("input_ids", "labels"))
            learned = labels[1:] != -100
            with torch.inference_mode():
                logits = policy(input_ids=ids[None]).logits[0, :-1][learned].float()
            targets = labels[1:][learned]
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


def dataset(examples: list[dict[str, list[int]]], options: SftOptions) -> Any:
    """The data set of *examples*, packed if *options* say so."""
    import datasets
    from trl import pack_dataset

    rows = datasets.Dataset.from_list(examples)
    return pack_dataset(rows.shuffle(seed=options.seed), options.max_length) if options.packing else rows


def check_packing(config: Any, *, trust_remote_code: bool = False) -> None:
    """Check with two layers of random weights that packed samples do not see each other in a model of *config*.

    Raises:
        UsageError: they do, or the architecture cannot read packed samples on this machine.
    """
    from transformers import AutoModelForCausalLM
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    samples = list(range(1, 13)), list(range(20, 30))
    device = load.device_name("auto")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(
                _shallow(config), dtype=torch.float32, trust_remote_code=trust_remote_code
            )
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
            model.to(device).eval()
            alone = [model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0] for ids in samples]
            rows = [{"input_ids": ids, "labels": ids} for ids in samples]
            batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
            del batch["labels"]
            inputs = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}
            packed = model(**inputs, use_cache=False).logits[0]
    except Exception as error:  # each architecture has its own
        raise UsageError(f"{config.model_type} cannot be trained with --packing: {first_line(error)}") from error
    expected = torch.cat(alone)
    if not (packed - expected).abs().max() < 1e-2 * expected.std():
        raise UsageError(f"packed samples would see each other in {config.model_type}; leave --packing out.")


def _shallow(config: Any) -> Any:
    """*config* with two layers and 64 tokens."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    layers, depth = text.num_hidden_layers, min(2, text.num_hidden_layers)
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:  # one value per layer
            setattr(text, name, value[:depth])
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = depth, 64, 0
    return shallow

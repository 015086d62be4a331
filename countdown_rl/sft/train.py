"""Supervised warm-up: a model learns to search by reading the traces of a solver (TRL's SFTTrainer).

From nothing it makes a small Llama and its tokenizer; from any model reference it goes on training that
model's weights. Either way the result speaks the prompts of :mod:`countdown_rl.tasks.task`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, processes
from countdown_rl.data import jsonl
from countdown_rl.models import chat_template, load, reference
from countdown_rl.sft import tokenizer, traces
from countdown_rl.sft.config import SftOptions
from countdown_rl.tasks.task import Row

#: How many rows the tokenizer is made from.
CORPUS = 5_000
#: Batches among which rows are sorted by length.
_CHUNK = 8
_LOG_EVERY = 10

LIBRARIES = ("tokenizers", "torch", "transformers", "trl")
#: Options that say what a model made from nothing is like; they had no part in one that was there before.
_SHAPE = ("vocab_size", "hidden_size", "layers", "heads", "intermediate_size", "context")

OnStep = Callable[[int, int, float], None]


def make(options: SftOptions, *, data: Path, out: Path, on_step: OnStep | None = None) -> dict[str, Any]:
    """Warm up on the training split of the data artifact at *data* and write a ``model`` artifact at *out*.

    The order in which a trace tries is found from the puzzles, unless the model has learned one already; it is
    written down in the manifest. Returns the facts of :func:`warm_up`.

    Raises:
        CountdownError: an input is missing or damaged, or *out* cannot be written; nothing was changed.
    """
    artifacts.check_writable(out, "model")
    inputs = {"data": artifacts.read(data, "data").as_input()}
    rows = jsonl.read_rows(data / "train.jsonl")
    learned: dict[int, list[traces.Way]] = {}
    settings = {key: value for key, value in asdict(options).items() if key != "threads"}
    if options.model is not None:
        settings = {key: value for key, value in settings.items() if key not in _SHAPE}
        ref = reference.resolve(options.model, revision=options.revision)
        inputs["model"] = ref.as_input()
        settings["model"] = ref.reference
        if ref.manifest:
            learned = {int(count): ways for count, ways in ref.manifest.facts.get("plan", {}).items()}
    order = learned | traces.plan([row for row in rows if len(row["nums"]) not in learned])
    load.silence_libraries()
    with artifacts.writing(out, "model", options=settings, inputs=inputs, libraries=LIBRARIES) as draft:
        facts = warm_up(rows, order, options, draft.path, on_step)
        draft.facts.update(facts | {"plan": {str(count): ways for count, ways in order.items()}})
    return facts


def warm_up(
    rows: Sequence[Row],
    order: traces.Plan,
    options: SftOptions,
    out: Path,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train on one trace a row, by *order*, and save weights (safetensors, bf16) and tokenizer to the directory *out*.

    ``on_step(step, steps, loss)`` is called as training goes on; the loss is in nats a token.

    Returns:
        Facts: parameters, traces, tokens trained on, and the mean loss of the last tenth of the steps.
    """
    import torch
    from transformers import set_seed

    torch.set_num_threads(options.threads or processes.cpu_threads())
    set_seed(options.seed)
    if options.model is None:
        tokens = tokenizer.build(_corpus(rows, order, options), options.vocab_size)
        model = _small_llama(options, tokens)
    else:
        loaded = load.load(reference.resolve(options.model, revision=options.revision), precision="fp32")
        model, tokens = loaded.model, loaded.tokenizer
    examples = _examples(rows, order, options, tokens)
    losses = _fit(model, tokens, examples, options, on_step)
    model.to(torch.bfloat16).save_pretrained(out)
    tokens.save_pretrained(out)
    tail = losses[-max(1, len(losses) // 10) :]
    return {
        "parameters": model.num_parameters(),
        "traces": len(examples["input_ids"]),
        "tokens": options.batch_size
        * options.max_steps
        * (sum(map(len, examples["input_ids"])) // len(examples["input_ids"])),
        "loss": round(sum(tail) / len(tail), 4),
    }


def _corpus(rows: Sequence[Row], order: traces.Plan, options: SftOptions) -> list[str]:
    texts = []
    for index, row in enumerate(rows[:CORPUS]):
        texts += [turn["content"] for turn in row.messages()]
        texts.append(_trace(row, index, order, options).text)
    return texts


def _trace(row: Mapping[str, Any], index: int, order: traces.Plan, options: SftOptions) -> traces.Trace:
    rng = random.Random(f"{options.seed}:{index}")
    return traces.trace(row, order, rng, give_up=options.give_up, max_lines=options.max_lines)


def _small_llama(options: SftOptions, tokens: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=-(-len(tokens) // 64) * 64,
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        intermediate_size=options.intermediate_size,
        max_position_embeddings=options.context,
        tie_word_embeddings=True,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )
    return LlamaForCausalLM(config)


def _examples(rows: Sequence[Row], order: traces.Plan, options: SftOptions, tokens: Any) -> dict[str, Any]:
    """Token ids of prompt and trace, (T,) each, and labels (T,) that leave out (-100) the prompt."""
    examples: dict[str, Any] = {"input_ids": [], "labels": []}
    for index, row in enumerate(rows[: options.max_steps * options.batch_size]):
        prompt = chat_template.render(tokens, row.messages())
        head = tokens(prompt, add_special_tokens=False)["input_ids"]
        trace = _trace(row, index, order, options)
        tail = tokens(trace.text, add_special_tokens=False)["input_ids"]
        if trace.ended:
            tail = [*tail, tokens.eos_token_id]
        examples["input_ids"].append(head + tail)
        examples["labels"].append([-100] * len(head) + tail)
    return examples


def _arranged(examples: dict[str, Any], options: SftOptions) -> dict[str, Any]:
    """*examples* in an order whose batches hold rows of similar length, the batches themselves shuffled.

    A batch costs as much as its longest row, but batches that come sorted pull the gradient to and fro.
    """
    rng = random.Random(options.seed)
    order = list(range(len(examples["input_ids"])))
    rng.shuffle(order)
    size, arranged = options.batch_size, []
    for start in range(0, len(order), size * _CHUNK):
        chunk = sorted(order[start : start + size * _CHUNK], key=lambda row: len(examples["input_ids"][row]))
        batches = [chunk[at : at + size] for at in range(0, len(chunk), size)]
        rng.shuffle(batches)
        arranged += [row for batch in batches for row in batch]
    return {name: [column[row] for row in arranged] for name, column in examples.items()}


def _fit(model: Any, tokens: Any, examples: dict[str, Any], options: SftOptions, on_step: OnStep | None) -> list[float]:
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from countdown_rl.sft.muon import Muon

    losses: list[float] = []

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))
                if on_step:
                    on_step(state.global_step, state.max_steps, losses[-1])

    class Trainer(SFTTrainer):
        def _send_telemetry(self) -> None:
            """Nothing here calls home."""

    rate, decay = options.learning_rate, options.weight_decay
    if options.optimizer == "muon":
        optimizer: torch.optim.Optimizer = Muon(model, lr=rate, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=decay)
    with tempfile.TemporaryDirectory() as scratch:
        config = SFTConfig(
            output_dir=scratch,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=rate,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": options.max_steps // 2, "min_lr_ratio": 0.02},
            warmup_steps=min(100, options.max_steps // 10),
            bf16=True,
            activation_checkpointing=False,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            pad_to_multiple_of=16,  # oneDNN keeps what it made for every shape: few shapes, little memory
            logging_steps=min(_LOG_EVERY, options.max_steps),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
            use_cpu=next(model.parameters()).device.type == "cpu",
        )
        trainer = Trainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_dict(_arranged(examples, options)),
            processing_class=tokens,
            callbacks=[Watch()],
            optimizers=(optimizer, None),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return losses

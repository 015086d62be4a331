"""Supervised warm-up: a model learns to search by reading the traces of a solver (TRL's SFTTrainer).

From nothing it makes a small Llama and its tokenizer; from any model reference it goes on training that
model's weights. Either way the result speaks the prompts of :mod:`countdown_rl.tasks`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, dataset, models, processes, tokenizer, traces, tries
from countdown_rl.errors import InputError
from countdown_rl.options import WarmupOptions
from countdown_rl.tasks import countdown

#: How many rows the tokenizer is made from.
CORPUS = 5_000
#: Batches among which rows are sorted by length.
_CHUNK = 8
_LOG_EVERY = 10

LIBRARIES = ("tokenizers", "torch", "transformers", "trl")
#: Options that say what a model made from nothing is like; they had no part in one that was there before.
_SHAPE = ("vocab_size", "hidden_size", "layers", "heads", "intermediate_size", "context")

OnStep = Callable[[int, int, float], None]
OnRows = Callable[[int, int], None]


def make(
    options: WarmupOptions, *, data: Path, out: Path, on_rows: OnRows | None = None, on_step: OnStep | None = None
) -> dict[str, Any]:
    """Warm up on the training split of the data artifact at *data* and write a ``model`` artifact at *out*.

    Returns the facts of :func:`warm_up`.

    Raises:
        CountdownError: an input is missing or damaged, or *out* cannot be written; nothing was changed.
    """
    artifacts.check_writable(out, "model")
    inputs = {"data": artifacts.read(data, "data").as_input()}
    rows = dataset.read_rows(data / "train.jsonl")
    settings = {key: value for key, value in asdict(options).items() if key != "threads"}
    if options.model is not None:
        settings = {key: value for key, value in settings.items() if key not in _SHAPE}
        ref = models.resolve(options.model, revision=options.revision)
        inputs["model"] = ref.as_input()
        settings["model"] = ref.reference
    models.quiet()
    with artifacts.writing(out, "model", options=settings, inputs=inputs, libraries=LIBRARIES) as draft:
        facts = warm_up(rows, options, draft.path, on_rows, on_step)
        draft.facts.update(facts)
    return facts


def warm_up(
    rows: Sequence[Mapping[str, Any]],
    options: WarmupOptions,
    out: Path,
    on_rows: OnRows | None = None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train on one trace a row and save weights (safetensors, bf16) and tokenizer to the directory *out*.

    Where the model's own tries are to fail in the traces, it tries first, and ``on_rows(done, rows)`` is called
    as it goes on. ``on_step(step, steps, loss)`` is called as training goes on; the loss is in nats a token.

    Returns:
        Facts: parameters, traces, tokens trained on, and the mean loss of the last tenth of the steps.
    Raises:
        InputError: no row has a solution that a trace can show.
    """
    import torch
    from transformers import set_seed

    torch.set_num_threads(options.threads or processes.threads())
    set_seed(options.seed)
    own = None
    if options.model is None:
        tokens = tokenizer.build(_corpus(rows, options), options.vocab_size)
        model = _small_llama(options, tokens)
    else:
        loaded = models.load(models.resolve(options.model, revision=options.revision), precision="fp32")
        model, tokens = loaded.model, loaded.tokenizer
        if options.tries == "own":
            rows = rows[: options.steps * options.batch_size]
            own = tries.tries(loaded, rows, seed=options.seed, on_rows=on_rows)
    examples = _examples(rows, own, options, tokens)
    losses = _fit(model, tokens, examples, options, on_step)
    model.to(torch.bfloat16).save_pretrained(out)
    tokens.save_pretrained(out)
    tail = losses[-max(1, len(losses) // 10) :]
    return {
        "parameters": model.num_parameters(),
        "traces": len(examples["input_ids"]),
        "tokens": options.batch_size
        * options.steps
        * (sum(map(len, examples["input_ids"])) // len(examples["input_ids"])),
        "loss": round(sum(tail) / len(tail), 4),
    }


def _corpus(rows: Sequence[Mapping[str, Any]], options: WarmupOptions) -> list[str]:
    texts = []
    for index, row in enumerate(rows[:CORPUS]):
        texts += [turn["content"] for turn in countdown.messages(row)]
        texts += ["".join(piece.text for piece in _trace(row, index, options, None) or ())]
    return texts


def _trace(
    row: Mapping[str, Any], index: int, options: WarmupOptions, own: Sequence[Sequence[str]] | None
) -> list[traces.Piece] | None:
    how: dict[str, Any] = {key: getattr(options, key) for key in ("hit_rate", "give_up", "max_lines", "learn_tries")}
    return traces.trace(row, random.Random(f"{options.seed}:{index}"), tried=own[index] if own else None, **how)


def _small_llama(options: WarmupOptions, tokens: Any) -> Any:
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


def _examples(
    rows: Sequence[Mapping[str, Any]], own: Sequence[Sequence[str]] | None, options: WarmupOptions, tokens: Any
) -> dict[str, Any]:
    """Token ids of prompt and trace, (T,) each, and labels that leave out (-100) all but the lessons."""
    examples: dict[str, Any] = {"input_ids": [], "labels": []}
    wanted = options.steps * options.batch_size
    for index, row in enumerate(rows):
        if len(examples["input_ids"]) == wanted:
            break
        pieces = _trace(row, index, options, own)
        if pieces is None:
            continue
        prompt = models.render(tokens, countdown.messages(row))
        head = tokens(prompt, add_special_tokens=False)["input_ids"]
        tail, labels = _tokenized(pieces, tokens)
        examples["input_ids"].append(head + tail)
        examples["labels"].append([-100] * len(head) + labels)
    if not examples["input_ids"]:
        raise InputError("no row has a solution in positive whole numbers; make data with `countdown-rl gen-data`.")
    return examples


def _tokenized(pieces: Sequence[traces.Piece], tokens: Any) -> tuple[list[int], list[int]]:
    """Ids (T,) of *pieces* as one text and its end, and labels (T,): -100 where a token begins in no lesson."""
    encoded = tokens("".join(piece.text for piece in pieces), add_special_tokens=False, return_offsets_mapping=True)
    lessons = [piece.lesson for piece in pieces for _ in piece.text]
    ids = encoded["input_ids"]
    labels = [
        token if lessons[start] else -100 for token, (start, _) in zip(ids, encoded["offset_mapping"], strict=True)
    ]
    return [*ids, tokens.eos_token_id], [*labels, tokens.eos_token_id]


def _arranged(examples: dict[str, Any], options: WarmupOptions) -> dict[str, Any]:
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


def _fit(
    model: Any, tokens: Any, examples: dict[str, Any], options: WarmupOptions, on_step: OnStep | None
) -> list[float]:
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from countdown_rl.muon import Muon

    losses: list[float] = []

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))
                if on_step:
                    on_step(state.global_step, state.max_steps, losses[-1])

    rate, decay = options.learning_rate, options.weight_decay
    if options.optimizer == "muon":
        optimizer: torch.optim.Optimizer = Muon(model, lr=rate, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=decay)
    with tempfile.TemporaryDirectory() as scratch:
        config = SFTConfig(
            output_dir=scratch,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=rate,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": options.steps // 2, "min_lr_ratio": 0.02},
            warmup_steps=min(100, options.steps // 10),
            bf16=True,
            activation_checkpointing=False,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            pad_to_multiple_of=16,  # oneDNN keeps what it made for every shape: few shapes, little memory
            logging_steps=min(_LOG_EVERY, options.steps),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
            use_cpu=next(model.parameters()).device.type == "cpu",
        )
        trainer = SFTTrainer(
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

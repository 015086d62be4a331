"""Pretraining of the shipped model: a small Llama and its tokenizer from nothing, on the traces of
:mod:`stages.recipes.tiny.traces`."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import InputError
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from stages.recipes.tiny import batches, tokenizer, traces
from stages.recipes.tiny.config import PretrainOptions
from stages.recipes.tiny.judge import SIZES, Judge

LIBRARIES = ("tokenizers", "torch", "transformers")
_LOG_STEPS = 10
#: Periods of the Fourier features of a number, and of its logarithm.
_PERIODS = (2, 3, 4, 5, 7, 9, 10, 11, 13, 20, 25, 50, 100, 200, 500, 1_000, 2_000)
_LOG_PERIODS = (0.5, 1.0, 2.0, 4.0, 8.0)

OnStep = Callable[[int, int, float], None]


def make(
    options: PretrainOptions,
    *,
    data: Path,
    out: Path,
    model: str = "",
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train on the training split of the data artifact at *data* and write a ``model`` artifact at
    *out*.

    The plan of the traces (see :func:`traces.find_plan`) is recorded in the manifest. A *model* of
    this function is trained further with its own plan. Returns the facts of :func:`train`.

    Raises:
        CountdownError: an input is missing or damaged, or *out* cannot be written; nothing was
            changed.
    """
    artifacts.check_writable(out, "model")
    inputs = {"data": artifacts.read(data, "data").as_input()}
    rows = jsonl.read_rows(data / "train.jsonl")
    if reason := next(filter(None, map(traces.unsupported, rows)), ""):
        raise InputError(f"{data}: traces {reason}; give --data other puzzles.")
    if options.judge and not any(len(row["nums"]) in SIZES for row in rows):
        raise InputError(
            f"{data}: --judge is for puzzles of 4 numbers, and there are none; leave it out."
        )
    settings = {key: value for key, value in asdict(options).items() if key != "threads"}
    ref = reference.find_model(model) if model else None
    if ref is None:
        plan = traces.find_plan(rows)
    else:
        inputs["model"] = ref.as_input()
        plan = traces.plan_of(ref.manifest.facts if ref.manifest else {})
        if missing := sorted({len(row["nums"]) for row in rows} - set(plan)):
            raise InputError(
                f"{model} has no plan for {missing[0]} numbers; "
                "give a model made by this command for them."
            )
    for count, ways in plan.items():
        if not ways:
            raise InputError(
                f"{data}: no puzzle of {count} numbers is solved by a line of a trace; "
                "leave these out."
            )
    with artifacts.writing(
        out, "model", options=settings, inputs=inputs, libraries=LIBRARIES
    ) as draft:
        facts = train(rows, plan, options, draft.path, ref, on_step)
        draft.facts.update(
            facts
            | {
                "command": "python -m stages.recipes.tiny",
                "plan": {str(count): ways for count, ways in plan.items()},
            }
        )
    return facts


def train(
    rows: Sequence[Row],
    plan: traces.Plan,
    options: PretrainOptions,
    out: Path,
    ref: reference.ModelRef | None = None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train on traces of *rows*, and save weights (safetensors, bf16) and tokenizer to the
    directory *out*.

    The model is *ref*, or a new one.

    ``on_step(step, steps, loss)`` is called every few steps; the loss is in nats per token.

    Returns:
        Facts: parameters, traces, tokens trained on, and the mean loss of the last tenth of the
            steps.
    """
    import torch
    from transformers import AddedToken, set_seed

    torch.set_num_threads(options.threads or processes.cpu_threads())
    set_seed(options.seed)
    if ref is None:
        tokens = tokenizer.build(batches.corpus(rows, plan), options.vocab_size)
        model = _new_model(options, tokens)
    else:
        loaded = load.load_model(ref, precision="fp32", device="cpu")
        tokens, model = loaded.tokenizer, loaded.model.requires_grad_(True)
    judges = {}
    if options.judge:
        texts = [f" {traces.SKIP_POOR}\n", *map(traces.kind_name, range(traces.KINDS))]
        tokens.add_tokens([AddedToken(text, normalized=False) for text in texts])
        model.resize_token_embeddings(-(-len(tokens) // 64) * 64)
        for size in SIZES:
            judges[size] = Judge([row for row in rows if len(row["nums"]) == size], plan[size])
    model.to(load.device_name("auto")).train()
    examples = batches.examples(rows, plan, options, tokens, judges)
    losses, seen = _fit(model, tokens, batches.batches(examples, options), options, on_step)
    model.to(torch.bfloat16).save_pretrained(out)
    chat_template.complete_user_turn(tokens, rows[0].messages())
    tokens.save_pretrained(out)
    tail = losses[-max(1, len(losses) // 10) :]
    return {"parameters": model.num_parameters(), **seen, "loss": round(sum(tail) / len(tail), 4)}


def _new_model(options: PretrainOptions, tokens: Any) -> Any:
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
    model = LlamaForCausalLM(config)
    _initialize_embeddings(model.get_input_embeddings().weight, tokens)
    return model


def _initialize_embeddings(weight: Any, tokens: Any) -> None:
    """Set the embeddings *weight* (V, H) in place: about unit length, those of numbers with Fourier
    features.

    Tokens of equal numbers share features of the number's residues and size, and tokens of equal
    form ("48, " and "7, ") share a vector of the form; cf. Fourier number embedding (Zhou et al.
    2025, arXiv:2502.09741).
    """
    import torch

    with torch.no_grad():
        width = weight.size(1)
        weight.normal_()
        count = len(_PERIODS) + len(_LOG_PERIODS)
        mixing = torch.randn(2 * count, width) / count**0.5
        forms: dict[str, torch.Tensor] = {}
        vocab = sorted(
            tokens.get_vocab().items(), key=lambda item: item[1]
        )  # its own order changes between runs
        for token, index in vocab:
            if (parts := tokenizer.number_of(token)) is not None:
                number, form = parts
                angles = [2 * math.pi * number / period for period in _PERIODS]
                angles += [2 * math.pi * math.log(number + 1) / period for period in _LOG_PERIODS]
                features = torch.tensor(
                    [wave(angle) for angle in angles for wave in (math.cos, math.sin)]
                )
                if form not in forms:
                    forms[form] = torch.randn(width)
                weight[index] = 0.8 * features @ mixing + 0.5 * forms[form] + 0.3 * weight[index]
        weight /= width**0.5


def _fit(
    model: Any,
    tokens: Any,
    steps: Iterator[list[batches.Batch]],
    options: PretrainOptions,
    on_step: OnStep | None,
) -> tuple[list[float], dict[str, int]]:
    """Train; return the loss of every :data:`_LOG_STEPS` steps, and the numbers of traces and
    tokens.
    """
    import torch
    from torch.nn import functional

    from countdown_rl.models import torch_internals
    from stages.recipes.tiny.loss import TeacherTargets
    from stages.recipes.tiny.muon_internals import muon_in_fp32

    device = next(model.parameters()).device
    if device.type == "cpu":
        model.set_attn_implementation(
            "eager"
        )  # its bf16 products are faster there than torch's kernel
    in_bf16 = torch_internals.has_bf16_products(device.type)
    optimizers = _optimizers(model, options)
    head = model.get_output_embeddings().weight
    targets_of = TeacherTargets(
        tokens, len(head), device, judges=options.judge, checks=options.checks
    )
    losses: list[float] = []
    recent: list[float] = []
    seen = {"traces": 0, "tokens": 0}
    for step in range(1, options.max_steps + 1):
        batch = [tuple(tensor.to(device) for tensor in part) for part in next(steps)]
        trained = sum(int((labels[:, 1:] >= 0).sum()) for _, labels, _ in batch)
        total = 0.0
        for ids, labels, ways in batch:
            labels = labels[:, 1:]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16):
                hidden = model.model(
                    input_ids=ids[:, :-1], use_cache=False
                ).last_hidden_state  # (B, T, H)
                logits = functional.linear(hidden[labels >= 0], head)  # (N, V)
            loss = (
                functional.cross_entropy(logits.float(), targets_of(labels, ways), reduction="sum")
                / trained
            )
            loss.backward()
            total += float(loss.detach())
            seen["traces"] += len(ids)
            seen["tokens"] += int((ids > 0).sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with muon_in_fp32(not in_bf16):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = options.learning_rate * _schedule(step, options)
                optimizer.step()
                optimizer.zero_grad()
        recent.append(total)
        if step % _LOG_STEPS == 0 or step == options.max_steps:
            losses.append(sum(recent) / len(recent))
            recent = []
            if on_step:
                on_step(step, options.max_steps, losses[-1])
    return losses, seen


def _optimizers(model: Any, options: PretrainOptions) -> list[Any]:
    """Muon for the weight matrices of the layers, AdamW for embeddings and norms.

    Muon orthogonalises each momentum matrix (Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon). Its step is scaled to AdamW's (Moonshot AI,
    arXiv:2502.16982), so one learning rate serves both.
    """
    import torch

    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    others = [
        parameter
        for parameter in model.parameters()
        if all(parameter is not matrix for matrix in matrices)
    ]
    rate, decay = options.learning_rate, options.weight_decay
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _schedule(step: int, options: PretrainOptions) -> float:
    """The share of the peak learning rate at *step*: warm-up, stable, linear decay to 2% (WSD)."""
    warmup = min(100, options.max_steps // 10)
    decay_steps = max(1, round(options.decay * options.max_steps))
    left = (options.max_steps - step) / decay_steps
    return min(1.0, step / max(1, warmup), 0.02 + 0.98 * left)

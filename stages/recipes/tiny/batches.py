"""Examples of supervised training: prompts with traces, in batches counted in tokens.

Traces of similar length share a micro-batch, so that there is little padding; a step has
micro-batches of several lengths. Traces are written while training goes on, a pool at a time.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from countdown_rl.models import chat_template
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row
from stages.recipes.tiny import traces
from stages.recipes.tiny.config import PretrainOptions
from stages.recipes.tiny.judge import Judge

#: Rows that the tokenizer is made from.
CORPUS = 5_000
#: Tokens of a micro-batch, padding included: fits the cache of a CPU.
MICRO_TOKENS = 2_048
#: Widths of micro-batches are multiples of this: oneDNN caches a kernel for every shape.
_WIDTH = 32
#: Rows whose traces are written and sorted by length at a time.
POOL = 2_048
#: Share of the traces that begin at most 23 lines before a way that reaches the target.
_NEAR_THE_END = 0.5

#: Token ids of prompt and trace, the length of the prompt, and the number of ways in the plan.
Example = tuple[list[int], int, int]
#: ids (B, T), labels (B, T) with -100 where nothing is trained, number of ways (B,)
Batch = tuple[Any, Any, Any]


def corpus(rows: Sequence[Row], plan: traces.Plan) -> list[str]:
    """Return prompts and traces for training a tokenizer."""
    texts = []
    for index, row in enumerate(rows[:CORPUS]):
        texts += [turn["content"] for turn in row.messages()]
        trace = traces.trace(row, plan, random.Random(index), max_lines=12)
        texts.append(row.style.opening + trace.text)
    return texts


def examples(
    rows: Sequence[Row],
    plan: traces.Plan,
    options: PretrainOptions,
    tokens: Any,
    judges: Mapping[int, Judge] = MappingProxyType({}),
) -> Iterator[Example]:
    """Yield examples without end: one per row and epoch, decided by the seed, the epoch and the
    row's index.

    *judges* are those of a teacher that judges ways, by count of numbers.
    """
    epoch = 0
    while True:
        for start in range(0, len(rows), POOL):
            prompts, texts, counts = [], [], []
            for index in range(start, min(start + POOL, len(rows))):
                rng = random.Random(f"{options.seed}:{epoch}:{index}")
                row = rows[index]
                if rng.random() < options.drills:
                    row = drill(row, rng)
                judge = judges.get(len(row["nums"]))
                trace = traces.trace(
                    row,
                    plan,
                    rng,
                    max_lines=options.max_lines,
                    near_the_end=rng.random() < _NEAR_THE_END and not options.checks,
                    good=judge(row) if judge else None,
                    checks=options.checks,
                )
                prompts.append(chat_template.render(tokens, row.messages()))
                counts.append(len(plan[len(row["nums"])]))
                texts.append(
                    row.style.opening + trace.text + (tokens.eos_token if trace.ended else "")
                )
            prompt_ids = tokens(prompts, add_special_tokens=False)["input_ids"]
            trace_ids = tokens(texts, add_special_tokens=False)["input_ids"]
            for prompt, completion, count in zip(prompt_ids, trace_ids, counts, strict=True):
                yield prompt + completion, len(prompt), count
        epoch += 1


def drill(row: Mapping[str, Any], rng: random.Random) -> Row:
    """Return a puzzle of the size, rule and style of *row* with mostly multiples of one number, for
    exact divisions.

    It need not have a solution.
    """
    base = rng.randint(2, 12)
    numbers = []
    for _ in row["nums"]:
        kind = rng.random()
        low, high = (1, 99 // base) if kind < 0.6 else (1, 12) if kind < 0.8 else (1, 99)
        numbers.append(rng.randint(low, high) * (base if kind < 0.6 else 1))
    kept = {key: row[key] for key in ("rule", "operators", "style") if key in row}
    return parse_row(kept | {"nums": numbers, "target": rng.randint(10, 100)})


def batches(examples: Iterator[Example], options: PretrainOptions) -> Iterator[list[Batch]]:
    """Yield steps without end, each a list of micro-batches of about ``batch_tokens`` tokens in
    all.
    """
    rng = random.Random(options.seed)
    step: list[Batch] = []
    count = 0
    while True:
        pool = sorted(islice(examples, POOL), key=lambda example: len(example[0]))
        parts: list[list[Example]] = [[]]
        for example in pool:
            if parts[-1] and (len(parts[-1]) + 1) * len(example[0]) > min(
                MICRO_TOKENS, options.batch_tokens
            ):
                parts.append([])
            parts[-1].append(example)
        rng.shuffle(parts)
        for part in parts:
            step.append(pad(part))
            count += sum(len(ids) for ids, *_ in part)
            if count >= options.batch_tokens:
                yield step
                step, count = [], 0


def pad(examples: Sequence[Example]) -> Batch:
    """Return *examples* as one batch, padded on the right."""
    import torch

    longest = -(-max(len(ids) for ids, *_ in examples) // _WIDTH) * _WIDTH + 1
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full((len(examples), longest), -100)
    for index, (tokens, prompt, _) in enumerate(examples):
        ids[index, : len(tokens)] = torch.tensor(tokens)
        labels[index, prompt : len(tokens)] = ids[index, prompt : len(tokens)]
    return ids, labels, torch.tensor([count for *_, count in examples])

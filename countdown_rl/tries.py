"""What a model itself tries: the lines of its own search, for traces that go on from its own mistakes.

A model that has only read a solver's failures tries a line again that has failed, because its own are not
those that it learned to go on from. The remedy is that of DAgger (Ross, Gordon and Bagnell 2011): let it act,
and show it what to do where that leads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from countdown_rl import generation, models
from countdown_rl.generation import Completion, Generator
from countdown_rl.tasks import countdown

#: Near the greedy choice, whose mistakes count, but not the same for every puzzle that looks alike.
TEMPERATURE = 0.7
#: It writes so many tokens, a few lines, and where it did not say yes or repeat itself it is asked to go on.
MAX_NEW_TOKENS, ROUNDS = 48, 4
#: Puzzles that it is asked together.
BLOCK = 2_048


def tries(
    loaded: models.Loaded,
    rows: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    on_rows: Callable[[int, int], None] | None = None,
) -> list[list[str]]:
    """For each of *rows* the lines that the model writes until it says yes or repeats itself, without verdicts.

    A line is an attempt as :mod:`countdown_rl.traces` writes it. Where the model gives up it is asked to go on
    all the same. ``on_rows(done, all)`` is called now and then.
    """
    decoding = generation.Decoding(MAX_NEW_TOKENS, TEMPERATURE, seed=seed)
    writer = Generator(loaded, decoding)
    found: list[list[str]] = []
    for start in range(0, len(rows), BLOCK):
        found += _block(writer, loaded, rows[start : start + BLOCK], start)
        if on_rows:
            on_rows(len(found), len(rows))
    return found


def _block(writer: Generator, loaded: models.Loaded, rows: Sequence[Mapping[str, Any]], number: int) -> list[list[str]]:
    texts = [models.render(loaded.tokenizer, countdown.messages(row)) + "\n" for row in rows]
    written: list[list[str]] = [[] for _ in rows]
    open_rows = list(range(len(rows)))
    for again in range(ROUNDS):
        if not open_rows:
            break
        so_far = [texts[row] + "".join(f"{line} no\n" for line in written[row]) for row in open_rows]
        prompts = loaded.tokenizer(so_far, add_special_tokens=False)["input_ids"]
        lengths = [len(ids) + MAX_NEW_TOKENS for ids in prompts]
        more = []
        for batch in generation.batches(lengths, partial(generation.fitting, loaded)):
            seeded = (number + batch[0]) * ROUNDS + again
            for at, completion in zip(batch, writer.complete([prompts[at] for at in batch], seeded), strict=True):
                if _continue(written[open_rows[at]], completion):
                    more.append(open_rows[at])
        open_rows = sorted(more)
    return written


def _continue(lines: list[str], completion: Completion) -> bool:
    """Append to *lines* those of *completion* that failed; say whether there may be more."""
    search = completion.text.partition("</think>")[0]
    for line in search.split("\n")[:-1]:  # what no newline ends is unfinished
        attempt, _, verdict = line.strip().rpartition(" ")
        if verdict == "no" and attempt not in lines:
            lines.append(attempt)
        elif line.strip():
            return False
    return True

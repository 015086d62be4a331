"""Evaluation: completions per second against the loop of most notebooks, on the same model, puzzles
and cores.

    python -m benchmarks.evaluation [--model MODEL] [--data FILE] [--n 200]

That loop calls ``generate`` on padded batches of 8 in file order, up to a fixed number of new
tokens.
"""

import argparse
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks import bench
from countdown_rl.inference import cpu_decoder, generate
from countdown_rl.inference.engine import STOP, batches
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import chat_template, load, reference
from countdown_rl.tasks import jsonl

BATCH = 8


def notebook(loaded, prompts, max_new_tokens):
    """Return the completions of *prompts* by the usual loop."""
    tokenizer = loaded.tokenizer
    completions = []
    for start in range(0, len(prompts), BATCH):
        batch = tokenizer(
            prompts[start : start + BATCH],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        ).to(loaded.device)
        with torch.no_grad():
            ids = loaded.model.generate(
                **batch,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        new_ids = ids[:, batch["input_ids"].shape[1] :]
        completions += tokenizer.batch_decode(new_ids, skip_special_tokens=True)
    return completions


class Endless(Stop):
    """Lets every completion reach the token limit."""

    def __init__(self, loaded):
        super().__init__(loaded.tokenizer, loaded.model, STOP)
        self.ids = set()

    def __call__(self, ids):
        return False


def ours(loaded, prompts, max_new_tokens, *, endless=False):
    """Return the completions of *prompts* by this package."""
    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    lengths = [len(prompt) + max_new_tokens for prompt in ids]
    generator = generate.Generator(loaded, generate.Decoding(max_new_tokens))
    if endless:
        generator.stop = Endless(loaded)
    completions = [""] * len(ids)
    for batch in batches(lengths, generator.max_rows):
        batch_ids = [ids[row] for row in batch]
        for row, completion in zip(batch, generator.complete(batch_ids), strict=True):
            completions[row] = completion.text
    return completions


def same_batches(loaded, prompts, max_new_tokens, *, endless=False):
    """Return the completions of *prompts* by ``generate`` in the batches of this package."""
    with mock.patch.object(cpu_decoder, "supports", return_value=False):
        return ours(loaded, prompts, max_new_tokens, endless=endless)


def lead_where_no_row_ends(loaded, prompts):
    """How many times as fast as ``generate`` this package completes *prompts* to 64 tokens each, in
    one batch.
    """

    def complete(method):
        method(loaded, prompts, 64, endless=True)
        return len(prompts)

    methods = {method.__name__: partial(complete, method) for method in (ours, same_batches)}
    rates = bench.rates(methods, rounds=2)
    return round(rates["ours"] / rates["same_batches"], 2)


def up_to_answer(completion):
    head, close, _ = completion.partition("</answer>")
    return (head + close).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data/test.jsonl"))
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--loop-n", type=int, help="puzzles for the loop, whose pace is steady")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="evaluation")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows = jsonl.read_rows(args.data)[: args.n]
    loaded = load.load_model(reference.find_model(args.model), precision=args.precision)
    prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in rows]
    asked = {notebook: prompts[: args.loop_n], ours: prompts, same_batches: prompts}
    completions = {}

    def complete(method):
        completions[method] = method(loaded, asked[method], args.max_new_tokens)
        return len(asked[method])

    for method in asked:  # warm up
        method(loaded, prompts[:BATCH], 8)
    rates = bench.rates({method.__name__: partial(complete, method) for method in asked}, rounds=1)

    pairs = list(zip(rows, completions[notebook], completions[ours], strict=False))
    same_text = same_answer = 0
    for row, looped, own in pairs:
        first, second = up_to_answer(looped), up_to_answer(own)
        same_text += first == second
        same_answer += row.grade(first).answer == row.grade(second).answer
    result = {
        "model": Path(args.model).name,
        "precision": loaded.precision,
        "puzzles": {method.__name__: len(of_method) for method, of_method in asked.items()},
        "max_new_tokens": args.max_new_tokens,
        "threads": args.threads,
        "completions_a_second_of_processor_time": rates,
        "times_faster": round(rates["ours"] / rates["notebook"], 2),
        "times_faster_than_generate_in_the_same_batches": round(
            rates["ours"] / rates["same_batches"], 2
        ),
        "times_faster_than_generate_where_no_row_ends": {
            str(n): lead_where_no_row_ends(loaded, prompts[:n]) for n in (32, 200)
        },
        "same_text_up_to_the_answer": f"{same_text} of {len(pairs)}",
        "same_answer": f"{same_answer} of {len(pairs)}",
    }
    bench.save(args.name, result)


if __name__ == "__main__":
    main()

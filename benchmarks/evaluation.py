"""Evaluation: completions a second against the loop that nearly every notebook has, on the same model,
puzzles and cores: ``generate`` on batches of 8 in file order, padded, up to a fixed number of new tokens.

    python -m benchmarks.evaluation [--model countdown-tiny] [--data artifacts/data/test.jsonl] [--n 200]
"""

import argparse
from collections import Counter
from functools import partial
from pathlib import Path

from benchmarks import bench

BATCH = 8


def notebook(loaded, prompts, max_new_tokens):
    """The usual loop. Texts in the order of *prompts*."""
    import torch

    texts = []
    for start in range(0, len(prompts), BATCH):
        batch = loaded.tokenizer(
            prompts[start : start + BATCH], return_tensors="pt", padding=True, add_special_tokens=False
        ).to(loaded.device)
        with torch.no_grad():
            written = loaded.model.generate(
                **batch,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=loaded.tokenizer.pad_token_id,
            )
        rows = written[:, batch["input_ids"].shape[1] :]
        texts += loaded.tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def ours(loaded, prompts, max_new_tokens):
    from countdown_rl import generation

    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    lengths = [len(one) for one in ids]
    size = generation.fitting(loaded, max(lengths) + max_new_tokens)
    generator = generation.Generator(loaded, generation.Decoding(max_new_tokens))
    texts = [""] * len(ids)
    for batch in generation.batches(lengths, size):
        for row, completion in zip(batch, generator.complete([ids[row] for row in batch]), strict=True):
            texts[row] = completion.text
    return texts


def upto_answer(text):
    head, close, _ = text.partition("</answer>")
    return (head + close).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data/test.jsonl"))
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--name", default="evaluation")
    given = parser.parse_args()

    import torch

    from countdown_rl import dataset, models, tasks

    torch.set_num_threads(given.threads)
    models.quiet()
    rows = dataset.read_rows(given.data)[: given.n]
    loaded = models.load(models.resolve(given.model), precision=given.precision)
    prompts = [models.render(loaded.tokenizer, tasks.of_row(row).messages(row)) for row in rows]
    texts = {}

    def work(write):
        texts[write.__name__] = write(loaded, prompts, given.max_new_tokens)
        return len(prompts)

    ways = (notebook, ours)
    for way in ways:  # the first call of anything is slow
        way(loaded, prompts[:BATCH], 8)
    rates = bench.rates({way.__name__: partial(work, way) for way in ways}, rounds=given.rounds)
    grades = {
        name: [tasks.of_row(row).grade(upto_answer(text), row) for row, text in zip(rows, texts[name], strict=True)]
        for name in texts
    }
    agree = Counter()
    for one, other, a, b in zip(texts["notebook"], texts["ours"], grades["notebook"], grades["ours"], strict=True):
        agree["same text up to the answer"] += upto_answer(one) == upto_answer(other)
        agree["same answer"] += a.answer == b.answer
        agree["same verdict"] += a.correct == b.correct
    bench.save(
        given.name,
        {
            "model": given.model,
            "parameters": loaded.model.num_parameters(),
            "precision": loaded.precision,
            "puzzles": len(rows),
            "max_new_tokens": given.max_new_tokens,
            "threads": given.threads,
            "completions_a_second_of_processor_time": {name: round(rate, 2) for name, rate in rates.items()},
            "times_faster": round(rates["ours"] / rates["notebook"], 2),
            "accuracy": {name: sum(grade.correct for grade in grades[name]) / len(rows) for name in grades},
            "agreement": {name: f"{count} of {len(rows)}" for name, count in agree.items()},
        },
    )


if __name__ == "__main__":
    main()

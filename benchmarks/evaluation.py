"""Evaluation: completions per second against the loop of most notebooks, on the same model, puzzles and cores.

That loop calls ``generate`` on padded batches of 8 in file order, up to a fixed number of new tokens.

    python -m benchmarks.evaluation [--model countdown-tiny] [--data artifacts/data/test.jsonl] [--n 200]

``--trial`` also measures what transformers offers: the same loop with a static cache, with that compiled, and
continuous batching.
"""

import argparse
from functools import partial
from pathlib import Path

from benchmarks import bench
from countdown_rl.cli.quiet import silence_libraries

BATCH = 8


def notebook(loaded, prompts, max_new_tokens, *, length=None, **options):
    """The usual loop: texts in the order of *prompts*, which are padded to *length* tokens if there is one."""
    import torch

    texts = []
    for start in range(0, len(prompts), BATCH):
        batch = loaded.tokenizer(
            prompts[start : start + BATCH],
            return_tensors="pt",
            padding=True if length is None else "max_length",
            max_length=length,
            add_special_tokens=False,
        ).to(loaded.device)
        with torch.no_grad():
            written = loaded.model.generate(
                **batch,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=loaded.tokenizer.pad_token_id,
                **options,
            )
        rows = written[:, batch["input_ids"].shape[1] :]
        texts += loaded.tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def static(loaded, prompts, max_new_tokens):
    return notebook(
        loaded, prompts, max_new_tokens, cache_implementation="static", disable_compile=True
    )


def compiled(loaded, prompts, max_new_tokens):
    """With the decoding step compiled by inductor, which transformers does by default on a GPU only."""
    from transformers import CompileConfig

    config = CompileConfig(mode="default", fullgraph=False)
    config._compile_all_devices = True  # noqa: SLF001
    # All batches have one shape, otherwise each is compiled again.
    length = max(
        len(ids) for ids in loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    )
    return notebook(
        loaded,
        prompts,
        max_new_tokens,
        length=length,
        cache_implementation="static",
        compile_config=config,
    )


def continuous(loaded, prompts, max_new_tokens):
    """Continuous batching: as many rows as fit its cache, with finished ones replaced by new ones."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=loaded.model.generation_config.eos_token_id,
        pad_token_id=loaded.tokenizer.pad_token_id,
    )
    longest = max(map(len, ids)) + max_new_tokens
    # As much cache as these prompts need: by default it takes most of the memory, and is slower.
    pages = ContinuousBatchingConfig(num_blocks=len(ids) * -(-longest // 256), max_batch_tokens=512)
    results = loaded.model.generate_batch(
        inputs=ids, generation_config=config, continuous_batching_config=pages, progress_bar=False
    )
    written = {tuple(result.prompt_ids): result.generated_tokens for result in results.values()}
    return loaded.tokenizer.batch_decode(
        [written[tuple(prompt)] for prompt in ids], skip_special_tokens=True
    )


TRIALS = {method.__name__: method for method in (static, compiled, continuous)}


def ours(loaded, prompts, max_new_tokens):
    from countdown_rl.inference import generate

    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    lengths = [len(prompt) for prompt in ids]

    generator = generate.Generator(loaded, generate.Decoding(max_new_tokens))
    texts = [""] * len(ids)
    for batch in generate.batches(
        lengths, lambda length: generator.max_rows(length, max_new_tokens)
    ):
        for row, completion in zip(
            batch, generator.complete([ids[row] for row in batch]), strict=True
        ):
            texts[row] = completion.text
    return texts


def upto_answer(text):
    head, close, _ = text.partition("</answer>")
    return (head + close).strip()


def agreement(texts, others, grades, more):
    """On how many puzzles two methods agree, of those that both completed."""
    agree = dict.fromkeys(("same_text_up_to_the_answer", "same_answer", "same_verdict"), 0)
    pairs = list(zip(texts, others, grades, more, strict=False))
    for text, other, a, b in pairs:
        agree["same_text_up_to_the_answer"] += upto_answer(text) == upto_answer(other)
        agree["same_answer"] += a.answer == b.answer
        agree["same_verdict"] += a.correct == b.correct
    return {name: f"{count} of {len(pairs)}" for name, count in agree.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data/test.jsonl"))
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument(
        "--loop-n", type=int, help="puzzles for the loop, which is slow at a steady rate"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--trial", action="append", choices=TRIALS, default=[], help="may be repeated"
    )
    parser.add_argument("--name", default="evaluation")
    options = parser.parse_args()

    import torch

    from countdown_rl.models import chat_template, load, reference
    from countdown_rl.tasks import jsonl

    torch.set_num_threads(options.threads)
    silence_libraries()
    rows = jsonl.read_rows(options.data)[: options.n]
    loaded = load.load_model(reference.find_model(options.model), precision=options.precision)
    prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in rows]
    texts = {}

    counts = dict.fromkeys(["notebook", *options.trial], options.loop_n or len(prompts)) | {
        "ours": len(prompts)
    }

    def work(write):
        some = prompts[: counts[write.__name__]]
        texts[write.__name__] = write(loaded, some, options.max_new_tokens)
        return len(some)

    methods = (notebook, ours, *(TRIALS[name] for name in options.trial))
    for method in methods:  # warm-up; compiling needs the shape that is measured
        method(
            loaded,
            prompts[: counts["notebook"]][:BATCH],
            options.max_new_tokens if method is compiled else 8,
        )
    rates = bench.rates(
        {method.__name__: partial(work, method) for method in methods}, rounds=options.rounds
    )
    grades = {
        name: [row.grade(upto_answer(text)) for row, text in zip(rows, texts[name], strict=False)]
        for name in texts
    }
    others = [method.__name__ for method in methods[1:]]
    bench.save(
        options.name,
        {
            "model": Path(options.model).name,
            "parameters": loaded.model.num_parameters(),
            "precision": loaded.precision,
            "puzzles": counts,
            "max_new_tokens": options.max_new_tokens,
            "threads": options.threads,
            "completions_a_second_of_processor_time": {
                name: round(rate, 2) for name, rate in rates.items()
            },
            "times_faster": {name: round(rates[name] / rates["notebook"], 2) for name in others},
            "accuracy": {
                name: sum(grade.correct for grade in grades[name]) / counts[name] for name in grades
            },
            "agreement": {
                name: agreement(
                    *(some[key] for some in (texts, grades) for key in ("notebook", name))
                )
                for name in others
            },
        },
    )


if __name__ == "__main__":
    main()

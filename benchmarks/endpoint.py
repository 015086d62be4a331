"""Evaluation through llama.cpp's server against the same engine in process, with as many completions at once.

    python -m benchmarks.endpoint [--model artifacts/quantized] [--data artifacts/data/test.jsonl] [--n 1000] [--tiny]

The server is a process of its own. The model is a GGUF file, or an artifact with one; by default that of
`countdown-tiny`. Each rate is of wall-clock time from the first request to the last answer, grading included; the
two take turns, and the best of the rounds counts. `--tiny` takes 50 puzzles and one round.
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from benchmarks import bench

TOKENS = 256


def serve(file, context, slots, threads, pipe):
    """Run the server until *pipe* is closed."""
    from countdown_rl.inference import llama_cpp

    server = llama_cpp.server(file, context, slots, threads=threads)
    pipe.send(server.listening_address)
    pipe.recv()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data/test.jsonl"))
    parser.add_argument("--n", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    puzzles, rounds = (50, 1) if options.tiny else (options.n, options.rounds)

    from countdown_rl.evaluation import evaluate
    from countdown_rl.evaluation.config import EvalOptions
    from countdown_rl.export import quantize
    from countdown_rl.export.config import QuantizeOptions
    from countdown_rl.inference import llama_cpp
    from countdown_rl.models import reference

    with tempfile.TemporaryDirectory() as folder:
        ref = reference.resolve(options.model)
        if ref.kind != "gguf":
            quantize.quantize_model(ref, Path(folder, "gguf"), QuantizeOptions(format="gguf", gguf_type="f16"))
            ref = reference.resolve(str(Path(folder, "gguf")))
        processes = multiprocessing.get_context("spawn")
        here, there = processes.Pipe()
        arguments = (reference.local_path(ref), llama_cpp.SLOTS * 1024, llama_cpp.SLOTS, 1, there)
        server = processes.Process(target=serve, args=arguments, daemon=True)
        server.start()
        common = {"limit": puzzles, "max_new_tokens": TOKENS}
        ways = {
            "in_process": EvalOptions(engine="llama-cpp", threads=1, **common),
            "server": EvalOptions(engine="openai", base_url=f"{here.recv()}/v1", concurrency=llama_cpp.SLOTS, **common),
        }
        best, samples = dict.fromkeys(ways, 0.0), {}
        for _ in range(rounds):
            for name, way in ways.items():
                times = []
                result = evaluate.evaluate(
                    way,
                    model=ref.source,
                    data=options.data,
                    out=Path(folder, name),
                    on_batch=lambda *counts, times=times: times.append(time.perf_counter()),
                )
                best[name] = max(best[name], puzzles / (times[-1] - times[0]))
                samples[name] = result.samples
        here.send(None)
        server.join()
    same = [a["completion"] == b["completion"] for a, b in zip(*samples.values(), strict=True)]
    verdicts = [a["correct"] == b["correct"] for a, b in zip(*samples.values(), strict=True)]
    bench.save(
        "endpoint",
        {
            "model": reference.local_path(ref).name,
            "puzzles": puzzles,
            "max_new_tokens": TOKENS,
            "concurrency": llama_cpp.SLOTS,
            "completions_a_second": {name: round(rate, 2) for name, rate in best.items()},
            "of_the_rate_in_process": round(best["server"] / best["in_process"], 3),
            "same_text": sum(same),
            "same_verdict": sum(verdicts),
        },
    )


if __name__ == "__main__":
    main()

from dataclasses import asdict
from typing import Annotated

from countdown_rl.cli import console, parameters, runs
from countdown_rl.cli.parameters import option
from countdown_rl.core.formatting import interval
from countdown_rl.training.options import RUN, RunArguments, TrainOptions


def train(
    *,
    options: TrainOptions,
    arguments: RunArguments,
    overwrite: parameters.Overwrite = False,
    check: runs.Check = False,
    probe: Annotated[
        int | None,
        option(
            "Dry run: sample N groups (better 64 or more), report reward variance.",
            RUN,
            metavar="N",
            min=1,
        ),
    ] = None,
) -> None:
    """Train a LoRA adapter, or all weights, with GRPO.

    With --precision nf4 the frozen base is held in 4 bits. On a CPU its values are rounded once and
    de-quantized for computation. If the run is interrupted, repeat the command to resume.

    The log is artifacts/train/log.csv by default, and OUT-run/log.csv with --out OUT. Samples of
    completions are written beside it, for countdown-rl samples: to samples.jsonl, or to
    NAME-samples.jsonl for a log NAME.csv.

    Examples:
        countdown-rl train --reward correct=1 --reward format=0.1 --num-generations 32
        countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --check
        accelerate launch -m countdown_rl train --model Qwen/Qwen3-8B
    """
    from countdown_rl.training.grpo import rewards

    rewards.parse(options.reward)  # a misspelled name is told before torch is imported
    runs.check_paths(arguments, options)
    from countdown_rl.training.grpo.run import prepare

    if probe is None or check:
        runs.perform(prepare, arguments, options, check=check, overwrite=overwrite)
        return
    from countdown_rl.training.grpo import probe as probing

    with console.progress("completions") as update:
        result = probing.probe(prepare(arguments, options, runs.reporter(update)), probe)
    heads = ("variance", "95% interval", "groups", "solved", "format", "truncated")
    table = console.table("", *heads, title=f"verdict: {result.total.verdict}")
    for name, shares in {"all": result.total, **result.kinds}.items():
        cells = (f"{share:.1%}" for share in (shares.solved, shares.format, shares.truncated))
        table.add_row(
            name, f"{shares.mixed:.1%}", interval(shares.interval), f"{shares.groups:,}", *cells
        )
    table.caption = result.advice
    console.result({"verdict": result.total.verdict, **asdict(result)}, table)

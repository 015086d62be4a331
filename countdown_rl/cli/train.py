"""``countdown-rl train``: GRPO on a LoRA adapter or all weights."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from countdown_rl.cli import console, parameters, runs
from countdown_rl.core import processes
from countdown_rl.core.formatting import interval
from countdown_rl.core.options import option
from countdown_rl.training.config import TrainOptions

if TYPE_CHECKING:
    from countdown_rl.training.run import RunArguments


def train(
    *,
    model: parameters.Model = "countdown-tiny",
    revision: parameters.Revision = None,
    base_model: parameters.BaseModel = None,
    trust_remote_code: parameters.TrustRemoteCode = False,
    data: parameters.Data = Path("artifacts/data"),
    out: Annotated[
        Path | None,
        option("Directory to write.", show_default="artifacts/adapter, or artifacts/model with --tune all"),
    ] = None,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.AsJson = False,
    options: TrainOptions,
    processing: runs.RunOptions,
    probe: Annotated[
        int | None,
        option(
            "Dry run: sample N groups (64 or more) and report how many have mixed rewards.",
            runs.RUN,
            metavar="N",
            min=1,
        ),
    ] = None,
) -> None:
    """Train a LoRA adapter, or all weights, with GRPO.

    With --precision nf4 the frozen base is held in 4 bits; on a CPU its values are rounded once and de-quantized
    for computation. An interrupted run continues when the same command is run again. Samples of completions (see
    countdown-rl samples) are written beside the log, which is artifacts/train/log.csv without --out and --log: to
    samples.jsonl, or for a log NAME.csv to NAME-samples.jsonl.

    Examples:
        countdown-rl train --model countdown-tiny --data artifacts/data
        countdown-rl train --reward correct=1 --reward format=0.1 --num-generations 32
        countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --check
        countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --probe 64
        countdown-rl train --model Qwen/Qwen3-8B --processes 8 --launch zero2
    """
    directory = Path(f"{out}-run") if out else Path("artifacts/train")
    if not processes.launched():
        options.micro_batches(processing.processes)
    processing.start_processes(alone=probe is not None)
    from countdown_rl.training.grpo import GrpoRun

    arguments = processing.arguments(
        directory / "log.csv",
        model=model,
        data=data,
        out=out or Path("artifacts", options.kind),
        revision=revision,
        base_model=base_model,
        trust_remote_code=trust_remote_code,
    )
    if probe is not None and not processing.check:
        _show_probe(arguments, options, probe, as_json=as_json)
        return
    runs.perform(GrpoRun, arguments, options, check=processing.check, overwrite=overwrite, as_json=as_json)


def _show_probe(arguments: "RunArguments", options: TrainOptions, count: int, *, as_json: bool) -> None:
    """Sample groups from the start, and print what they are like."""
    from countdown_rl.training.grpo import GrpoRun
    from countdown_rl.training.probe import probe
    from countdown_rl.training.run import Reporter

    parameters.warn_of_unused_gpu()
    with console.progress("completions") as update:
        reporter = Reporter(progress=update, note=console.note, warning=console.warn)
        result = probe(GrpoRun.prepare(arguments, options, reporter), count)
    heads = ("mixed", "95% interval", "groups", "solved", "format", "truncated")
    table = console.table("", *heads, title=f"verdict: {result.total.verdict}")
    for name, shares in {"all": result.total, **result.kinds}.items():
        cells = (f"{share:.1%}" for share in (shares.solved, shares.format, shares.truncated))
        table.add_row(name, f"{shares.mixed:.1%}", interval(shares.interval), f"{shares.groups:,}", *cells)
    table.caption = result.advice
    console.result({"verdict": result.total.verdict, **asdict(result)}, as_json=as_json, view=table)

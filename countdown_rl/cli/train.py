"""``countdown-rl train``: GRPO on a LoRA adapter or all weights."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from countdown_rl.cli import console, parameters
from countdown_rl.core import artifacts, processes
from countdown_rl.core.formatting import interval
from countdown_rl.core.options import option
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.log import StepRow

if TYPE_CHECKING:
    from countdown_rl.training.prepare import PreparedTraining


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
    processing: parameters.RunOptions,
    probe: Annotated[
        int | None,
        option(
            "Only sample N groups (64 or more) before training, and tell whether GRPO can learn from them.",
            parameters.RUN,
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
    out = out or Path("artifacts", options.kind)
    if not processes.launched():
        options.micro_batches(processing.processes)
    processing.start_processes(alone=probe is not None)
    parameters.warn_of_unused_gpu()
    from countdown_rl.models import lora
    from countdown_rl.training import grpo as training
    from countdown_rl.training import prepare, tuning
    from countdown_rl.training.checkpoints import Checkpoints

    run = prepare.TrainRun(
        model=model,
        data=data,
        out=out,
        revision=revision,
        base_model=base_model,
        trust_remote_code=trust_remote_code,
        **processing.settings(directory / "log.csv"),
    )
    if processing.check:
        _show_check(prepare.prepare(run, options, console.note), as_json=as_json)
        return
    if probe is not None:
        _show_probe(prepare.prepare(run, options, console.note), probe, as_json=as_json)
        return
    written = [out, run.checkpoints, run.log] if processes.is_main() else []
    with artifacts.locked(*written), console.progress("step") as update:
        update(0, options.max_steps)

        def on_step(row: StepRow) -> None:
            detail = f"reward {row.reward:.3f}, solved {row.correct:.0%}, {row.mean_length:.0f} tokens"
            update(row.step, options.max_steps, detail)
            parameters.note_validation(row)

        try:
            prepared = prepare.prepare(run, options, console.note)
            if finished := tuning.finished(prepared, overwrite=overwrite):
                parameters.show_finished(run, finished.facts, as_json=as_json)
                return
            result = training.train(prepared, on_step=on_step, on_note=console.note, on_warning=console.warn)
        except (KeyboardInterrupt, processes.Terminated):
            console.note(Checkpoints(run.checkpoints, {}).how_to_continue())
            raise
    facts = result.facts
    console.note(
        f"Wrote {out}: mean reward {facts['reward_first']:.3f} at first and {facts['reward_last_tenth']:.3f} "
        f"in the last tenth of the run, where {facts['correct_last_tenth']:.0%} of the completions were correct."
    )
    parameters.note_kept_step(facts)
    if options.tune == "lora":
        console.note(f"To load it with PEFT: {lora.loading_code(out, prepared.ref.base or prepared.ref)}")
    about = {"out": str(out), "log": str(run.log), "resumed": result.resumed, "warnings": result.warnings}
    console.result(about | {"memory": result.memory} | facts, as_json=as_json)


def _show_check(prepared: "PreparedTraining", *, as_json: bool) -> None:
    console.note(
        f"{prepared.ref.portable_source}: {prepared.architecture}, {prepared.memory.trainable:,} of "
        f"{prepared.parameters:,} parameters trained; {len(prepared.rows):,} rows, prompts of up to "
        f"{prepared.longest_prompt} tokens."
    )
    fewer = "--micro-batch, --prompts or --max-completion-length"
    parameters.show_check(prepared.as_dict(), prepared.memory, prepared.run.checkpoints, fewer, as_json=as_json)


def _show_probe(prepared: "PreparedTraining", count: int, *, as_json: bool) -> None:
    """Sample groups from the start, and print what they are like."""
    from countdown_rl.training.probe import probe

    with console.progress("completions") as update:
        result = probe(prepared, count, update)
    heads = ("mixed", "95% interval", "groups", "solved", "format", "truncated")
    table = console.table("", *heads, title=f"verdict: {result.total.verdict}")
    for name, shares in {"all": result.total, **result.kinds}.items():
        cells = (f"{share:.1%}" for share in (shares.solved, shares.format, shares.truncated))
        table.add_row(name, f"{shares.mixed:.1%}", interval(shares.interval), f"{shares.groups:,}", *cells)
    table.caption = result.advice
    console.result({"verdict": result.total.verdict, **asdict(result)}, as_json=as_json, view=table)

"""``countdown-rl train``: GRPO on a LoRA adapter or all weights."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl import artifacts, processes
from countdown_rl.cli import console, memory_view
from countdown_rl.cli.parameters import AsJson, Data, Model, Revision, TrustRemoteCode, with_options
from countdown_rl.errors import UsageError
from countdown_rl.options import option
from countdown_rl.runlog.log import StepRow
from countdown_rl.training.config import RUN, TrainOptions


@with_options
def train(
    *,
    model: Model = "countdown-tiny",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    data: Data = Path("artifacts/data"),
    out: Annotated[
        Path | None,
        option("Directory to write.", show_default="artifacts/adapter, or artifacts/model with --tune all"),
    ] = None,
    as_json: AsJson = False,
    options: TrainOptions,
    log: Annotated[Path, option("CSV log.", RUN)] = Path("artifacts/train/log.csv"),
    checkpoints: Annotated[Path, option("Directory of the checkpoints of an unfinished run.", RUN)] = Path(
        "artifacts/train/checkpoints"
    ),
    restart: Annotated[bool, option("Ignore checkpoints and start again.", RUN, name="--restart")] = False,
    processes_: Annotated[int, option("Processes on this machine, one per GPU.", RUN, name="--processes", min=1)] = 1,
    launch: Annotated[
        str | None,
        option(
            f"How processes share the work: {', '.join(processes.LAUNCHES)} or an Accelerate configuration.",
            RUN,
            metavar="NAME|FILE",
            show_default="ddp",
        ),
    ] = None,
    check: Annotated[bool, option("Only check the options, data, model and memory.", RUN, name="--check")] = False,
) -> None:
    """Train a LoRA adapter, or all weights, with GRPO.

    With --precision nf4 the frozen base is held in 4 bits; on a CPU its values are rounded once and de-quantized
    for computation. An interrupted run continues when the same command is run again. Samples of completions (see
    countdown-rl samples) are written beside the log.

    Examples:
        countdown-rl train --model countdown-tiny --data artifacts/data
        countdown-rl train --reward correct=1 --reward format=0.1 --num-generations 32
        countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --check
        countdown-rl train --model Qwen/Qwen3-8B --processes 8 --launch zero2
    """
    out = out or Path("artifacts", options.kind)
    if not processes.launched():
        options.micro_batches(processes_)
        if launch is not None:
            processes.launch_configuration(launch)
    elif processes_ not in (1, processes.world_size()):
        raise UsageError(
            f"--processes {processes_}: by WORLD_SIZE, RANK and LOCAL_RANK a launcher has started "
            f"{processes.world_size()}; leave --processes out, or unset these variables."
        )
    if not check and not processes.launched() and (processes_ > 1 or launch is not None):
        raise typer.Exit(processes.launch(sys.argv[1:], processes=processes_, configuration=launch or "ddp"))
    from countdown_rl.runlog.checkpoints import Checkpoints
    from countdown_rl.training import prepare
    from countdown_rl.training import train as training

    run = prepare.Run(
        model=model,
        data=data,
        out=out,
        checkpoints=checkpoints,
        log=log,
        revision=revision,
        restart=restart,
        trust_remote_code=trust_remote_code,
        processes=max(processes_, processes.world_size()),
        sharded=processes.shards_weights(launch),
    )
    if check:
        memory_view.show(prepare.prepare(run, options), as_json=as_json)
        return
    written = [out, checkpoints] if processes.is_main() else []
    with artifacts.locked(*written), console.progress("step") as update:
        update(0, options.max_steps, "")

        def on_step(row: StepRow) -> None:
            detail = f"reward {row.reward:.3f}, solved {row.correct:.0%}, {row.mean_length:.0f} tokens"
            update(row.step, options.max_steps, detail)

        try:
            prepared = prepare.prepare(run, options)
            result = training.train(prepared, on_step=on_step, on_note=console.note, on_warning=console.warn)
        except (KeyboardInterrupt, processes.Terminated):
            console.note(Checkpoints(checkpoints, {}).how_to_continue())
            raise
    facts = result.facts
    console.note(
        f"Wrote {out}: mean reward {facts['reward_first']:.3f} at first and {facts['reward_last_tenth']:.3f} "
        f"in the last tenth of the run, where {facts['correct_last_tenth']:.0%} of the completions were correct."
    )
    if "kept_step" in facts:
        step = f"step {facts['kept_step']}" if facts["kept_step"] else "the start"
        console.note(f"Its weights are those of {step}: {facts['eval_correct']:.1%} of the validation rows solved.")
    if result.loading:
        console.note(f"To load it with PEFT: {result.loading}")
    about = {"out": str(out), "log": str(log), "resumed": result.resumed, "warnings": result.warnings}
    console.result(about | {"memory": result.memory} | facts, as_json=as_json)

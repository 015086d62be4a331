"""``countdown-rl sft``: supervised fine-tuning on demonstrations."""

from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console, parameters
from countdown_rl.core import artifacts, processes
from countdown_rl.core.options import option
from countdown_rl.training.log import SftRow
from countdown_rl.training.sft_config import DEMONSTRATIONS, SftOptions


def sft(
    *,
    model: parameters.Model = "countdown-tiny",
    revision: parameters.Revision = None,
    base_model: parameters.BaseModel = None,
    trust_remote_code: parameters.TrustRemoteCode = False,
    out: parameters.Out = Path("artifacts/sft"),
    overwrite: parameters.Overwrite = False,
    as_json: parameters.AsJson = False,
    files: Annotated[
        list[Path],
        option("JSONL, JSON, CSV or Parquet file; repeatable.", DEMONSTRATIONS, name="--from", metavar="FILE"),
    ] = [],  # noqa: B006 - Typer copies it
    data: Annotated[
        Path | None,
        option("Data directory: its test puzzles are kept out, its validation puzzles evaluated.", DEMONSTRATIONS),
    ] = None,
    options: SftOptions,
    processing: parameters.RunOptions,
) -> None:
    """Fine-tune a model on demonstrations.

    A demonstration has TRL's fields: prompt and completion, as text or messages, or messages; those of Alpaca or
    ShareGPT; or those of a puzzle (nums and target, or question and gold) and completion. Only completions are
    learned, with the end of their turn. Answers that are wrong by the grader are left out, and always those of the
    test puzzles of --data. An interrupted run continues when the same command is run again.

    Examples:
        countdown-rl sft --model Qwen/Qwen3-0.6B --from demos.jsonl --tune all
        countdown-rl sft --from demos.jsonl --data artifacts/data --eval-every 50
        countdown-rl sft --model Qwen/Qwen3-8B --from demos.parquet --check
        countdown-rl sft --demonstrator solver --data artifacts/data
    """
    processing.start_processes()
    parameters.warn_of_unused_gpu()
    from countdown_rl.training import prepare_sft as prepare
    from countdown_rl.training import sft as training
    from countdown_rl.training import tuning

    run = prepare.SftRun(
        model=model,
        files=files,
        data=data,
        out=out,
        revision=revision,
        base_model=base_model,
        trust_remote_code=trust_remote_code,
        **processing.settings(Path(f"{out}-run", "log.csv")),
    )
    written = [out, run.checkpoints, run.log] if processes.is_main() and not processing.check else []
    with artifacts.locked(*written):
        with console.progress("demonstrations") as update:
            prepared = prepare.prepare(run, options, lambda count: update(count, count))
        known = prepared.demonstrations
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in known.left_out.items() if count)
        for note in known.notes:
            console.note(f"Of the demonstrations: {note}.")
        console.note(
            f"{known.read:,} demonstrations, {known.graded:,} of them graded; "
            f"{f'left out: {left_out}' if left_out else 'none left out'}. {prepared.max_steps:,} steps at a peak rate "
            f"of {prepared.learning_rate:g}."
        )
        if known.wrong:
            console.note(f"Wrong: {known.why_wrong()}.")
        if processing.check:
            fewer = "--micro-batch or --max-length"
            parameters.show_check(prepared.as_dict(), prepared.memory, run.checkpoints, fewer, as_json=as_json)
            return
        if finished := tuning.finished(prepared, overwrite=overwrite):
            parameters.show_finished(run, finished.facts, as_json=as_json)
            return
        with console.progress("step") as update:
            update(0, prepared.max_steps)

            def on_step(row: SftRow) -> None:
                detail = f"loss {row.loss:.3f}, {row.token_accuracy:.1%} of tokens right"
                update(row.step, prepared.max_steps, detail)
                parameters.note_validation(row)

            try:
                result = training.train(prepared, on_step=on_step, on_note=console.note, on_warning=console.warn)
            except (KeyboardInterrupt, processes.Terminated):
                console.note(prepared.store.how_to_continue())
                raise
    facts = result.facts
    console.note(
        f"Wrote {out}: loss {facts['loss_first']:.3f} nats per token at first and {facts['loss_last_tenth']:.3f} in "
        f"the last tenth of the run, where {facts['token_accuracy_last_tenth']:.1%} of the tokens were the likeliest."
    )
    parameters.note_kept_step(facts)
    console.result({"out": str(out), "log": str(run.log), "resumed": result.resumed} | facts, as_json=as_json)

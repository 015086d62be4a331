"""``countdown-rl sft``: supervised fine-tuning on demonstrations."""

from pathlib import Path
from typing import Annotated

from countdown_rl.cli import parameters, runs
from countdown_rl.core.options import option
from countdown_rl.training.config import DEMONSTRATIONS, SftOptions


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
    processing: runs.RunOptions,
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
    from countdown_rl.training.sft import SftRun

    arguments = processing.arguments(
        Path(f"{out}-run", "log.csv"),
        model=model,
        files=files,
        data=data,
        out=out,
        revision=revision,
        base_model=base_model,
        trust_remote_code=trust_remote_code,
    )
    runs.perform(SftRun, arguments, options, check=processing.check, overwrite=overwrite, as_json=as_json)

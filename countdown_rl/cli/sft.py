from countdown_rl.cli import parameters, runs
from countdown_rl.training.options import SftArguments, SftOptions


def sft(
    *,
    options: SftOptions,
    arguments: SftArguments,
    overwrite: parameters.Overwrite = False,
    check: runs.Check = False,
) -> None:
    """Fine-tune a model on demonstrations.

    A demonstration has the fields of TRL (prompt and completion, as text or messages; or messages),
    of Alpaca, of ShareGPT, or of a puzzle (nums and target, or question and gold) with completion.
    Only completions and the end of their turn are trained on. Demonstrations that the grader
    rejects are skipped unless --keep-wrong is given; demonstrations for the test puzzles of --data
    are skipped. If the run is interrupted, repeat the command to resume.

    Examples:
        countdown-rl sft --model Qwen/Qwen3-0.6B --from demos.jsonl --tune all
        countdown-rl sft --demonstrator solver --data artifacts/data
    """
    runs.check_paths(arguments, options)
    from countdown_rl.training.sft.run import prepare

    runs.perform(prepare, arguments, options, check=check, overwrite=overwrite)

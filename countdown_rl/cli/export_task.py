from pathlib import Path
from typing import Annotated, Literal

from countdown_rl.cli import console
from countdown_rl.cli.parameters import Data, Out, option
from countdown_rl.core.formatting import plural


def export_task(
    *,
    to: Annotated[
        Literal["lm-eval", "verifiers", "verl", "prime-rl", "areal"], option("Evaluator or engine.")
    ],
    data: Data = Path("artifacts/data"),
    out: Out,
) -> None:
    """Write the task for another evaluator or training engine.

    The files use the prompt and the exact grader of this package, which must be installed beside
    the engine. Inspect needs none: inspect eval countdown_rl/exact -T data=FILE --model NAME

    - lm-eval: a task of lm-evaluation-harness 0.4, with the test rows.

    - verifiers: an installable environment for verifiers 0.4.0, with the test rows.

    - verl: Parquet files of the training and validation rows, the reward, and run.sh for eight GPUs
    (verl 0.9).

    - prime-rl: the verifiers environment with the training rows, and rl.toml. Untested.

    - areal: training and validation rows, a reward for RLVRWorkflow, and config.yaml. Untested.

    Examples:
        countdown-rl export-task --to lm-eval --out artifacts/lm-eval
        countdown-rl export-task --to verl --out artifacts/verl
        MODEL=Qwen/Qwen2.5-3B-Instruct artifacts/verl/run.sh
    """
    from countdown_rl.core import artifacts
    from countdown_rl.core.manifest import file_input
    from countdown_rl.integrations import export
    from countdown_rl.tasks import jsonl

    splits = export.splits(to)
    if splits == ("test",):
        rows = {"test": jsonl.read_rows(jsonl.test_file(data))}
        source = file_input(jsonl.test_file(data))
    else:
        jsonl.check_training(data)
        source = artifacts.read(data, "data").as_input()
        rows = {split: jsonl.read_rows(data / f"{split}.jsonl") for split in splits}
    with artifacts.writing(out, "task", options={"to": to}, inputs={"data": source}) as draft:
        name = export.write(to, rows, draft.path)
    counts = {split: len(part) for split, part in rows.items()}
    console.result({"out": str(out), "task": name, "rows": sum(counts.values())})
    numbers = ", ".join(plural(count, f"{split} row") for split, count in counts.items())
    console.done(f"Wrote {out}: {name} for {to}, {numbers}.")

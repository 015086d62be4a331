"""``countdown-rl export-task``: a task for another evaluator."""

from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Data, Out
from countdown_rl.integrations.export import Evaluator
from countdown_rl.options import option


def export_task(
    *,
    to: Annotated[Evaluator, option("Evaluator.")],
    data: Data = Path("artifacts/data/test.jsonl"),
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Write a task for another evaluator.

    Its prompt and its exact grader are those of this package, which must be installed beside the evaluator.

    - lm-eval: a task of lm-evaluation-harness 0.4, with its data.

    - verifiers: an installable environment for verifiers 0.4.0.

    Inspect needs no files: inspect eval countdown_rl/countdown -T data=FILE --model NAME

    Examples:
        countdown-rl export-task --to lm-eval --out artifacts/lm-eval
        lm_eval --include_path artifacts/lm-eval --tasks countdown \\
          --apply_chat_template --model hf --model_args pretrained=artifacts/merged
        countdown-rl export-task --to verifiers --out artifacts/environment
        pip install artifacts/environment
        vf-eval countdown --model NAME --env.agent.harness.id null
    """
    from countdown_rl import artifacts
    from countdown_rl.data import jsonl
    from countdown_rl.integrations import export

    if data.is_dir():
        artifacts.read(data, "data")
        data = data / "test.jsonl"
    rows = jsonl.read_rows(data)
    inputs = {"data": artifacts.file_input(data)}
    with artifacts.writing(out, "task", options={"to": to}, inputs=inputs) as draft:
        name = export.write(to, rows[0].task, data, draft.path)
    console.result({"out": str(out), "task": name, "rows": len(rows)}, as_json=as_json)
    if not as_json:
        console.note(f"{out}: {name} for {to}, {len(rows):,} rows.")

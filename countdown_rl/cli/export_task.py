"""``countdown-rl export-task``: a task for another evaluator."""

from pathlib import Path
from typing import Annotated, Literal

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Data, Out
from countdown_rl.core.options import option

TEMPLATES = Path(__file__).parents[1] / "integrations"
#: By evaluator, the files written and their templates; the data goes beside the last one.
_FILES = {
    "lm-eval": {"{name}.yaml": "lm_eval/task.yaml", "utils.py": "lm_eval/utils.py"},
    "verifiers": {"pyproject.toml": "verifiers/pyproject.toml", "{name}/__init__.py": "verifiers/environment.py"},
}


def export_task(
    *,
    to: Annotated[Literal["lm-eval", "verifiers"], option("Evaluator.")],
    data: Data = Path("artifacts/data/test.jsonl"),
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Write the task for another evaluator (lm-eval, verifiers).

    Its prompt and its exact grader are those of this package, which must be installed beside the evaluator.

    - lm-eval: a task of lm-evaluation-harness 0.4, with its data.

    - verifiers: an installable environment for verifiers 0.4.0.

    Inspect needs no files: inspect eval countdown_rl/exact -T data=FILE --model NAME

    Examples:
        countdown-rl export-task --to lm-eval --out artifacts/lm-eval
        lm_eval --include_path artifacts/lm-eval --tasks countdown_exact \\
          --apply_chat_template --model hf --model_args pretrained=artifacts/merged
        countdown-rl export-task --to verifiers --out artifacts/environment
        pip install artifacts/environment
        vf-eval countdown_exact --model NAME --env.agent.harness.id null \\
          --env.agent.runtime.type subprocess
    """
    from countdown_rl.core import artifacts
    from countdown_rl.tasks import jsonl

    data = jsonl.test_file(data)
    rows = jsonl.read_rows(data)
    name = f"{rows[0].task}_exact"  # lm-evaluation-harness has a gsm8k of its own
    inputs = {"data": artifacts.file_input(data)}
    with artifacts.writing(out, "task", options={"to": to}, inputs=inputs) as draft:
        for target, template in _FILES[to].items():
            file = draft.path / target.format(name=name)
            file.parent.mkdir(exist_ok=True)
            file.write_text((TEMPLATES / template).read_text("utf-8").replace("NAME", name), "utf-8")
        jsonl.write_rows(file.with_name("test.jsonl"), map(dict, rows))
    console.result({"out": str(out), "task": name, "rows": len(rows)}, as_json=as_json)
    if not as_json:
        console.note(f"{out}: {name} for {to}, {len(rows):,} rows.")

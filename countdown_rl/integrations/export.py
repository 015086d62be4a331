"""Files that add a task to another evaluator: its definition, and code that imports the prompt and the grader."""

import shutil
from pathlib import Path
from typing import Literal

Evaluator = Literal["lm-eval", "verifiers"]
TEMPLATES = Path(__file__).parent
#: Names of the exported tasks; lm-evaluation-harness has a gsm8k of its own.
NAMES = {"countdown": "countdown", "gsm8k": "gsm8k_exact"}


def write(evaluator: Evaluator, task: str, data: Path, out: Path) -> str:
    """Write *task*, on the rows of the file *data*, to the directory *out*, and return its name in the evaluator."""
    name = NAMES[task]
    files = {
        "lm-eval": {"lm_eval/task.yaml": f"{name}.yaml", "lm_eval/utils.py": "utils.py"},
        "verifiers": {"verifiers/pyproject.toml": "pyproject.toml", "verifiers/environment.py": f"{name}/__init__.py"},
    }[evaluator]
    for template, file in files.items():
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).write_text((TEMPLATES / template).read_text("utf-8").replace("NAME", name), "utf-8")
    shutil.copyfile(data, (out / file).with_name("test.jsonl"))  # beside the code
    return name

"""Exported tasks, run by the evaluators that they are for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import countdown_rl
from countdown_rl.cli.export_task import export_task
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.core.manifest import file_sha256
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from tests.support.graded import PUZZLES, graded

ROOT = Path(__file__).parents[2]
SUITE = Path("suite:countdown-bench-1/6")
FORMATS = ("format", "strict_format")
#: Prints the prompts and scores of the environment argv[1] on the completions in argv[2].
SCORE = """
import asyncio, json, sys
import verifiers.v1 as vf

async def score(task, completion):
    reply = vf.MessageNode(message=vf.AssistantMessage(content=completion), sampled=True)
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[reply],
    )
    await task.score(trace)
    prompt = [task.data.system_prompt, task.data.prompt]
    print(json.dumps({"prompt": prompt, "correct": trace.reward, **trace.metrics}))

async def main(name, samples):
    for task, line in zip(vf.load_taskset(vf.TasksetConfig(id=name)), open(samples), strict=True):
        await score(task, json.loads(line)["completion"])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["countdown", "gsm8k"])
def test_prompts_and_verdicts_of_lm_eval_are_those_of_this_package(task, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager

    rows, grades, data = graded(task, tmp_path)
    export_task(to="lm-eval", data=data, out=tmp_path / "task")

    class Recorded(TemplateLM):
        """Returns the completions of *rows*."""

        tokenizer_name = "none"
        eot_token_id = tok_encode = _loglikelihood_tokens = loglikelihood_rolling = None

        def chat_template(self, name):
            return ""

        def apply_chat_template(self, turns, add_generation_prompt=True):
            assert add_generation_prompt == (turns[-1]["role"] != "assistant")
            return json.dumps(turns)

        def generate_until(self, requests, disable_tqdm=False):
            for request in requests:
                prompt, settings = request.args
                assert json.loads(prompt) == parse_row(rows[request.doc_id]).messages()
                assert settings["until"] == []
            return [rows[request.doc_id]["completion"] for request in requests]

    name = f"{task}_exact"
    manager = TaskManager(include_path=str(tmp_path / "task"), include_defaults=False)
    settings = {"task_manager": manager, "apply_chat_template": True, "bootstrap_iters": 0}
    results = lm_eval.simple_evaluate(model=Recorded(), tasks=[name], **settings)
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(rows) > (PUZZLES if task == "countdown" else 1)
    for sample, grade in zip(samples, grades, strict=True):
        assert {key: sample[key] == 1 for key in ("correct", *FORMATS)} == {
            key: grade[key] for key in ("correct", *FORMATS)
        }
    correct = results["results"][name]["correct,none"]
    assert correct == pytest.approx(sum(grade["correct"] for grade in grades) / len(grades))


@pytest.mark.slow
def test_prompts_and_rewards_of_verifiers_are_those_of_this_package(tmp_path):
    rows, grades, data = graded("countdown", tmp_path)
    export_task(to="verifiers", data=data, out=tmp_path / "environment")
    # An environment of its own: verifiers needs an openai below 3.
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "parent.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    install = [venv / "bin/python", "-m", "pip", "install", "-q", "--no-compile"]
    (pin,) = [
        text
        for text in (tmp_path / "environment/pyproject.toml").read_text().split('"')
        if "==" in text
    ]
    done = subprocess.run([*install, pin, "setuptools>=77"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{pin} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    subprocess.run(
        [*install, "--no-deps", "--no-build-isolation", tmp_path / "environment"], check=True
    )
    command = [venv / "bin/python", "-c", SCORE, "countdown_exact", tmp_path / "samples.jsonl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(scores) == len(rows) > PUZZLES
    for row, grade, score in zip(rows, grades, scores, strict=True):
        turns = parse_row(row).messages()
        assert score["prompt"] == [turn["content"] for turn in turns[:2]]
        assert (score["correct"] == 1) == grade["correct"]
        if len(turns) == 2:  # otherwise the model opens its thinking, unlike in the data
            assert [score[key] == 1 for key in FORMATS] == [grade[key] for key in FORMATS]


@pytest.mark.parametrize("evaluator", ["lm-eval", "verifiers"])
def test_an_exported_task_is_an_artifact_with_its_data(evaluator, tmp_path):
    data, out = tmp_path / "rows.jsonl", tmp_path / "out"
    jsonl.write_rows(data, [{"nums": [3, 4], "target": 7}])
    export_task(to=evaluator, data=data, out=out)
    manifest = artifacts.read(out, "task")
    assert manifest.inputs["data"]["digest"] == file_sha256(data)
    (copy,) = out.rglob("test.jsonl")
    assert copy.read_bytes() == data.read_bytes()
    assert not any("NAME" in file.read_text() for file in out.rglob("*") if file.is_file())
    export_task(to=evaluator, data=SUITE, out=tmp_path / "suite")
    (copy,) = (tmp_path / "suite").rglob("test.jsonl")
    assert jsonl.read_rows(copy) == countdown_rl.read_rows(str(SUITE))
    data.write_text('{"nums": [3, 4]}\n')
    with pytest.raises(InputError, match="target"):
        export_task(to=evaluator, data=data, out=out)
    assert artifacts.read(out, "task") == manifest

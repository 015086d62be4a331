"""Small artifacts from data to 4-bit weights with their evaluations, for tests that need a chain, in a second.

The weights are real tiny checkpoints; the training and the figures are invented.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import file_input
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Metrics
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import reference
from countdown_rl.tasks import registry
from countdown_rl.training.options import TrainOptions
from tests.support import evaluations, runs, tiny_llama


def chain(root: Path) -> Path:
    """``data``, ``base``, ``adapter``, ``merged``, ``eval/merged`` and ``eval/comparison`` under *root*."""
    with artifacts.writing(root / "data", "data", options=asdict(DataOptions(n=10))) as draft:
        (draft.path / "test.jsonl").write_text('{"id": "a", "nums": [1, 2], "target": 3}\n')
        draft.facts["splits"] = {"test": {"rows": 1}}
    data = artifacts.read(root / "data", "data")
    with artifacts.writing(
        root / "base", "model", options={"steps": 3}, inputs={"data": data.as_input()}
    ) as draft:
        tiny_llama.checkpoint(draft.path)
    base = reference.find_model(str(root / "base"))
    # What train makes: only its manifest matters here.
    inputs = {"model": base.as_input() | {"source": "base"}, "data": data.as_input()}
    with artifacts.writing(
        root / "adapter", "adapter", options=asdict(TrainOptions(learning_rate=2e-4)), inputs=inputs
    ) as draft:
        tiny_llama.adapter(draft.path, root / "base", reference="base")
        (draft.path / "README.md").unlink(missing_ok=True)
        draft.facts.update(method="grpo", steps=4, log_digest=training_log.digest(log_rows(4)))
    adapter = artifacts.read(root / "adapter", "adapter").as_input()
    with artifacts.writing(
        root / "merged",
        "merged",
        options=asdict(MergeOptions()),
        inputs={"adapter": adapter | {"source": "adapter"}},
    ) as draft:
        tiny_llama.checkpoint(draft.path, seed=1)
    evaluate(root, "merged", accuracy=0.62)
    evaluate(root, "base", accuracy=0.5)
    inputs = {
        name: artifacts.read(root / "eval" / name, "eval").as_input() for name in ("base", "merged")
    }
    with artifacts.writing(
        root / "eval" / "comparison", "comparison", options={}, inputs=inputs
    ) as draft:
        (draft.path / "comparison.md").write_text(
            "|  | solved |\n|---|---:|\n| base | 50.0% |\n| merged | 62.0% |\n"
        )
    return root


def quantized(root: Path, name: str, *, strings: dict[str, str] | None = None) -> Path:
    """A GGUF of the merged model's making at *root*/*name*, with its Modelfile; *strings* go into its head.

    Its one tensor is invented: no test runs it.
    """
    import numpy as np
    from gguf import GGUFWriter

    merged = reference.find_model(str(root / "merged")).as_input() | {"source": "merged"}
    with artifacts.writing(
        root / name, "quantized", options={"format": name}, inputs={"model": merged}
    ) as draft:
        writer = GGUFWriter(draft.path / "model-q8_0.gguf", "llama")
        texts = {"general.name": "tiny", "tokenizer.chat_template": "{{ a }}/think>/x/y"} | (
            strings or {}
        )
        for key, value in texts.items():
            writer.add_string(key, value)
        writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(8, 8))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (draft.path / "Modelfile").write_text("FROM ./model-q8_0.gguf\nPARAMETER temperature 0\n")
    return root / name


def log_rows(steps: int) -> list[training_log.StepRow]:
    """A log whose reward rises with each step."""
    return [replace(row, reward=training_log.rounded(0.1 * row.step)) for row in runs.steps(steps)]


def log_of(root: Path, *, steps: int = 4) -> Path:
    """The log of the training of the adapter, where the pipeline keeps it."""
    training_log.write(root / "train" / "log.csv", log_rows(steps))
    return root / "train" / "log.csv"


def evaluate(
    root: Path,
    name: str,
    *,
    accuracy: float,
    puzzles: Path | None = None,
    task: str = "countdown",
    trained: int = 0,
) -> Path:
    """An eval artifact of the model at *root*/*name*, with that accuracy; *puzzles* None are the test split.

    *trained* is the number of its puzzles that the model was trained on.
    """
    manifest = artifacts.read(root / name, reference.LOADABLE)
    data = file_input(puzzles or root / "data" / "test.jsonl")
    share = {"accuracy": accuracy, "n": 100, "correct": round(100 * accuracy)}
    share |= {"interval": [accuracy - 0.1, accuracy + 0.1]}
    metrics = share | {
        "format": 0.97,
        "truncated": 0.01,
        "mean_tokens": 80.5,
        "reasons": {},
        "rules": [],
    }
    metrics |= {"groups": {"numbers": {"3": share, "4": share}, "needs": {"mul-div": share}}}
    metrics |= {"task": task, "decoding": evaluations.GREEDY, "data": data}
    metrics["overlap"] = {"trained": trained}
    metrics |= {"model": {"source": name, "kind": "directory", "digest": manifest.digest}}
    example = registry.task(task).example
    sample = evaluations.sample(row={"task": task, **example})
    out = root / "eval" / name
    inputs = {"model": manifest.as_input() | {"source": name}, "data": data}
    return evaluations.write(out, Metrics.from_json(metrics, out), [sample] * 100, **inputs)


def again(root: Path, name: str, seed: int) -> None:
    """Other weights at *root*/*name* than those that were there, of the same kind and origin."""
    manifest = artifacts.read(root / name, "merged")
    shutil.rmtree(root / name)
    with artifacts.writing(
        root / name, "merged", options=manifest.options, inputs=manifest.inputs
    ) as draft:
        tiny_llama.checkpoint(draft.path, seed=seed)

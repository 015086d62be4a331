"""Small artifacts from data to 4-bit weights with their evaluations, for tests that need a chain, in a second.

The weights are real tiny checkpoints; the training and the grades are invented.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import file_input
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Overlap
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
    inputs = {"data": entry(root, "data")}
    with artifacts.writing(root / "base", "model", options={"steps": 3}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path)
    # What train makes: only its manifest matters here.
    inputs["model"] = reference.find_model(str(root / "base")).as_input() | {"source": "base"}
    options = asdict(TrainOptions(learning_rate=2e-4))
    with artifacts.writing(root / "adapter", "adapter", options=options, inputs=inputs) as draft:
        tiny_llama.adapter(draft.path, root / "base", reference="base")
        (draft.path / "README.md").unlink()
        draft.facts.update(method="grpo", steps=4, log_digest=training_log.digest(log_rows(4)))
    inputs = {"adapter": entry(root, "adapter")}
    options = asdict(MergeOptions())
    with artifacts.writing(root / "merged", "merged", options=options, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path, seed=1)
    evaluate(root, "merged", accuracy=0.62)
    evaluate(root, "base", accuracy=0.5)
    inputs = {name: entry(root, f"eval/{name}") for name in ("base", "merged")}
    out = root / "eval" / "comparison"
    with artifacts.writing(out, "comparison", options={}, inputs=inputs) as draft:
        (draft.path / "comparison.md").write_text("| base | 50.0% |\n| merged | 62.0% |\n")
    return root


def entry(root: Path, name: str) -> dict[str, object]:
    """The artifact at *root*/*name* as an input of another."""
    manifest = artifacts.read(root / name, artifacts.peek(root / name))
    return manifest.as_input() | {"source": name}


def quantized(root: Path, name: str) -> None:
    """A GGUF file of the merged model's making at *root*/*name*, with its Modelfile; its one tensor is invented."""
    import numpy as np
    from gguf import GGUFWriter

    merged = reference.find_model(str(root / "merged")).as_input() | {"source": "merged"}
    settings = {"options": {"format": name}, "inputs": {"model": merged}}
    with artifacts.writing(root / name, "quantized", **settings) as draft:
        writer = GGUFWriter(draft.path / "model-q8_0.gguf", "llama")
        writer.add_string("tokenizer.chat_template", "{{ a }}/think>/x/y")
        writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(8, 8))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (draft.path / "Modelfile").write_text("FROM ./model-q8_0.gguf\nPARAMETER temperature 0\n")


def log_rows(steps: int) -> list[training_log.StepRow]:
    """A log whose reward rises with each step."""
    return [replace(row, reward=training_log.rounded(0.1 * row.step)) for row in runs.steps(steps)]


def log_of(root: Path, *, steps: int = 4) -> Path:
    """The log of the training of the adapter, where the pipeline keeps it."""
    training_log.write(root / "train" / "log.csv", log_rows(steps))
    return root / "train" / "log.csv"


def evaluate(
    root: Path, name: str, *, accuracy: float, task: str = "countdown", trained: int = 0
) -> None:
    """Evaluate the model at *root*/*name*: 100 samples of *accuracy*, *trained* of them of puzzles it was trained on."""
    row = {"task": task, **registry.task(task).example}
    samples = [evaluations.sample(n < 100 * accuracy, row=row) for n in range(100)]
    model, data = entry(root, name), file_input(root / "data" / "test.jsonl")
    about = {"source": name, "kind": "directory", "digest": model["digest"]}
    overlap = Overlap(trained=trained)
    metrics = evaluations.metrics(samples, data=data, model=about, overlap=overlap)
    evaluations.write(root / "eval" / name, metrics, samples, model=model, data=data)


def again(root: Path, name: str, seed: int) -> None:
    """Other weights at *root*/*name* than those that were there, of the same kind and origin."""
    manifest = artifacts.read(root / name, "merged")
    shutil.rmtree(root / name)
    settings = {"options": manifest.options, "inputs": manifest.inputs}
    with artifacts.writing(root / name, "merged", **settings) as draft:
        tiny_llama.checkpoint(draft.path, seed=seed)

"""Evaluation: figures, reproducible bytes, resuming after a kill, and errors in one sentence."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.identity import Identity
from countdown_rl.core.manifest import file_input, file_sha256
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.complete import Progress
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import generate
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks import probe
from countdown_rl.tasks.registry import parse_row
from tests.support import constant_model, tiny_llama
from tests.support.runs import SPLITS, files, write_data

SMALL = EvalOptions(max_new_tokens=8, batch_size=4)
ROWS = []
for n in range(14):
    row = {"id": f"r{n}", "nums": [n + 2, 3, 5] + [7] * (n % 2), "target": n + 10}
    ROWS.append(row | {"needs": ("add-sub", "mul-div")[n % 2]})


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval")
    # With tied embeddings a random model says its last token again and again.
    tiny_llama.checkpoint(path / "model", max_position_embeddings=1024, tie_word_embeddings=False)
    write(path / "puzzles.jsonl", ROWS)
    return path


def run(place, out, options=SMALL, **changes):
    paths = {"model": str(place / "model"), "data": place / "puzzles.jsonl", "out": out}
    return evaluate.evaluate(options, **paths | changes)


@pytest.fixture(scope="module")
def unbroken(place):
    run(place, place / "unbroken")
    return files(place / "unbroken")


@pytest.fixture
def written(monkeypatch):
    """The numbers of the batches that a model has written since."""
    numbers = []
    complete = generate.Generator.complete

    def counting(self, prompts, number=0):
        numbers.append(number)
        return complete(self, prompts, number)

    monkeypatch.setattr(generate.Generator, "complete", counting)
    return numbers


def test_an_evaluation_records_metrics_data_and_decoding(place, unbroken):
    manifest = artifacts.read(place / "unbroken", "eval")
    result = results.read(place / "unbroken")
    metrics = result.metrics
    assert set(unbroken) == {"manifest.json", "metrics.json", "details.json", "samples.jsonl"}
    assert metrics.correct == sum(sample.grade.correct for sample in result.samples)
    for breakdown in metrics.groups.values():
        assert [scores.n for scores in breakdown.values()] == [7, 7]
    assert metrics.data == file_input(place / "puzzles.jsonl") == manifest.inputs["data"]
    assert metrics.decoding.greedy
    assert metrics.model.digest == manifest.inputs["model"]["digest"]
    assert [sample.row["id"] for sample in result.samples] == [row["id"] for row in ROWS]
    assert all(0 < sample.tokens <= 8 for sample in result.samples)
    assert len({sample.completion for sample in result.samples}) > 4
    assert str(place) not in unbroken["details.json"].decode()


def test_a_data_artifact_means_its_test_split_and_rows_need_no_id(place, tmp_path):
    bare = [{"nums": row["nums"], "target": row["target"]} for row in ROWS]
    write_data(tmp_path / "data", dict.fromkeys(SPLITS, bare))
    metrics = run(place, tmp_path / "eval", replace(SMALL, limit=5), data=tmp_path / "data").metrics
    assert (metrics.n, metrics.data["file"]) == (5, "test.jsonl")


def test_rows_that_repeat_a_puzzle_are_warned_of(tmp_path):
    twice = [{"nums": [3, 4], "target": 7}, {"nums": [4, 3], "target": 7}] * 2
    data = write(tmp_path / "rows.jsonl", twice)
    warnings = []
    run(tmp_path, tmp_path / "out", model="random", data=data, on_warning=warnings.append)
    assert "3 of the 4 rows" in warnings[0]


def test_the_kind_of_model_and_its_precision_are_recorded(place, unbroken, tmp_path):
    adapter = tiny_llama.adapter(tmp_path / "adapter", place / "model")
    result = run(place, tmp_path / "eval", model=str(adapter))
    base = results.read(place / "unbroken")
    assert (base.metrics.model.kind, result.metrics.model.kind) == ("directory", "adapter")
    completions = [[sample.completion for sample in each.samples] for each in (base, result)]
    assert completions[0] != completions[1]
    rounded = run(place, tmp_path / "nf4", replace(SMALL, precision="nf4"))
    assert (rounded.metrics.precision, rounded.metrics.path) == ("nf4", "dequantized-nf4")


def test_sampling_repeats_with_its_seed(place, unbroken, tmp_path):
    hot = replace(SMALL, temperature=1.0, top_p=0.9, top_k=20)
    variants = {"a": hot, "b": hot, "c": replace(hot, seed=1), "d": replace(hot, top_k=1)}
    made = {name: run(place, tmp_path / name, variants[name]) for name in variants}
    made["greedy"] = results.read(place / "unbroken")
    texts = {name: [sample.completion for sample in made[name].samples] for name in made}
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert texts["a"] != texts["c"]
    assert texts["d"] == texts["greedy"]


def breaking(done, *rest):
    if done == 8:
        raise KeyboardInterrupt


def test_a_killed_run_resumes_to_the_same_bytes_without_repeating_a_batch(place, tmp_path, written):
    def kill(done, *rest):
        if done == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    options, out = replace(SMALL, temperature=1.0), tmp_path / "new" / "eval"
    run(place, tmp_path / "unbroken", options)
    assert written == [0, 1, 2, 3]
    written.clear()
    fork = multiprocessing.get_context("fork")  # the child need not import what this process has
    child = fork.Process(target=run, args=(place, out, options), kwargs={"on_batch": kill})
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] == [".eval.progress.jsonl"]
    told = []
    run(place, out, options, on_batch=lambda *now: told.append(now[0]))
    assert (told, written) == ([8, 12, 14], [2, 3])
    assert files(out) == files(tmp_path / "unbroken")
    assert [path.name for path in out.parent.iterdir()] == ["eval"]


def test_batches_of_another_run_are_not_used(place, unbroken, tmp_path, written):
    for changes in ({"max_new_tokens": 7}, {"limit": 12}):
        with pytest.raises(KeyboardInterrupt):
            run(place, tmp_path / "eval", replace(SMALL, **changes), on_batch=breaking)
    written.clear()
    run(place, tmp_path / "eval")
    assert written == [0, 1, 2, 3]
    assert files(tmp_path) == {f"eval/{name}": unbroken[name] for name in unbroken}


def test_progress_keeps_the_complete_lines_of_a_cut_file(tmp_path):
    path = tmp_path / "new" / "file"
    identity = Identity({"seed": 42}, {"model": "é"})
    batches = {
        (0, 3): [Completion("é\u2028🙂\n", 3, True, {"cost": 0.5})] * 2,
        (1,): [Completion("", 1, False)],
        (2,): [Completion("→", 5, True)],
    }
    first = Progress(path, identity)
    for added in batches.items():
        first.add(*added)
    complete_file = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(complete_file) if byte == ord("\n")]
    for cut in range(len(complete_file) + 1):
        path.write_bytes(complete_file[:cut])
        again = Progress(path, identity)
        count = max(sum(end <= cut for end in ends) - 1, 0)
        assert [*again.batches.items()] == [*batches.items()][:count]
        for added in [*batches.items()][count:]:
            again.add(*added)
        assert path.read_bytes() == complete_file
    path.write_bytes(complete_file)
    assert Progress(path, identity).batches == batches
    assert not Progress(path, replace(identity, options={"seed": 43})).batches


def test_the_command_prints_all_metrics_as_one_object(place, here, run_command):
    words = ("eval", "--model", "solver", "--data", place / "puzzles.jsonl", "--out", "out")
    printed = json.loads(run_command(*words, "--json").out)
    assert printed == {"out": "out"} | json.loads(Path("out/details.json").read_text())


OPENS = tiny_llama.TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>{% endif %}")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("template", [tiny_llama.TEMPLATE, OPENS])
@pytest.mark.parametrize("style", ["prefilled", "model_opens"])
def test_tags_count_whoever_writes_them_and_whatever_the_tokenizer_calls_them(
    tmp_path, style, template, special
):
    constant_model.checkpoint(tmp_path / "model", template=template, special=special)
    data = write(tmp_path / "rows.jsonl", [{"nums": [1, 2], "target": 99, "style": style}])
    result = run(tmp_path, tmp_path / "out", data=data)
    assert (result.metrics.accuracy, result.metrics.format) == (1.0, 1.0)
    opening = "<think>" if style == "model_opens" else ""
    (sample,) = result.samples
    assert sample.completion == f"{opening}</think><answer>impossible</answer>"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("artifacts/merged/", "merged"),
        ("models/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
        (".", Path.cwd().name),
    ],
)
def test_an_evaluation_is_written_to_a_directory_named_by_its_model(model, name):
    assert evaluate.default_out(Path(model)).as_posix() == f"artifacts/eval/{name}"


def test_finished_work_is_up_to_date_whatever_changes_no_grade_and_clears_its_progress(
    place, tmp_path
):
    run(place, tmp_path / "eval")
    (tmp_path / ".eval.progress.jsonl").write_text("batches")
    notes = []
    for same in (replace(SMALL, batch_size=3), replace(SMALL, seed=5)):
        run(place, tmp_path / "eval", same, overwrite=False, on_note=notes.append)
    assert sum("up to date" in note for note in notes) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]
    with pytest.raises(ArtifactError, match="temperature"):
        run(place, tmp_path / "eval", replace(SMALL, temperature=1.0), overwrite=False)


def test_puzzles_are_looked_up_among_the_ids_of_training_and_prompts_are_compared(place, tmp_path):
    rows = [*map(parse_row, ROWS)]
    inputs = {"model": {"digest": "0"}}
    with artifacts.writing(tmp_path / "policy", "model", options={}, inputs=inputs) as writer:
        shutil.copytree(place / "model", writer.path, dirs_exist_ok=True)
        ids = writer.path / "trained_ids.txt"
        ids.write_text("".join(f"{row.id}\n" for row in rows[:4]))
        writer.facts["trained_ids"] = {"file": ids.name, "sha256": file_sha256(ids), "count": 4}
        writer.facts["prompt"] = probe.prompt(rows[0])
    warnings: list[str] = []
    policy = {"model": str(tmp_path / "policy"), "on_warning": warnings.append}
    metrics = run(place, tmp_path / "eval", **policy).metrics
    assert (metrics.overlap.trained, metrics.overlap.others.n) == (4, 10)
    assert not warnings
    others = write(tmp_path / "other.jsonl", [row | {"style": "direct"} for row in ROWS])
    run(place, tmp_path / "other", data=others, **policy)
    assert "another prompt" in warnings[0]
    assert run(place, tmp_path / "foreign").metrics.overlap is None

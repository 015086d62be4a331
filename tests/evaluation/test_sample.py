"""Samples and metrics as objects, and their form in JSON."""

import json
import shutil
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample, Share
from countdown_rl.inference.generate import Completion
from countdown_rl.tasks.registry import parse_row

HERE = Path(__file__).parent
#: Evaluations of 4 puzzles, written when samples and metrics were dictionaries.
BEFORE = HERE / "data"


@pytest.mark.parametrize("name", ["sampled", "random"])
def test_an_evaluation_that_was_read_is_written_with_the_same_bytes(tmp_path, name):
    result = results.read(BEFORE / name)
    pass_at = [1, 3] if name == "sampled" else []
    results.write(tmp_path, result.metrics, result.samples, pass_at)
    for file in (results.METRICS, results.DETAILS, results.SAMPLES):
        assert (tmp_path / file).read_bytes() == (BEFORE / name / file).read_bytes()


def test_an_evaluation_has_attributes():
    result = results.read(BEFORE / "sampled")
    metrics, sample = result.metrics, result.samples[1]
    assert (metrics.n, metrics.decoding.samples, metrics.model.source) == (4, 3, "countdown-tiny")
    assert isinstance(metrics.pass_at[3], Share)
    assert (sample.turn, sample.row["target"]) == (1, result.samples[0].row["target"])
    assert sample.grade == sample.row.grade(sample.completion)
    baseline = results.read(BEFORE / "random").metrics
    assert baseline.is_baseline
    assert not metrics.is_baseline
    assert (baseline.decoding.temperature, baseline.engine, baseline.pass_at) == (None, None, {})


def test_an_evaluation_of_version_0_1_is_read():
    result = results.read(HERE.parent / "release/data/release-0.1/release/eval")
    assert (result.metrics.n, result.metrics.groups, len(result.samples)) == (120, {}, 120)


def test_what_only_a_server_knows_is_kept_and_a_refusal_is_the_reason():
    row = parse_row({"nums": [1, 2], "target": 3})
    sample = Sample.of(row, Completion("no", 2, True, {"prompt_tokens": 9, "reason": "refused"}))
    assert (sample.grade.reason, sample.details) == ("refused", {"prompt_tokens": 9})
    assert Sample.from_json(sample.to_json(), "here").to_json() == sample.to_json()


@pytest.mark.parametrize(
    ("file", "change", "word"),
    [
        ("details.json", {"reasons": None}, "reasons"),
        ("details.json", {"interval": [0.5]}, "interval"),
        ("details.json", {"pass_at": {"many": {"share": 0.5}}}, "pass_at.many"),
        ("details.json", {"groups": {"numbers": {"3": {"accuracy": 1.0, "n": 4, "correct": 4}}}}, "interval"),
        ("details.json", {"decoding": {"samples": "3"}}, "decoding.samples"),
        ("samples.jsonl", {"correct": "yes"}, r"line 1, .*correct"),
        ("samples.jsonl", {"tokens": None}, r"line 1, .*tokens"),
        ("samples.jsonl", {"nums": ["x"]}, r"line 1, .*nums"),
        ("samples.jsonl", {"task": "none-such"}, r"line 1, .*none-such"),
    ],
)
def test_a_field_that_is_wrong_is_named(tmp_path, file, change, word):
    shutil.copytree(BEFORE / "sampled", tmp_path / "eval")
    lines = (tmp_path / "eval" / file).read_text().splitlines()
    first = json.loads(lines[0]) if file == "samples.jsonl" else json.loads("\n".join(lines))
    rest = lines[1:] if file == "samples.jsonl" else []
    contents = tmp_path / "contents"
    contents.write_text("\n".join([json.dumps(first | change), *rest]) + "\n")
    with artifacts.writing(tmp_path / "damaged", "eval", options={}) as draft:
        for each in (results.METRICS, results.DETAILS, results.SAMPLES):
            shutil.copy(contents if each == file else tmp_path / "eval" / each, draft.path / each)
    with pytest.raises(ArtifactError, match=word):
        results.read(tmp_path / "damaged")

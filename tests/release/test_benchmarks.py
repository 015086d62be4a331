"""Files for the Hub's benchmarks and for Every Eval Ever."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from countdown_rl.core import artifacts
from countdown_rl.core.errors import UsageError
from countdown_rl.core.manifest import file_sha256
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.release import folder, model_card, verify
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks import jsonl, registry
from countdown_rl.tasks.countdown.expression import GRAMMAR_VERSION
from tests.support import forgeries

DETAILS = {"type": "object", "additionalProperties": {"type": "string"}}
DETAILS |= {"required": ["deployment_type", "model_availability"]}


def fields(required, **others):
    """A JSON schema of an object that has the fields *required* and maybe the *others*, and no more."""
    known = {name: {"type": ["string", "number", "boolean"]} for name in required} | others
    return {
        "type": "object",
        "required": list(required),
        "properties": known,
        "additionalProperties": False,
    }


UNCERTAINTY = fields(
    (),
    confidence_interval=fields(("lower", "upper", "confidence_level")),
    num_samples={"minimum": 1},
)
RESULT = fields(
    ("evaluation_name", "source_data", "metric_config", "score_details"),
    source_data=fields(
        ("dataset_name", "source_type"),
        hf_repo={},
        hf_split={"const": "test"},
        additional_details={"type": "object", "additionalProperties": {"type": "string"}},
    ),
    metric_config=fields(("lower_is_better", "score_type", "min_score", "max_score")),
    score_details=fields(("score",), uncertainty=UNCERTAINTY),
    generation_config=fields(
        (), generation_args=fields((), temperature={}, top_p={}, max_tokens={"minimum": 1})
    ),
)
#: The part of the schema 0.3.0 of Every Eval Ever that a record here uses.
SCHEMA = fields(
    (
        "schema_version",
        "evaluation_id",
        "retrieved_timestamp",
        "source_metadata",
        "eval_library",
        "model_info",
    ),
    source_metadata=fields(("source_type", "source_organization_name", "evaluator_relationship")),
    eval_library=fields(("name", "version")),
    model_info=fields(
        ("name", "id"), inference_engine=fields(("name",)), additional_details=DETAILS
    ),
    evaluation_results={"type": "array", "items": RESULT, "minItems": 1},
)


def test_the_results_of_a_model_are_written_for_a_benchmark(root):
    manifest = folder.build(PublishOptions(model="merged", benchmark="me/puzzles"), Path("release"))
    assert {".eval_results/countdown.yaml", model_card.RECORD} <= manifest.files.keys()
    (entry,) = parse_eval_result_entries(
        yaml.safe_load(Path("release/.eval_results/countdown.yaml").read_text())
    )
    assert (entry.dataset_id, entry.task_id, entry.value) == ("me/puzzles", "countdown", 62.0)
    assert "greedy, at most 256 tokens" in entry.notes
    record = json.loads(Path("release", model_card.RECORD).read_text())
    jsonschema.validate(record, SCHEMA)
    assert record["schema_version"] == "0.3.0"
    assert record["evaluation_results"][0]["score_details"]["score"] == manifest.facts["accuracy"]
    assert artifacts.read(Path("release"), "release") == manifest
    with pytest.raises(UsageError, match="--benchmark"):
        PublishOptions(benchmark="no id")


@pytest.mark.parametrize("benchmark", [None, "me/bench-1"])
def test_the_results_on_a_suite_name_it_and_are_verified(root, benchmark):
    options = EvalOptions(limit=3, max_new_tokens=8)
    evaluate.evaluate(
        options, model="merged", data=Path("suite:countdown-bench-1/3"), out=Path("suite")
    )
    settings = {
        "model": "merged",
        "evaluation": "suite",
        "benchmark": benchmark,
        "comparison": None,
    }
    folder.build(PublishOptions(**settings), Path("release"))
    record = json.loads(Path("release", model_card.RECORD).read_text())
    source = record["evaluation_results"][0]["source_data"]
    jsonschema.validate(record, SCHEMA)
    digest = file_sha256(jsonl.test_file(Path("suite:countdown-bench-1/3")))
    assert source["dataset_name"] == "countdown-bench-1/3"
    assert source["additional_details"] == {
        "sha256": digest,
        "grammar": str(GRAMMAR_VERSION),
        "rows": "the first 3 of 250",
    }
    assert source.get("hf_repo") == benchmark
    card = Path("release/README.md").read_text()
    assert "`countdown-bench-1/3`" in card
    assert "only the first 3 of its 250 rows" in card
    file = Path("release/.eval_results/countdown.yaml")
    entries = parse_eval_result_entries(yaml.safe_load(file.read_text())) if benchmark else []
    assert all(
        f"suite countdown-bench-1/3, sha256 {digest}, grammar" in entry.notes for entry in entries
    )
    assert all("the first 3 of 250 puzzles alone" in entry.notes for entry in entries)
    assert file.exists() == bool(benchmark)
    assert verify.verify("release").reasons == []
    evaluation = results.read(Path("suite"))
    data = evaluation.metrics.data | {"suite": "countdown-bench-1/4"}
    renamed = replace(evaluation.manifest, inputs=evaluation.manifest.inputs | {"data": data})
    for metrics, manifest, reason in (
        (
            replace(evaluation.metrics, data=data),
            renamed,
            "the recorded rows are not those of the suite countdown-bench-1/4",
        ),
        (
            replace(evaluation.metrics, of=None),
            evaluation.manifest,
            "is of a part of the suite countdown-bench-1/3, and",
        ),
    ):
        forgeries.record(Path(), metrics, evaluation.samples, manifest, "forged")
        folder.build(PublishOptions(**settings | {"evaluation": "eval/forged"}), Path("forged"))
        [said] = verify.verify("forged").reasons
        assert reason in said


def test_a_data_set_is_defined_as_a_benchmark():
    for task in registry.own_tasks():
        values = yaml.safe_load(model_card.definition(task))
        assert values["tasks"] == [{"id": task.name, "config": "default", "split": "test"}]
        assert values["evaluation_framework"] == "inspect-ai"
        assert "countdown_rl/exact" in values["description"]

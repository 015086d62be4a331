"""Files by which the Hub and Every Eval Ever read a benchmark and results on it.

``eval.yaml`` makes a data set a benchmark of the Hub, and ``.eval_results/*.yaml`` has the score of a model on one:
https://huggingface.co/docs/hub/eval-results. The record of Every Eval Ever has schema 0.3.0 of
https://github.com/evaleval/every_eval_ever.
"""

import json
from typing import Any

from countdown_rl.core import typed_json
from countdown_rl.core.formatting import interval
from countdown_rl.evaluation.results import Result, breakdowns
from countdown_rl.evaluation.sample import Accuracy
from countdown_rl.evaluation.tables import decoding_text
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Task

DEFINITION, RECORD = "eval.yaml", "every_eval_ever.json"


def definition(task: Task) -> str:
    """The ``eval.yaml`` of a data set of *task*, whose test split is the benchmark."""
    from huggingface_hub.utils import yaml_dump

    grading = "Graded exactly by the Inspect task of countdown-rl: inspect eval countdown_rl/exact -T data=DIRECTORY."
    values = {
        "name": task.title,
        "description": f"{task.purpose} {grading}",
        "evaluation_framework": "inspect-ai",
        "tasks": [{"id": task.name, "config": "default", "split": "test"}],
    }
    return yaml_dump(values, sort_keys=False, width=120)


def results(evaluation: Result, name: str, dataset: str | None) -> dict[str, str]:
    """The files with the results of *evaluation*, of the model *name* on the Hub's data set *dataset*, by path."""
    if dataset is None:
        return {}
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    metrics = evaluation.metrics
    conditions = f"{decoding_text(typed_json.dump(metrics.decoding))}; {metrics.n:,} {task(metrics.task).noun}s"
    notes = f"{conditions}, 95% interval {interval(metrics.interval)}"
    entry = EvalResultEntry(dataset, metrics.task, round(100 * metrics.accuracy, 2), notes=notes)
    return {
        f".eval_results/{metrics.task}.yaml": yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False),
        RECORD: json.dumps(_record(evaluation, name, dataset), indent=2) + "\n",
    }


def _record(evaluation: Result, name: str, dataset: str) -> dict[str, Any]:
    """The record of Every Eval Ever. A release has no times, so whoever submits it sets ``retrieved_timestamp``."""
    metrics, manifest = evaluation.metrics, evaluation.manifest
    groups = [("", metrics), *((f": {kind}", scores) for _, kind, scores in breakdowns(metrics))]
    details = {"deployment_type": "self_deployed", "model_availability": "open_weights"}
    details |= {"digest": metrics.model.digest or "", "precision": metrics.precision or ""}
    return {
        "schema_version": "0.3.0",
        "evaluation_id": f"{metrics.task}/{name}/{manifest.digest[:16]}",
        "retrieved_timestamp": "0",
        "source_metadata": {
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "first_party",
        },
        "eval_library": {"name": "countdown-rl", "version": manifest.version or "unknown"},
        "model_info": {
            "name": name,
            "id": name,
            "inference_engine": {"name": metrics.engine or "unknown"},
            "additional_details": {key: detail for key, detail in details.items() if detail},
        },
        "evaluation_results": [_score(evaluation, dataset, kind, scores) for kind, scores in groups],
    }


def _score(evaluation: Result, dataset: str, kind: str, scores: Accuracy) -> dict[str, Any]:
    metrics, (low, high) = evaluation.metrics, scores.interval
    decoding = {"temperature": metrics.decoding.temperature, "top_p": metrics.decoding.top_p}
    return {
        "evaluation_name": f"{metrics.task}{kind}",
        "source_data": {"dataset_name": dataset, "source_type": "hf_dataset", "hf_repo": dataset, "hf_split": "test"},
        "metric_config": {"lower_is_better": False, "score_type": "continuous", "min_score": 0, "max_score": 1},
        "score_details": {
            "score": scores.accuracy,
            "uncertainty": {
                "confidence_interval": {"lower": low, "upper": high, "confidence_level": 0.95},
                "num_samples": scores.n,
            },
        },
        "generation_config": {"generation_args": decoding | {"max_tokens": metrics.decoding.max_new_tokens}},
    }

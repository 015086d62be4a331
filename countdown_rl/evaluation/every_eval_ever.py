"""Records of an evaluation in the schema of Every Eval Ever (https://github.com/evaleval/every_eval_ever).

They lie beside the artifact's own files and not in its manifest: a record has a time, an artifact has none.
"""

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from countdown_rl.evaluation import results
from countdown_rl.evaluation.results import Result
from countdown_rl.tasks.registry import parse_row

SCHEMA = "0.3.0"


def write(path: Path) -> Path:
    """Write the records of the evaluation of a model at *path*, in the folders of the datastore, and return the
    aggregate's file. That of the samples is beside it; both are named by the digest of the evaluation."""
    result = results.read(path)
    source, task = result.metrics["model"], result.metrics["task"]
    model = _identifier(source["source"], local=source["kind"] not in ("hub", "endpoint"))
    time = str(int((path / results.SAMPLES).stat().st_mtime))
    identity = {"schema_version": SCHEMA, "evaluation_id": f"{task}/{model}/{time}"}
    developer, name = model.split("/", 1)
    folder = Path("data", task, developer, name.replace("/", "_"))
    stem = uuid.UUID(result.manifest.digest[:32], version=4)
    companion = f"{folder.as_posix()}/{stem}_samples.jsonl"
    aggregate = identity | {
        "evaluation_timestamp": time,
        "retrieved_timestamp": time,
        **_aggregate(result, model),
        "detailed_evaluation_results": {
            "format": "jsonl", "file_path": companion, "total_rows": len(result.samples)
        },
    }  # fmt: skip
    root = path / "every-eval-ever"
    (root / folder).mkdir(parents=True, exist_ok=True)
    with (root / companion).open("w") as stream:
        for index, samples in enumerate(result.by_puzzle):
            for sample in samples:
                record = identity | {"model_id": model} | _sample(sample, index)
                stream.write(json.dumps(record) + "\n")
    out = root / folder / f"{stem}.json"
    out.write_text(json.dumps(aggregate, indent=2) + "\n")
    return out


def _identifier(source: str, *, local: bool) -> str:
    """Return the id of the model *source* as ``developer/name``, in characters that the datastore's paths have."""
    name = re.sub(r"[^\w./-]", "_", Path(source).name or "model" if local else source).strip("./")
    return name if "/" in name and ".." not in name else f"local/{name.rpartition('/')[2]}"


def _aggregate(result: Result, model: str) -> dict[str, Any]:
    metrics, decoding, data = result.metrics, result.metrics["decoding"], result.metrics["data"]
    kind = metrics["model"]["kind"]
    source = {"source_type": "evaluation_run", "source_organization_name": "unknown"}
    library = {"name": "countdown-rl", "version": result.manifest.versions["countdown-rl"]}
    arguments = {"temperature": decoding["temperature"], "top_p": decoding["top_p"]}
    every = {
        "source_data": {
            "dataset_name": data["file"], "source_type": "other", "additional_details": {"sha256": data["digest"]}
        },
        "metric_config": {
            "metric_id": "accuracy", "metric_name": "Accuracy (pass@1)", "metric_unit": "proportion",
            "lower_is_better": False, "score_type": "continuous", "min_score": 0, "max_score": 1,
        },
        "generation_config": {
            "generation_args": arguments | {"max_tokens": decoding["max_new_tokens"]},
            "additional_details": {name: str(decoding[name]) for name in ("samples", "seed")},
        },
    }  # fmt: skip
    groups = [("", metrics), *((f": {name}", group) for _, name, group in results.breakdowns(metrics, refusals=False))]
    return {
        "source_metadata": source | {"evaluator_relationship": "other"},
        "eval_library": library | {"additional_details": result.manifest.versions},
        "model_info": {
            "name": metrics["model"]["source"],
            "id": model,
            "inference_engine": {"name": metrics["engine"]},
            "additional_details": {
                "deployment_type": "unknown" if kind == "endpoint" else "self_deployed",
                "model_availability": "open_weights" if kind in ("hub", "shipped") else "unknown",
                "digest": metrics["model"]["digest"],
                "precision": metrics["precision"],
            },
        },
        "evaluation_results": [
            every | {"evaluation_name": metrics["task"] + name, "score_details": _score(figures)}
            for name, figures in groups
        ],
    }


def _score(figures: Mapping[str, Any]) -> dict[str, Any]:
    interval = {"lower": figures["interval"][0], "upper": figures["interval"][1], "confidence_level": 0.95}
    uncertainty = {"confidence_interval": interval, "num_samples": figures["n"]}
    return {"score": figures["accuracy"], "uncertainty": uncertainty}


def _sample(sample: Mapping[str, Any], index: int) -> dict[str, Any]:
    row = parse_row(sample)
    prompt = next(turn["content"] for turn in row.messages() if turn["role"] == "user")
    answer = {"turn_idx": 0, "source": "output.raw", "extraction_method": "custom", "is_terminal": True}
    answered = sample["answer"] is not None
    return {
        "evaluation_name": row.task,
        "sample_id": str(sample.get("id", index)) + (f"-{sample['sample']}" if "sample" in sample else ""),
        "interaction_type": "single_turn",
        "input": {"raw": prompt, "reference": [str(sample["gold"] if "gold" in sample else sample["target"])]},
        "output": {"raw": [sample["completion"]]},
        "answer_attribution": [answer | {"extracted_value": sample["answer"]}] if answered else [],
        "evaluation": {"score": float(sample["correct"]), "is_correct": sample["correct"]},
        "metadata": {name: str(sample[name]) for name in ("reason", "tokens", "truncated")},
    }

"""A checkpoint in the layout of verl's model merger goes through eval, merge and publish."""

import json
import shutil
from pathlib import Path

import peft
import pytest

from countdown_rl.core.errors import ModelError
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import evaluate
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.models.reference import find_model
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama

OPTIONS = EvalOptions(max_new_tokens=8)


def test_the_adapter_is_evaluated_over_the_base_around_it_merged_and_published(tmp_path):
    """``python -m verl.model_merger merge`` writes with LoRA the base, and in it the adapter without its name."""
    base = tiny_llama.checkpoint(
        tmp_path / "global_step_5/actor/huggingface", tie_word_embeddings=False
    )
    source = tiny_llama.adapter(tmp_path / "peft", base)
    adapter = base / "lora_adapter"
    adapter.mkdir()
    shutil.copy(source / "adapter_model.safetensors", adapter)
    saved = peft.LoraConfig.from_pretrained(source)
    config = peft.LoraConfig(
        r=saved.r, lora_alpha=saved.lora_alpha, target_modules=[*saved.target_modules]
    ).to_dict()
    config |= {
        "task_type": "CAUSAL_LM",
        "peft_type": "LORA",
        "target_modules": [*config["target_modules"]],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    jsonl.write_rows(
        tmp_path / "rows.jsonl", [{"nums": [n, 3, 5], "target": n + 8} for n in range(2, 8)]
    )
    model, given = str(adapter), {"data": tmp_path / "rows.jsonl"}
    with pytest.raises(ModelError, match="--base-model"):
        evaluate(OPTIONS, model=model, out=tmp_path / "adapter", **given)
    adapted = evaluate(
        OPTIONS, model=model, base_model=str(base), out=tmp_path / "adapter", **given
    )
    unadapted = evaluate(OPTIONS, model=str(base), out=tmp_path / "base", **given)
    merge_adapter(find_model(model, base_model=str(base)), tmp_path / "merged", MergeOptions())
    result = evaluate(OPTIONS, model=str(tmp_path / "merged"), out=tmp_path / "eval", **given)
    texts = [
        [sample.completion for sample in evaluation.samples]
        for evaluation in (adapted, result, unadapted)
    ]
    assert texts[0] == texts[1] != texts[2]
    options = PublishOptions(model=str(tmp_path / "merged"), evaluation=str(tmp_path / "eval"))
    manifest = folder.build(options, tmp_path / "release")
    assert {"model.safetensors", "README.md", "eval/metrics.json"} <= manifest.files.keys()
    assert Path(tmp_path, "release/generation_config.json").is_file()

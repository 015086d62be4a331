"""A checkpoint in the layout of verl's model merger goes through eval and merge."""

import json
import shutil

import peft
import pytest

from countdown_rl.core.errors import ModelError
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import evaluate
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama


def test_the_adapter_is_evaluated_over_the_base_around_it_and_merged(tmp_path):
    """``python -m verl.model_merger merge`` writes with LoRA the base, and in it the adapter without its name."""
    place = tmp_path / "global_step_5/actor/huggingface"
    base = tiny_llama.checkpoint(place, tie_word_embeddings=False)
    source = tiny_llama.adapter(tmp_path / "peft", base)
    adapter = base / "lora_adapter"
    adapter.mkdir()
    shutil.copy(source / "adapter_model.safetensors", adapter)
    saved = peft.LoraConfig.from_pretrained(source)
    config = peft.LoraConfig(r=saved.r, lora_alpha=saved.lora_alpha).to_dict()
    config |= {"task_type": "CAUSAL_LM", "peft_type": "LORA"}
    config |= {"target_modules": [*saved.target_modules]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    rows = tmp_path / "rows.jsonl"
    jsonl.write_rows(rows, [{"nums": [n, 3, 5], "target": n + 8} for n in range(2, 8)])

    def completions(model, **given):
        options = EvalOptions(max_new_tokens=8)
        out = tmp_path / f"eval-{model.name}"
        result = evaluate(options, model=str(model), data=rows, out=out, **given)
        return [sample.completion for sample in result.samples]

    with pytest.raises(ModelError, match="--base-model"):
        completions(adapter)
    adapted = completions(adapter, base_model=str(base))
    ref = find_model(str(adapter), base_model=str(base))
    merge_adapter(ref, tmp_path / "merged", MergeOptions())
    assert completions(tmp_path / "merged") == adapted != completions(base)

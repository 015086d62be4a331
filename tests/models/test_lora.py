"""Adapters in PEFT, as they lie."""

from pathlib import Path

import peft
import pytest
import torch
import transformers

from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models import load, lora, reference
from tests.support import tiny_llama


@pytest.mark.parametrize("name", ["countdown-tiny", "full", "quantized/model-F16.gguf"])
def test_an_adapter_loads_in_peft_with_the_code_that_train_prints(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    tiny_llama.checkpoint(Path("full"))
    quantize_model(reference.resolve("full"), Path("quantized"), QuantizeOptions(format="gguf", gguf_type="f16"))
    base = reference.resolve(name)
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    trained = peft.get_peft_model(load.load_model(base, precision="fp32").model, config).eval()
    Path("adapter").mkdir()
    lora.save(trained, Path("adapter"), base=base.location)
    loaded = eval(lora.loading_code(Path("adapter"), base), vars(peft) | vars(transformers))
    ids = torch.arange(5, 15).view(1, 10)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.float()(ids).logits, trained(ids).logits, atol=1e-4, rtol=1e-4)

"""A stand-in of ``vllm`` with its documented calls, which computes with transformers: no GPU and no vLLM is needed."""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import peft
import torch
import transformers

#: Longest prompt and completion, in tokens.
CONTEXT = 1024


class SamplingParams(SimpleNamespace):
    def __init__(self, *, include_stop_str_in_output: bool, **settings: Any) -> None:
        assert include_stop_str_in_output
        super().__init__(**settings)


class LoRARequest(SimpleNamespace):
    def __init__(self, lora_name: str, lora_int_id: int, lora_path: str) -> None:
        assert lora_int_id >= 1
        super().__init__(lora_path=lora_path)


class LLM:
    """An engine; *loaded* has the model and the options of each, *adapters* the path of each request's adapter.

    A completion ends with the token *end* where that is not None.
    """

    loaded: list[tuple[str, dict[str, Any]]]
    adapters: list[str]
    end: int | None

    def __init__(
        self,
        model: str,
        *,
        max_model_len: int,
        seed: int,
        load_format: str,
        trust_remote_code: bool,
        enable_prefix_caching: bool,
        **options: Any,
    ) -> None:
        assert (load_format, trust_remote_code) == ("safetensors", False)
        sys.stdout.write("INFO: loading\n")
        os.write(1, b"INFO: a process of the engine\n")
        if max_model_len > CONTEXT:  # in the words of pydantic
            raise ValueError(f"1 validation error for ModelConfig\n  Value error, max_model_len is above {CONTEXT}.")
        self.loaded.append((model, options))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def generate(self, prompts: list[Any], params: list[Any], *, use_tqdm: bool, lora_request: Any) -> list[Any]:
        assert not use_tqdm
        policy = self.model
        if lora_request:
            self.adapters.append(lora_request.lora_path)
            policy = peft.PeftModel.from_pretrained(policy, lora_request.lora_path).eval()
        results = []
        for prompt, sampling in zip(prompts, params, strict=True):
            start = len(prompt["prompt_token_ids"])
            ids = list(prompt["prompt_token_ids"])
            numbers = torch.Generator().manual_seed(sampling.seed)
            while len(ids) < start + sampling.max_tokens and self.end not in ids[start:]:
                scores = policy(torch.tensor([ids])).logits[0, -1]
                if sampling.top_k:
                    scores[scores < scores.topk(sampling.top_k).values[-1]] = -1e9
                if sampling.temperature:
                    scores = scores + torch.rand(scores.shape, generator=numbers) * 50
                ids.append(int(scores.argmax()))
            reason = "stop" if self.end in ids[start:] else "length"
            output = SimpleNamespace(token_ids=tuple(ids[start:]), finish_reason=reason)
            results.append(SimpleNamespace(outputs=[output]))
        return results


def install(monkeypatch: Any) -> type[LLM]:
    """Put the stand-in in the place of ``vllm``, and return its class of engines."""
    modules = {name: ModuleType(name) for name in ("vllm", "vllm.lora", "vllm.lora.request")}
    engine = type("LLM", (LLM,), {"loaded": [], "adapters": [], "end": None})
    vars(modules["vllm"]).update(LLM=engine, SamplingParams=SamplingParams, __spec__=ModuleSpec("vllm", None))
    vars(modules["vllm.lora.request"]).update(LoRARequest=LoRARequest)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return engine

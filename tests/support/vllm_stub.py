"""A stand-in of ``vllm`` with its documented calls, which computes with transformers: no GPU and no vLLM is needed."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from countdown_rl.models import lora

#: Longest prompt and completion, in tokens.
CONTEXT = 1024


class SamplingParams(SimpleNamespace):
    """Settings of one prompt."""


class LoRARequest(NamedTuple):
    lora_name: str
    lora_int_id: int
    lora_path: str


class LLM:
    """An engine with the weights of a checkpoint; *engines* are all that were started."""

    engines: list["LLM"]

    def __init__(self, model: str, **options: Any) -> None:
        if (options["max_model_len"] or 0) > CONTEXT:  # in the words of pydantic
            raise ValueError(
                f"1 validation error for ModelConfig\n  Value error, max_model_len is above {CONTEXT}."
            )
        self.options = options | {"model": model}
        self.policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.base = {name: value.clone() for name, value in self.policy.state_dict().items()}
        self.adapters: list[Path] = []
        self.requests: list[LoRARequest | None] = []
        self.engines.append(self)

    def add_lora(self, request: LoRARequest) -> None:
        self.adapters.append(Path(request.lora_path))
        tensors = load_file(self.adapters[-1] / lora.WEIGHTS)
        config = json.loads((self.adapters[-1] / lora.CONFIG).read_text())
        for name, parameter in self.policy.named_parameters():
            prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            if f"{prefix}A.weight" in tensors:
                change = tensors[f"{prefix}B.weight"] @ tensors[f"{prefix}A.weight"]
                parameter.data += config["lora_alpha"] / config["r"] * change

    @torch.no_grad()
    def generate(
        self,
        prompts: list[dict[str, list[int]]],
        sampling_params: list[SamplingParams],
        *,
        use_tqdm: bool,
        lora_request: LoRARequest | None,
    ) -> list[SimpleNamespace]:
        assert not use_tqdm
        if lora_request not in self.requests[-1:]:
            self.policy.load_state_dict(self.base)
            if lora_request:
                self.add_lora(lora_request)
        self.requests.append(lora_request)
        pairs = zip(prompts, sampling_params, strict=True)
        return [self._complete(prompt["prompt_token_ids"], sampling) for prompt, sampling in pairs]

    def _complete(self, prompt: list[int], sampling: SamplingParams) -> SimpleNamespace:
        ids, logprobs = list(prompt), []
        generator = torch.Generator().manual_seed(sampling.seed)
        for _ in range(sampling.max_tokens):
            scores = self.policy(torch.tensor([ids])).logits[0, -1]
            if sampling.top_k > 0:
                scores[scores < scores.topk(sampling.top_k).values[-1]] = -torch.inf
            scores = scores.log_softmax(-1)
            token = int(scores.argmax())
            if sampling.temperature:
                token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append({token: SimpleNamespace(logprob=float(scores[token]))})
            if token in sampling.stop_token_ids:
                break
        output = SimpleNamespace(token_ids=ids[len(prompt) :], logprobs=logprobs)
        return SimpleNamespace(outputs=[output])


def install(monkeypatch: pytest.MonkeyPatch) -> type[LLM]:
    """Put the stand-in in the place of ``vllm``, and return its class of engines."""
    engine = type("LLM", (LLM,), {"engines": []})
    contents = {
        "vllm": {"LLM": engine, "SamplingParams": SamplingParams},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values, __spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    return engine

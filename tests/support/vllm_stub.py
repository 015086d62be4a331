"""A stand-in of ``vllm`` with its documented calls, which computes with transformers: no GPU and no vLLM is needed."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from countdown_rl.models import lora

#: Longest prompt and completion, in tokens.
CONTEXT = 1024


class SamplingParams(SimpleNamespace):
    def __init__(self, **settings: Any) -> None:
        assert settings["include_stop_str_in_output"]
        super().__init__(
            **{"seed": None, "stop_token_ids": (), "top_p": 1.0, "top_k": 0} | settings
        )


class LoRARequest(NamedTuple):
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


class LLM:
    """An engine with a copy of the weights, and the last adapter that it was sent.

    *engines* are all that were started.
    """

    engines: list["LLM"]

    def __init__(self, model: str, **options: Any) -> None:
        if (options["max_model_len"] or 0) > CONTEXT:  # in the words of pydantic
            raise ValueError(
                f"1 validation error for ModelConfig\n  Value error, max_model_len is above {CONTEXT}."
            )
        self.options = options | {"model": model}
        self.policy = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32
        ).eval()
        self.base = {name: value.clone() for name, value in self.policy.named_parameters()}
        self.adapters: list[Path] = []
        self.prompts: list[list[dict[str, Any]]] = []
        self.params: list[Any] = []
        self.requests: list[Any] = []
        self.numbers: list[int] = []
        self.syncs = 0
        self.request: Any = None
        self.model_runner = self
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=self), add_lora=self.add_lora
        )
        np.random.seed(0)  # the process index
        self.engines.append(self)

    def reload_weights(self, weights_iterator: Any) -> None:
        self.load_weights(weights_iterator)

    def load_weights(self, pairs: Any) -> None:
        for name, value in pairs:
            own = self.policy.get_parameter(name)
            assert own.shape == value.shape
            own.data.copy_(value)
            self.base[name] = value

    def set_base(self) -> None:
        for name, parameter in self.policy.named_parameters():
            parameter.data = self.base[name].float()

    def add_lora(self, request: LoRARequest) -> None:
        self.adapters.append(Path(request.lora_path))
        tensors = load_file(self.adapters[-1] / lora.WEIGHTS)
        config = json.loads((self.adapters[-1] / lora.CONFIG).read_text())
        scale = config["lora_alpha"] / config["r"]
        for name, parameter in self.policy.named_parameters():
            prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            weight = self.base[name].float()
            if f"{prefix}A.weight" in tensors:
                a, b = tensors[f"{prefix}A.weight"], tensors[f"{prefix}B.weight"]
                weight = weight + scale * (b @ a)
            parameter.data = weight

    def reset_prefix_cache(self) -> None:
        self.syncs += 1

    @torch.no_grad()
    def generate(
        self, prompts: list[Any], sampling_params: Any, *, use_tqdm: bool, lora_request: Any = None
    ) -> list[Any]:
        assert not use_tqdm
        if lora_request != self.request:
            self.request = lora_request
            self.set_base()
            if lora_request:
                self.add_lora(lora_request)
        self.requests.append(lora_request)
        self.numbers.append(np.random.randint(2**31))  # the runner on a GPU makes seeds of it
        self.prompts.append(prompts)
        self.params.append(sampling_params)
        params = (
            sampling_params
            if isinstance(sampling_params, list)
            else [sampling_params] * len(prompts)
        )
        pairs = zip(prompts, params, strict=True)
        return [self._complete(prompt["prompt_token_ids"], sampling) for prompt, sampling in pairs]

    def _complete(self, prompt: list[int], sampling: Any) -> Any:
        ids, logprobs = list(prompt), []
        generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        reason = "length"
        for _ in range(sampling.max_tokens):
            scores = self.policy(torch.tensor([ids])).logits[0, -1].float()
            if sampling.top_k > 0:
                scores[scores < scores.topk(sampling.top_k).values[-1]] = -torch.inf
            scores = scores.log_softmax(-1)
            if (
                sampling.temperature and sampling.top_p < 1
            ):  # renormalised, as its processed log-probabilities are
                ranked, order = scores.sort(descending=True)
                outside = order[ranked.exp().cumsum(-1) - ranked.exp() >= sampling.top_p]
                scores = scores.index_fill(-1, outside, -torch.inf).log_softmax(-1)
            greedy = sampling.temperature == 0
            token = int(
                scores.argmax()
                if greedy
                else torch.multinomial(scores.exp(), 1, generator=generator)
            )
            ids.append(token)
            logprobs.append({token: SimpleNamespace(logprob=float(scores[token]), rank=1)})
            if token in sampling.stop_token_ids:
                reason = "stop"
                break
        output = SimpleNamespace(
            token_ids=ids[len(prompt) :], logprobs=logprobs, finish_reason=reason
        )
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[output])


def install(monkeypatch: Any) -> type[LLM]:
    """Put the stand-in in the place of ``vllm``, and return its class of engines."""
    modules = {name: ModuleType(name) for name in ("vllm", "vllm.lora", "vllm.lora.request")}
    engine = type("LLM", (LLM,), {"engines": []})
    vars(modules["vllm"]).update(
        LLM=engine, SamplingParams=SamplingParams, __spec__=ModuleSpec("vllm", None)
    )
    vars(modules["vllm.lora.request"]).update(LoRARequest=LoRARequest)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return engine

"""Private parts of TRL's vLLM backend: the policy sent to an engine without merging its adapter in place.

``_iter_named_params`` names the weights that an engine gets. The public way was considered: a ``sync_weights`` of our
own would repeat the protocol of the server.
"""

import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor
from trl.distributed import DistributedBackend
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from countdown_rl.core.errors import first_line
from countdown_rl.inference.vllm import log_probabilities, lora_options, silence_exit
from countdown_rl.models import lora

PRIVATE = ("trl.generation.vllm_generation.VLLMGeneration._iter_named_params",)

#: Name of the policy's adapter in an engine.
_POLICY = "policy"


class PolicyEngine(VLLMGeneration):
    """TRL's vLLM backend over the checkpoint at *path*, which computes in *dtype* and gets the policy, *model*.

    TRL merges the adapter into the base in place and takes it out again for each transfer: over 4-bit weights that
    rounds the adapter away (huggingface/trl issue 4973), and in bf16 it leaves its rounding in the base. Here the base
    stays as it is. Of a sharded policy one weight at a time is gathered.

    Args:
        adapters: the directory in which the adapter is written for the engine, which computes with its own base (as in
            TRL's pull request 6007). If None, or if a server has no LoRA, the engine gets each weight as the
            de-quantized base plus the adapter, which bf16 rounds away if it is small.
        same_base: the weights at *path* are the policy's base, else that is sent once.
    """

    def __init__(
        self,
        path: str,
        dtype: torch.dtype,
        *,
        model: torch.nn.Module,
        accelerator: Accelerator,
        adapters: Path | None = None,
        same_base: bool = True,
        **settings: object,
    ) -> None:
        self.dtype, self.distributed = dtype, DistributedBackend(accelerator)
        self.directory: Any = (
            None if adapters is None else TemporaryDirectory(dir=adapters, prefix="adapter-")
        )
        self.refusal = ""  # the reason why a server does not get the adapter
        options: dict[str, object] = {
            "dtype": str(dtype).removeprefix("torch.")
        }  # TRL leaves it to vLLM
        if self.directory:
            layers = {
                name.rpartition(".")[2]
                for name, module in model.named_modules()
                if hasattr(module, "lora_A")
            }
            options |= lora_options(model.peft_config["default"].r) | {
                "lora_target_modules": sorted(layers)
            }
        # TRL takes the first free port of a short list, on which runs that start together collide.
        with socket.socket() as free:
            free.bind(("", 0))
            os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))
        engine = vllm_generation.LLM
        vllm_generation.LLM = partial(engine, **options)
        # TRL reads the path of the model, and loads the engine in 4 bits where the model has 4-bit layers.
        named = SimpleNamespace(name_or_path=path, named_modules=list)
        silence_exit()
        try:
            super().__init__(model=named, accelerator=accelerator, **settings)
        finally:
            vllm_generation.LLM = engine
        self.model = model
        if self.directory and self.mode == "colocate":
            self.llm.generate = partial(self.llm.generate, lora_request=self._request())
            if not same_base:
                self._send_weights()
            self._check_adapter()
        elif self.directory:
            client = self.vllm_client if accelerator.is_main_process else SimpleNamespace(model="")
            name = client.model
            try:
                self._check_adapter()
            except (ValueError, LookupError, OSError) as error:  # requests' errors are OSErrors
                self.refusal, client.model = first_line(error), name
            (self.refusal,) = broadcast_object_list([self.refusal])
            self.directory = None if self.refusal else self.directory

    def sync_weights(self) -> None:
        if self.directory is None:
            self._send_weights()
            return
        names = self.model.named_parameters()
        weights = {name: self._gathered(parameter) for name, parameter in names if ".lora_" in name}
        if self.mode == "server" and not self.accelerator.is_main_process:
            return
        lora.save(self.model, Path(self.directory.name), base="", weights=weights)
        if self.mode != "server":
            self.llm.llm_engine.add_lora(self._request(load_inplace=True))
            self.llm.reset_prefix_cache()
            return
        client = self.vllm_client
        request = {"lora_name": _POLICY, "lora_path": self.directory.name, "load_inplace": True}
        response = client.session.post(f"{client.base_url}/v1/load_lora_adapter", json=request)
        if not response.ok:
            raise ValueError(
                f"it cannot load an adapter, HTTP {response.status_code}: {response.text}"
            )
        client.model = _POLICY
        client.reset_prefix_cache()

    def _request(self, **settings: object) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(_POLICY, 1, self.directory.name, **settings)

    @torch.no_grad()
    def _check_adapter(self) -> None:
        """Send the adapter; raise ValueError unless the engine computes a large one as the policy does.

        vLLM ignores LoRA in layers of some hybrid models (vllm-project/vllm issue 49354), and a server may have another
        base. A sharded policy is not checked.
        """
        if self.distributed.is_fsdp or self.distributed.is_zero3:
            self.sync_weights()
            return
        if self.mode == "server" and not self.accelerator.is_main_process:
            return
        ids = self.processing_class("The numbers are 3, 7 and 50, and the target is 46.")[
            "input_ids"
        ]
        generator = torch.Generator(self.accelerator.device).manual_seed(0)
        layers = [module for module in self.model.modules() if hasattr(module, "lora_B")]
        weights = [layer.lora_B["default"].weight for layer in layers]
        values, training = [weight.clone() for weight in weights], self.model.training
        self.model.eval()
        try:
            with self.model.disable_adapter():
                base = self._log_probabilities(ids)
            for layer, weight in zip(layers, weights, strict=True):
                scale = layer.scaling["default"] * layer.r["default"] ** 0.5
                weight.normal_(std=0.3 / scale, generator=generator)
            policy = self._log_probabilities(ids)
            self.sync_weights()
            engine = self._engine_log_probabilities(ids)
        finally:
            for weight, value in zip(weights, values, strict=True):
                weight.copy_(value)
            self.model.train(training)
        if (
            not (engine - policy).abs().mean() < 0.5 * (policy - base).abs().mean()
        ):  # 1 where LoRA is ignored
            raise ValueError("its LoRA differs from the policy's")
        self.sync_weights()

    def _log_probabilities(self, ids: list[int]) -> torch.Tensor:
        """The log-probabilities (T - 1,) of *ids* (T,) after the first, by the policy."""
        inputs = torch.tensor([ids], device=self.accelerator.device)
        logits = self.model(input_ids=inputs).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(-1, inputs[0, 1:, None])[:, 0].cpu()

    def _engine_log_probabilities(self, ids: list[int]) -> torch.Tensor:
        """As :meth:`_log_probabilities`, by the engine."""
        if self.mode == "colocate":
            return torch.tensor(log_probabilities(self.llm, ids, self._request()))
        client = self.vllm_client
        body = {
            "model": client.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        (choice,) = client.session.post(f"{client.base_url}/v1/completions", json=body).json()[
            "choices"
        ]
        steps = zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
        return torch.tensor([step[str(token)]["logprob"] for token, step in steps])

    def _send_weights(self) -> None:
        if self.directory or (self.mode == "colocate" and self.accelerator.device.type == "cpu"):
            # Layers with LoRA are wrapped, those of a CPU packed; vLLM's reload knows of both.
            worker = self.llm.llm_engine.model_executor.driver_worker
            worker.reload_weights(weights_iterator=self._iter_named_params())
            self.llm.reset_prefix_cache()
        else:
            super().sync_weights()

    @torch.no_grad()
    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        base = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        for name, parameter in base.named_parameters():
            if ".lora_" in name or "original_module" in name:
                continue
            layer = None
            if name.endswith(".base_layer.weight") and self.directory is None:
                layer = base.get_submodule(name.removesuffix(".base_layer.weight"))
            name = name.replace(".base_layer", "").replace("modules_to_save.default.", "")
            yield name, self._gathered(parameter, layer).to(self.dtype)

    def _gathered(
        self, parameter: torch.nn.Parameter, layer: torch.nn.Module | None = None
    ) -> torch.Tensor:
        """The weight *parameter* with the adapter of *layer*, gathered from ZeRO-3 or FSDP."""
        with self.distributed.gather_params(
            [parameter] if layer is None else list(layer.parameters())
        ):
            value = parameter.data
            if getattr(parameter, "quant_state", None) is not None:
                from bitsandbytes.functional import dequantize_4bit

                value = dequantize_4bit(value, parameter.quant_state)
            if layer is not None:
                adapters = (
                    layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters
                )
                value = sum(adapters, value.float())
            if self.distributed.is_zero3:
                value = value.clone()
        return value.full_tensor() if isinstance(value, DTensor) else value

"""Private parts of TRL: rounds of completions cut by us, and adapters sent to vLLM without merging them in place.

The public ways were considered:

* ``_prepare_inputs`` is where TRL shuffles a round and cuts it into micro-batches. ``training_step`` and
  ``compute_loss`` see one micro-batch only.
* ``_generate_and_score_completions`` gives the round itself; nothing public returns it.
* ``_metrics`` has the figures of a round; the public ``log_metric`` is for reward functions alone.
* ``_last_loaded_step`` is set where TRL makes the engine itself, which would load other weights; ``use_vllm`` needs it.
* ``_get_per_token_logps_and_entropies`` has the log-probabilities for the ratio to vLLM's; without it TRL computes all
  rows of a round once more.
* ``_iter_named_params`` names the weights an engine gets. A ``sync_weights`` of our own would repeat the server's
  protocol.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer
from trl.distributed import DistributedBackend
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from countdown_rl.inference.vllm import lora_options, silence_exit
from countdown_rl.models import lora
from countdown_rl.training.rollouts import Round

PRIVATE = (
    "trl.GRPOTrainer._prepare_inputs",
    "trl.GRPOTrainer._generate_and_score_completions",
    "trl.GRPOTrainer._last_loaded_step",
    "trl.GRPOTrainer._get_per_token_logps_and_entropies",
    "trl.GRPOTrainer._metrics",
    "trl.generation.vllm_generation.VLLMGeneration._iter_named_params",
)

Batch = dict[str, Any]

_MEAN_RATIO = "sampling/importance_sampling_ratio/mean"


class RoundTrainer(GRPOTrainer):
    """``GRPOTrainer`` with a method that cuts each round of completions into micro-batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns that rollout_func may change
        super().__init__(*args, **kwargs)
        self.waiting: list[Batch] = []
        self.corrects_in_loss = False
        self.scored: Batch | None = None

    def micro_batches(self, batch: Batch, sampled: Round) -> list[Batch]:
        """*batch*, the round *sampled* as tensors, as ``steps_per_generation`` micro-batches in order of use."""
        raise NotImplementedError

    def log_metric(self, name: str, value: float) -> None:
        """Log the figure *name* of a round."""
        self._metrics["train"][name].append(value)

    def _prepare_inputs(self, generation_batch: list[dict[str, Any]]) -> Batch:
        if not self.waiting:
            batch = self._generate_and_score_completions(generation_batch)
            sampled: Round = generation_batch[0]["round"]  # TRL adds the columns of `rollout_func`
            for name, value in sampled.figures().items():
                self.log_metric(name, value)
            if "importance_sampling_ratio" in batch:
                difference, mask = self._difference(batch, batch["old_per_token_logps"])
                by_token = batch["importance_sampling_ratio"].shape[1] > 1
                self._metrics["train"].pop(_MEAN_RATIO)  # taken after the cap
                self._log_ratio(difference.exp()[mask] if by_token else difference.sum(1).exp())
            self.waiting = self.micro_batches(batch, sampled) * self.num_iterations
        return self.waiting.pop(0)

    def _difference(self, batch: Batch, logps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """*logps* less those of the engine, 0 where it has none, and the mask of the completions; (B, T)."""
        mask = batch["completion_mask"].bool()
        return (logps - batch["sampling_per_token_logps"]).nan_to_num() * mask, mask

    def _log_ratio(self, ratio: torch.Tensor) -> None:
        """Log the mean of *ratio*, before its cap, which would hide a mean above it."""
        self.log_metric(_MEAN_RATIO, self.accelerator.gather(ratio.mean()).nanmean().item())

    def use_engine(self, engine: VLLMGeneration) -> None:
        """Let *engine* complete the prompts, and correct the loss for its difference from the policy."""
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, engine, -1
        # The policy of the loss is the one that the engine has, if a round is one step.
        one_step = self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.num_iterations) == 0
        by_token = self.vllm_importance_sampling_mode == "token_truncate"
        self.corrects_in_loss = self.vllm_importance_sampling_correction and one_step and by_token
        self.vllm_importance_sampling_correction &= not self.corrects_in_loss

    def compute_loss(self, model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.corrects_in_loss:
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.scored, self.vllm_importance_sampling_correction = inputs, True
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.scored, self.vllm_importance_sampling_correction = None, False

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any, Any]:
        logps, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self.scored is not None:
            difference, mask = self._difference(self.scored, logps.detach())
            ratio = difference.exp()
            low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
            self.scored["importance_sampling_ratio"] = ratio.clamp(low, high)
            self._log_ratio(ratio[mask])
        return logps, entropies, auxiliary

    def sync_engine(self) -> None:
        """Send the weights to the engine unless it has them, for an evaluation; before each round TRL does so."""
        if self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step


class PolicyEngine(VLLMGeneration):
    """TRL's vLLM backend over the checkpoint at *path*, which computes in *dtype* and gets the policy, *model*.

    TRL merges the adapter into the base in place and takes it out again for each transfer: over 4-bit weights that
    rounds the adapter away (huggingface/trl issue 4973), and in bf16 it leaves its rounding in the base. Here the base
    stays as it is. With *by_adapter* the engine computes with its own base and gets the adapter alone (as in TRL's pull
    request 6007); its base is sent once unless the weights at *path* are the *same_base*. Otherwise it gets each weight
    as the de-quantized base plus the adapter.
    """

    def __init__(
        self,
        path: str,
        dtype: torch.dtype,
        *,
        model: Any,
        accelerator: Any,
        by_adapter: bool = False,
        same_base: bool = True,
        **settings: Any,
    ) -> None:
        self.dtype, self.directory = dtype, TemporaryDirectory() if by_adapter else None
        self.distributed = DistributedBackend(accelerator)
        options: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch.")}  # TRL leaves it to vLLM
        if by_adapter:
            layers = {name.rpartition(".")[2] for name, module in model.named_modules() if hasattr(module, "lora_A")}
            options |= lora_options(model.peft_config["default"].r) | {"lora_target_modules": sorted(layers)}
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
        if self.directory:
            from vllm.lora.request import LoRARequest

            self.request = partial(LoRARequest, "policy", 1, self.directory.name)
            self.llm.generate = partial(self.llm.generate, lora_request=self.request())
            if not same_base:
                self._send_weights()
            self.sync_weights()  # fails here if vLLM does not support the adapter

    def server_reports_sampled_probabilities(self) -> bool:
        """Return True if the server reports the log-probabilities that it samples tokens with."""
        return bool(self.vllm_client.get_server_info()["model_config"]["logprobs_mode"] == "processed_logprobs")

    def sync_weights(self) -> None:
        if self.directory is None:
            self._send_weights()
            return
        names = self.model.named_parameters()
        weights = {name: self._gathered(parameter) for name, parameter in names if ".lora_" in name}
        lora.save(self.model, Path(self.directory.name), base="", weights=weights)
        self.llm.llm_engine.add_lora(self.request(load_inplace=True))
        self.llm.reset_prefix_cache()

    def _send_weights(self) -> None:
        if self.directory or (self.mode == "colocate" and self.accelerator.device.type == "cpu"):
            # Layers with LoRA are wrapped, those of a CPU packed; vLLM's reload knows of both.
            runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
            runner.reload_weights(weights_iterator=self._iter_named_params())
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

    def _gathered(self, parameter: torch.nn.Parameter, layer: torch.nn.Module | None = None) -> torch.Tensor:
        """The weight *parameter* with the adapter of *layer*, gathered from ZeRO-3 or FSDP."""
        with self.distributed.gather_params([parameter] if layer is None else list(layer.parameters())):
            value = parameter.data
            if getattr(parameter, "quant_state", None) is not None:
                from bitsandbytes.functional import dequantize_4bit

                value = dequantize_4bit(value, parameter.quant_state)
            if layer is not None:
                adapters = (layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters)
                value = sum(adapters, value.float())
            if self.distributed.is_zero3:
                value = value.clone()
        return value.full_tensor() if isinstance(value, DTensor) else value

"""Private parts of TRL: rounds of completions cut by us, and weights sent to vLLM without merging the adapter.

The public ways were considered:

* ``_prepare_inputs`` is where TRL shuffles a round and cuts it into micro-batches. ``training_step`` and
  ``compute_loss`` see one micro-batch only, and neither rows can be left out there nor the advantages of a whole round
  be computed.
* ``_generate_and_score_completions`` gives the round itself; nothing public returns it.
* ``_last_loaded_step`` is set where TRL makes the engine itself, which would take other weights; ``use_vllm`` needs it.
* ``_iter_named_params`` is the only place that names the weights an engine gets. A ``sync_weights`` of our own would
  repeat the protocol of the server.
"""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from countdown_rl.inference.vllm import output_to_stderr

PRIVATE = (
    "trl.GRPOTrainer._prepare_inputs",
    "trl.GRPOTrainer._generate_and_score_completions",
    "trl.GRPOTrainer._last_loaded_step",
    "trl.generation.vllm_generation.VLLMGeneration._iter_named_params",
)

Batch = dict[str, Any]


class RoundTrainer(GRPOTrainer):
    """``GRPOTrainer`` with a method that cuts each round of completions into micro-batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting: list[Batch] = []

    def examples(self, batch: list[Any]) -> list[Any]:
        """Return the examples of a round for which the data set gave *batch*."""
        raise NotImplementedError

    def micro_batches(self, batch: Batch) -> list[Batch]:
        """Return *batch*, a round with TRL's advantages, as ``steps_per_generation`` micro-batches in order of use."""
        raise NotImplementedError

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        if not self.waiting:
            parts = self.micro_batches(self._generate_and_score_completions(self.examples(generation_batch)))
            self.waiting = parts * self.num_iterations
        return self.waiting.pop(0)

    def use_engine(self, engine: VLLMGeneration) -> None:
        """Correct the loss for the difference between the policy and *engine*, which completes the prompts."""
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, engine, -1

    def sync_engine(self) -> None:
        """Send the weights to the engine unless it has them; before each round TRL does so itself."""
        if self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step


class PolicyEngine(VLLMGeneration):
    """TRL's vLLM backend over the checkpoint at *path*, which gets the weights of *model* in *dtype*.

    TRL merges the adapter into the base in place and takes it out again for each transfer: over 4-bit weights that
    rounds the adapter away (huggingface/trl issue 4973), and in bf16 it leaves its rounding in the base. Here every
    weight is sent as the de-quantized base plus the adapter, and the base stays as it is.
    """

    def __init__(self, path: str, dtype: torch.dtype, *, model: Any, **settings: Any) -> None:
        self.dtype = dtype
        engine = vllm_generation.LLM
        vllm_generation.LLM = partial(engine, dtype=str(dtype).removeprefix("torch."))  # TRL leaves it to vLLM
        try:
            with output_to_stderr():
                # TRL takes the path of the model, and its 4-bit layers as a reason to load the engine in 4 bits too.
                super().__init__(model=SimpleNamespace(name_or_path=path, named_modules=list), **settings)
        finally:
            vllm_generation.LLM = engine
        self.model = model

    def server_reports_drawn_probabilities(self) -> bool:
        """Return True if the log-probabilities of the server are those that it draws tokens with."""
        mode = self.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        return bool(mode == "processed_logprobs")

    def sync_weights(self) -> None:
        with output_to_stderr():
            if self.mode == "colocate" and self.accelerator.device.type == "cpu":
                # There vLLM packs linear layers after loading, and only its reload unpacks them.
                runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
                runner.reload_weights(weights_iterator=self._iter_named_params())
                self.llm.reset_prefix_cache()
            else:
                super().sync_weights()

    def generate(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with output_to_stderr():
            return super().generate(*args, **kwargs)

    @torch.no_grad()
    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        base = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        for name, parameter in base.named_parameters():
            if ".lora_" in name or "original_module" in name:
                continue
            value = parameter.data
            if getattr(parameter, "quant_state", None) is not None:
                from bitsandbytes.functional import dequantize_4bit

                value = dequantize_4bit(value, parameter.quant_state)
            if name.endswith(".base_layer.weight"):
                layer = base.get_submodule(name.removesuffix(".base_layer.weight"))
                value = sum(
                    (layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters), value.float()
                )
            name = name.replace(".base_layer", "").replace("modules_to_save.default.", "")
            yield name, value.to(self.dtype)

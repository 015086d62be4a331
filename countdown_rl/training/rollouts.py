"""Completions by vLLM during training, in the training processes or from a server, with the weights of the policy.

TRL merges the adapter into the base in place and takes it out again for each transfer: over 4-bit weights that rounds
the adapter away (huggingface/trl issue 4973), and in bf16 it leaves its rounding in the base. Here every weight is sent
as the de-quantized base plus the adapter, and the base stays as it is.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from countdown_rl.errors import ModelError, UsageError
from countdown_rl.inference.vllm import output_to_stderr
from countdown_rl.models import files, load, lora, reference
from countdown_rl.training.config import TrainOptions

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer

#: Share of a GPU's memory that an engine's weights may take for "auto"; TRL gives the engine 0.3 of it in all.
_AUTO_SHARE = 0.2


def check(options: TrainOptions, ref: reference.ModelRef, *, sharded: bool) -> None:
    """Check that the vLLM that *options* ask for is there and can hold the weights of *ref*.

    Raises:
        UsageError: vLLM cannot hold the weights, or each process has a part of them (*sharded*).
        ModelError: it is not installed.
    """
    if options.rollouts in ("auto", "transformers"):
        return
    if load.stored_format(ref.base or ref) != "plain":
        raise UsageError(f"--rollouts {options.rollouts} needs unquantized safetensors, and {ref.source} has none.")
    if sharded:
        raise UsageError(f"--rollouts {options.rollouts} needs all weights in each process; use --launch ddp or zero2.")
    if find_spec("vllm") is None:
        raise ModelError(f"--rollouts {options.rollouts} needs vLLM: `pip install 'countdown-rl[vllm]'`.")


def resolve(options: TrainOptions, loaded: load.Loaded, *, sharded: bool) -> str:
    """The engine of a run: "transformers", "vllm" or "vllm-server".

    Raises:
        UsageError: see :func:`check`; or the adapter is not plain LoRA.
        ModelError: vLLM is not installed.
    """
    special = any(map(lora.is_special, loaded.model.modules()))
    if options.rollouts == "auto":
        from peft import PeftModel

        plain = load.stored_format(loaded.ref.base or loaded.ref) == "plain" and not (sharded or special)
        if not plain or not loaded.device.startswith("cuda") or find_spec("vllm") is None:
            return "transformers"
        weights = 2 * PeftModel.get_nb_trainable_parameters(loaded.model)[1]  # it counts packed ones, of any model
        return "vllm" if weights <= _AUTO_SHARE * torch.cuda.mem_get_info()[1] else "transformers"
    check(options, loaded.ref, sharded=sharded)
    if special and options.rollouts != "transformers":
        raise UsageError(
            f"--rollouts {options.rollouts} supports LoRA without variants and biases; use --rollouts transformers."
        )
    return options.rollouts


def engine(trainer: "Trainer", rollouts: str, loaded: load.Loaded, length: int) -> "Engine":
    """The vLLM engine of *trainer* for prompts and completions of *length* tokens together."""
    config = trainer.args
    server = {name: getattr(config, f"vllm_{name}") for name in ("server_base_url", "server_host", "server_port")}
    same = ("tensor_parallel_size", "gpu_memory_utilization", "enable_sleep_mode", "model_impl", "group_port")
    sampling = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_completion_length")
    path = files_of(loaded)
    rows = config.per_device_train_batch_size * config.steps_per_generation
    return Engine(
        path,
        torch.float32 if loaded.precision == "fp32" else torch.bfloat16,
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        mode="server" if rollouts == "vllm-server" else "colocate",
        server_timeout=config.vllm_server_timeout,
        max_model_length=length,
        max_num_seqs=rows * config.vllm_tensor_parallel_size,
        trust_remote_code=config.trust_remote_code,
        generation_kwargs={
            "stop": [trainer.stop.text],
            "include_stop_str_in_output": True,
            "stop_token_ids": trainer.eos_token_ids,
        }
        | (config.generation_kwargs or {}),
        **server,
        **{name: getattr(config, f"vllm_{name}") for name in same},
        **{name: getattr(config, name) for name in sampling},
    )


def files_of(loaded: load.Loaded) -> str:
    """The directory of the full-precision weights that an engine starts from."""
    path = reference.files(loaded.ref.base or loaded.ref)
    files.check(path)
    return str(path)


class Engine(VLLMGeneration):
    """TRL's vLLM backend over the checkpoint at *path*; weights are sent in *dtype*."""

    model: Any

    def __init__(self, path: str, dtype: torch.dtype, **settings: Any) -> None:
        self._path, self._dtype = path, dtype
        super().__init__(**settings)

    def _init_vllm(self) -> None:
        # Of the model TRL takes the path, and 4-bit layers as a reason to load the engine in 4 bits too.
        model, self.model = self.model, SimpleNamespace(name_or_path=self._path, named_modules=list)
        try:
            with output_to_stderr():
                super()._init_vllm()
        finally:
            self.model = model

    def server_reports_drawn_probabilities(self) -> bool:
        """Return True if the log-probabilities of the server are those that it draws tokens with."""
        mode = self.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        return bool(mode == "processed_logprobs")

    def sync_weights(self) -> None:
        with output_to_stderr():
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
            yield name, value.to(self._dtype)

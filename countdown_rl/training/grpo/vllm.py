"""Rollouts by vLLM: the choice of the engine, and its start."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from countdown_rl.core import processes
from countdown_rl.core.errors import ModelError, first_line
from countdown_rl.inference import engines
from countdown_rl.inference.vllm import LORA_RANKS, unsupported_weights
from countdown_rl.models import load, lora, model_files, reference
from countdown_rl.training import memory
from countdown_rl.training.options import TrainOptions

if TYPE_CHECKING:
    from trl import GRPOConfig

    from countdown_rl.training.grpo.trl_internals import RoundTrainer

#: Fields of ``GRPOConfig`` that TRL's engine has under the same name, without ``vllm_`` and as they are.
_ENGINE = (
    *(
        "tensor_parallel_size",
        "enable_sleep_mode",
        "model_impl",
        "group_port",
        "gpu_memory_utilization",
    ),
    *("server_base_url", "server_host", "server_port", "server_timeout"),
)
_SAMPLING = (
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_completion_length",
)


def plan(
    options: TrainOptions,
    loaded: load.Loaded,
    adapted: torch.nn.Module,
    make_config: Callable[[], "GRPOConfig"],
    make_plan: Callable[..., memory.Memory],
) -> tuple[str, memory.Memory]:
    """The engine of a run, and its memory, which *make_plan* computes by :func:`memory.plan`.

    "auto" is vLLM if there is a CUDA GPU and vLLM supports the weights, which fit its share of the memory. *loaded* is
    a skeleton, *adapted* the same with the adapter, and *make_config* returns the ``GRPOConfig``.
    """
    auto, gpu = options.rollouts == "auto", loaded.device == "cuda"
    reason = unsupported_weights(loaded.ref) or engines.missing_package("vllm")
    if not reason and any(map(lora.is_special, adapted.modules())):
        reason = "supports LoRA without variants and biases; use --rollouts transformers"
    if options.rollouts == "transformers" or (auto and (reason or not gpu)):
        return "transformers", make_plan()
    if reason:
        raise ModelError(f"{options.rollouts} {reason}.", option="rollouts")
    colocated = gpu and options.rollouts != "vllm-server"
    with_engine = make_plan(vllm=make_config().vllm_gpu_memory_utilization if colocated else 0.0)
    weights = loaded.model.num_parameters() * memory.forward_width(
        loaded.precision, loaded.device, loaded.model
    )
    if auto and not (with_engine.fits and weights < with_engine.estimates[-1].engine):
        return "transformers", make_plan()
    return "vllm" if auto else options.rollouts, with_engine


def sends_adapter(
    options: TrainOptions, ref: reference.ModelRef, width: int, *, sleeps: bool
) -> bool:
    """Return True if vLLM computes with its own base, and only the adapter of a run is sent for each round.

    vLLM's LoRA has 16 bits (a *width* of 2 bytes) and one rank and scale. In fp32 a merged adapter loses nothing, and
    sleep mode discards the base.
    """
    if options.tune != "lora" or sleeps or width != 2:
        return False
    if ref.base is None:
        return options.lora_r <= LORA_RANKS[-1]
    settings = model_files.adapter_config(reference.local_path(ref))
    return lora.is_uniform(settings) and settings.get("r", 8) <= LORA_RANKS[-1]


def use_engine(
    trainer: "RoundTrainer",
    rollouts: str,
    loaded: load.Loaded,
    length: int,
    on_warning: Callable[[str], None],
) -> None:
    """Let vLLM complete the prompts of a :class:`trainer.Trainer`, of *length* tokens with their completions.

    If it does not start, and the choice was automatic, transformers does: vLLM has no LoRA for some architectures.
    """
    from countdown_rl.training.grpo.vllm_internals import PolicyEngine

    config, options, stop = trainer.args, trainer.options, trainer.rollouts.stop
    path = reference.local_path(loaded.ref.base or loaded.ref)
    model_files.check_files(path)
    dtype = load.compute_dtype(loaded.precision, torch.device(loaded.device), loaded.model)
    by_adapter = sends_adapter(
        options, loaded.ref, dtype.itemsize, sleeps=config.vllm_enable_sleep_mode
    )
    served, same_base = rollouts == "vllm-server", loaded.storage == "plain"
    by_adapter &= same_base or not served
    stops = {
        "stop": [stop.text],
        "include_stop_str_in_output": True,
        "stop_token_ids": sorted(stop.ids),
    }
    rows = config.per_device_train_batch_size * config.steps_per_generation
    try:
        engine = PolicyEngine(
            str(path),
            dtype,
            adapters=_directory(trainer, served=served) if by_adapter else None,
            same_base=same_base,
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server" if served else "colocate",
            max_model_length=length,
            max_num_seqs=rows * config.vllm_tensor_parallel_size,
            trust_remote_code=config.trust_remote_code,
            generation_kwargs=stops | (config.generation_kwargs or {}),
            **{name: getattr(config, f"vllm_{name}") for name in _ENGINE},
            **{name: getattr(config, name) for name in _SAMPLING},
        )
    except (
        ValueError,
        RuntimeError,
        KeyError,
    ) as error:  # the last where a model cannot be sent over LoRA's layers
        share = f"{config.vllm_gpu_memory_utilization:g} by --trl vllm_gpu_memory_utilization"
        reason = first_line(error)
        cause = f"vLLM cannot complete the prompts: {reason}; give another share of the GPU than {share}"
        if options.rollouts != "auto":
            raise ModelError(f"{cause}, or use --rollouts transformers.") from error
        on_warning(f"{cause}; transformers now completes them, more slowly.")
        return
    trainer.use_engine(engine)
    if engine.directory is None and dtype.itemsize == 2 and options.tune == "lora":
        remedy = (
            f" To send the adapter alone, see docs/gpu.md: {engine.refusal}."
            if engine.refusal
            else ""
        )
        text = f"--rollouts {rollouts} gets this adapter merged into bf16 weights, which loses small changes."
        on_warning(text + remedy)
    if not (served and processes.is_main()):
        return
    if (
        engine.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
        != "processed_logprobs"
    ):
        on_warning(
            "the vLLM server reports log-probabilities before temperature and top-p, which biases the importance "
            "sampling correction; start it with --logprobs-mode processed_logprobs."
        )


def _directory(trainer: "RoundTrainer", *, served: bool) -> Path:
    """The directory for the adapter: that of the checkpoints, which a server may share, else memory if it has space."""
    if served:
        directory = Path(trainer.args.output_dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    memory_backed = Path("/dev/shm")  # noqa: S108 - its usual name
    size = sum(weight.nbytes for weight in trainer.model.parameters() if weight.requires_grad)
    in_memory = memory_backed.is_dir() and shutil.disk_usage(memory_backed).free > 4 * size
    return memory_backed if in_memory else Path(tempfile.gettempdir())

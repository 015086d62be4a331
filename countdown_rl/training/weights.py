"""Weights of a run: the trained adapter, loading, the trainer around them, and saving."""

import argparse
import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import (
    HfArgumentParser,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from countdown_rl.core import processes
from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.models import ends, load, lora, model_files, reference, torch_internals
from countdown_rl.models.reference import ModelRef
from countdown_rl.training import trl_fields
from countdown_rl.training.options import TuningOptions

Config = TypeVar("Config", bound=TrainingArguments)
AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


def check_model(ref: ModelRef, options: TuningOptions, *, sharded: bool) -> None:
    """Check that *ref* can be trained with *options*.

    Args:
        ref: the model.
        options: of the run.
        sharded: each process holds a part of the weights.

    Raises:
        UsageError: another option is needed.
    """
    if options.tune == "all" and ref.base is not None:
        raise UsageError(
            f"all trains a whole model, and {ref.source} is an adapter; merge it first.",
            option="tune",
        )
    trained = model_files.adapter_config(reference.local_path(ref)) if ref.base is not None else {}
    for name, key in {"lora_r": "r", "lora_alpha": "lora_alpha"}.items():
        value = getattr(options, name)
        if options.given(name) and trained.get(key, value) != value:
            raise UsageError(
                f"is {trained[key]} in the adapter {ref.source}; leave it out.", option=name
            )
    if sharded and load.trained_precision(ref, options.precision) == "nf4":
        raise UsageError("FSDP and ZeRO-3 cannot shard 4-bit weights; add --precision bf16.")


def _new_adapter(options: TuningOptions) -> LoraConfig:
    """The configuration of a new adapter, on all linear layers."""
    return LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def adapted(ref: ModelRef, skeleton: PreTrainedModel, options: TuningOptions) -> PreTrainedModel:
    """Return a copy of a skeleton with the adapter that a run trains, if it trains one.

    Args:
        ref: the model.
        skeleton: of the base of *ref*.
        options: of the run.

    Raises:
        ModelError: the model cannot have such an adapter.
    """
    model = copy.deepcopy(skeleton)
    if options.tune == "all":
        return model
    if ref.base is None:
        try:
            return get_peft_model(model, _new_adapter(options), low_cpu_mem_usage=True)
        except ValueError as error:  # PEFT does not adapt the layers of some architectures
            raise ModelError(
                f"{ref.source} cannot have LoRA: {first_line(error)}. Give --tune all."
            ) from error
    model = lora.attach(model, reference.local_path(ref), trainable=True)
    head = model.get_output_embeddings()
    if isinstance(head, BaseTunerLayer) or not hasattr(head, "bias"):  # trained tokens have none
        raise ModelError(
            f"{ref.source} adapts its output head, which TRL's losses cannot train; merge it first."
        )
    return model


def load_model(ref: ModelRef, options: TuningOptions, threads: int) -> load.Loaded:
    """Load the model *ref* for training in *threads*; the training of an adapter continues."""
    torch.set_num_threads(threads)
    return load.load_model(
        ref,
        precision=options.precision,
        trainable=ref.base is not None,
        sharded=processes.uses_fsdp(),
    )


def computes_in_bf16(loaded: load.Loaded) -> bool:
    """Return True if autocast computes in bf16.

    It does for models in bf16, on CUDA GPUs and CPUs with bf16 products.
    """
    in_bf16 = loaded.model.dtype == torch.bfloat16 and loaded.device != "mps"
    return in_bf16 and torch_internals.has_bf16_products(loaded.device)


def trainer_arguments(
    options: TuningOptions, loaded: load.Loaded, directory: Path, *names: str
) -> dict[str, object]:
    """Return fields of TRL's configurations of GRPO and SFT alike.

    Args:
        options: of the run.
        loaded: the model.
        directory: of the checkpoints.
        names: further options that are fields of the same name.
    """
    return {name: getattr(options, name) for name in (*names, "learning_rate", "seed")} | {
        "output_dir": str(directory),
        "per_device_train_batch_size": options.per_device_batch,
        "gradient_accumulation_steps": options.micro_batches,
        "bf16": computes_in_bf16(loaded),
        "fp16": loaded.model.dtype == torch.float16,  # with a scaler of the loss
        "use_cpu": loaded.device == "cpu",
        "ddp_find_unused_parameters": False,  # every part of the adapter is used
        "save_strategy": "no",  # the callback decides
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # training stops there
        "project": "countdown-rl",
        "disable_tqdm": True,
        "log_level_replica": "error",  # what rank 0 says is enough
    }


def config(
    kind: type[Config],
    options: TuningOptions,
    fields: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Config:
    """Return a configuration of TRL.

    Args:
        kind: its class.
        options: of the run, whose ``trl`` holds fields of the user.
        fields: fields that follow from other options.
        defaults: fields that a user may replace.

    Raises:
        UsageError: a field of the user is one of *fields* or no field of *kind*, TRL rejects its
            value, or TRL would train on several GPUs.
    """
    keys = trl_fields.split(options.trl)
    for key in keys:
        if key in fields or key not in kind.__dataclass_fields__:
            raise UsageError(
                f"{key}: {kind.__name__} has no such field, or it follows from another option.",
                option="trl",
            )
    common = {"gradient_checkpointing": False, "report_to": "none"}
    common |= {"lr_scheduler_type": options.SCHEDULE, **defaults}
    with trl_fields.rejected(options.trl):
        try:
            parser = HfArgumentParser(kind, exit_on_error=False)
            parsed = parser.parse_args([f"--{item}" for item in options.trl])
        except argparse.ArgumentError as error:
            raise ValueError(error.message) from error
        requested = {key: getattr(parsed, key) for key in keys}
        configuration = kind(**fields, **{**common, **requested})
    if configuration.n_gpu > 1:
        raise UsageError(
            f"one process trains on one GPU, and {configuration.n_gpu} are visible; "
            "set CUDA_VISIBLE_DEVICES=0."
        )
    return configuration


def make_trainer(
    make: Callable[..., AnyTrainer],
    loaded: load.Loaded,
    options: TuningOptions,
    **settings: object,
) -> AnyTrainer:
    """Return a trainer with its trained weights in fp32, which prints nothing on stdout.

    Args:
        make: its class.
        loaded: the model.
        options: of the run.
        settings: further arguments of *make*.
    """
    # TRL casts those over 4-bit weights to bf16, in which small updates are lost.
    exact = {weight: weight.data for weight in loaded.model.parameters() if weight.requires_grad}
    adds_adapter = options.tune == "lora" and loaded.ref.base is None
    trainer = make(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        peft_config=_new_adapter(options) if adds_adapter else None,
        **settings,
    )
    trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for data
    trainer.create_model_card = lambda *_, **__: None
    if not trainer.is_deepspeed_enabled:  # which keeps fp32 copies of its own
        for weight in trainer.model.parameters():
            if weight.requires_grad and weight.dtype != torch.float32:
                weight.data = exact.get(weight, weight.data).float()
    for adapter in getattr(trainer.model, "peft_config", {}).values():
        # Else PEFT asks the Hub for its vocabulary at every checkpoint.
        adapter.base_model_name_or_path = ""
    return trainer


def gathered(trainer: Trainer) -> dict[str, torch.Tensor] | None:
    """The weights of a sharded model by name, in the first process, else None.

    Call it in all processes.
    """
    zero = getattr(trainer.accelerator.state.deepspeed_plugin, "zero_stage", 0)
    if not (trainer.is_fsdp_enabled or zero == 3):
        return None
    return trainer.accelerator.get_state_dict(trainer.model_wrapped)


def save(
    trainer: Trainer,
    ref: ModelRef,
    options: TuningOptions,
    directory: Path,
    state: dict[str, torch.Tensor] | None,
) -> None:
    """Write the trained weights: an adapter, or a checkpoint of the whole model in bf16.

    Args:
        trainer: of the run.
        ref: the model that training began with.
        options: of the run.
        directory: is written to.
        state: from :func:`gathered`.
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if options.tune == "lora":
        base = ref.base or ref
        lora.save(policy, directory, base=base.location, revision=base.revision, weights=state)
    else:
        dtype = torch.float32 if options.precision == "fp32" else torch.bfloat16
        tied = policy.all_tied_weights_keys
        tensors = {}
        for name, value in (state or policy.state_dict()).items():
            if name not in tied:
                tensors[name] = value.to(dtype)
        policy.save_pretrained(directory, state_dict=tensors)
        config = copy.deepcopy(policy.config)
        config.dtype = dtype  # not that of the weights being trained
        config.tie_word_embeddings = bool(tied)  # its file may say so beside a head of its own
        config.save_pretrained(directory)
    tokenizer = trainer.processing_class
    named = policy.generation_config.eos_token_id
    size = policy.config.get_text_config().vocab_size
    ends.write(directory, ends.token_ids(tokenizer, named, size), tokenizer.pad_token_id)

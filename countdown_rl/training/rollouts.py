"""Completions during training: by the CPU decoder, by ``generate`` of transformers, or by vLLM."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from countdown_rl.core import packages, processes
from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.inference.cpu_decoder import Decoder, supports
from countdown_rl.inference.generate import generate
from countdown_rl.inference.stop import Stop
from countdown_rl.inference.vllm import LORA_RANKS
from countdown_rl.models import chat_template, load, lora, model_files, reference
from countdown_rl.tasks.task import Row
from countdown_rl.training import memory
from countdown_rl.training.config import TrainOptions

#: Bytes that vLLM takes beside weights and cache: CUDA graphs, and activations of the 4,096 tokens it reads at a time.
ENGINE = 3 * 2**29


#: A row of the trainer's data set: ``prompt`` (text with its special tokens) and ``row`` (an index).
Example = dict[str, Any]
#: Of each completion its ``prompt_ids``, ``completion_ids`` and ``logprobs``, as TRL takes them.
Drawn = dict[str, Any]


def example(rows: Sequence[Row], index: int, tokenizer: Any) -> Example:
    """The example of the row *index* of *rows*."""
    return {"prompt": chat_template.render(tokenizer, rows[index].messages()), "row": index}


class Rollouts:
    """TRL's ``rollout_func`` of a run, for prompts that hold their special tokens.

    Attributes:
        stop: the end of a completion.
        ended: for each completion of the last round, True if it was not truncated.
        seconds: time spent on completions.
    """

    def __init__(self, stop: Stop) -> None:
        self.stop, self.ended, self.seconds = stop, torch.empty(0, dtype=torch.bool), 0.0

    def examples(self, batch: list[Example], trainer: Any) -> list[Example]:
        """The examples of a round for which the data set gave *batch*."""
        return batch

    def __call__(self, prompts: Sequence[str], trainer: Any) -> Drawn:
        """Complete a round of *prompts*, those of a group side by side."""
        drawn = self.sample(prompts, trainer)
        ended = [self.stop(ids) for ids in drawn["completion_ids"]]
        self.ended = torch.tensor(ended, device=trainer.accelerator.device)
        return drawn

    def sample(self, prompts: Sequence[str], trainer: Any) -> Drawn:
        """Completions of *prompts*."""
        begin = time.perf_counter()
        prompt_ids = self.tokenize(prompts)
        completion_ids, logps = self.complete(prompt_ids, trainer)
        self.seconds += time.perf_counter() - begin
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logps}

    def tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        """The token ids of each of *prompts*; the tokenizer must not add a second set of special tokens."""
        unique = list(dict.fromkeys(prompts))
        ids = self.stop.tokenizer(unique, add_special_tokens=False)["input_ids"]
        known = dict(zip(unique, ids, strict=True))
        return [known[prompt] for prompt in prompts]

    def complete(
        self, prompt_ids: list[list[int]], trainer: Any, *, greedy: bool = False
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Completions up to their ends, and the log-probabilities with which vLLM drew them.

        Args:
            greedy: take the most likely tokens, and complete each prompt by itself.
        """
        policy, config = trainer.accelerator.unwrap_model(trainer.model), trainer.args
        trainer.model.eval()  # no LoRA dropout while sampling
        logps = None
        # Of the sampling settings the CPU decoder gets temperature and top-p only.
        others = (config.top_k, config.min_p, config.generation_kwargs, config.cache_implementation)
        plain = not any(others) and config.repetition_penalty == 1.0
        if trainer.use_vllm:
            completion_ids, logps = self._by_engine(prompt_ids, trainer, greedy)
        elif plain and supports(policy):
            from countdown_rl.inference.cpu_decoder_bf16 import Bf16Decoder

            decoder = Bf16Decoder(policy) if config.bf16 else Decoder(policy)
            completion_ids = decoder.decode(
                prompt_ids,
                max_new_tokens=config.max_completion_length,
                stop=self.stop,
                temperature=0.0 if greedy else config.temperature,
                top_p=config.top_p,
            )
        else:
            completion_ids = self._by_transformers(prompt_ids, trainer, greedy)
        trainer.model.train()
        return completion_ids, logps

    def _by_transformers(self, prompt_ids: list[list[int]], trainer: Any, greedy: bool) -> list[list[int]]:
        from transformers import GenerationConfig
        from trl.distributed import DistributedBackend
        from trl.models import unwrap_model_for_generation

        settings, args = dict(trainer.generation_kwargs), trainer.args
        if greedy:
            settings |= dict.fromkeys(("temperature", "top_p", "top_k", "min_p")) | {"do_sample": False}
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=args.ds3_gather_for_generation,
                generation_kwargs=settings,  # those of the checkpoint take no part
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
            DistributedBackend(trainer.accelerator).summon_full_params(trainer.model_wrapped, recurse=False),
        ):
            config = GenerationConfig(**settings, disable_compile=True)
            return generate(model, self.stop, prompt_ids, trainer.accelerator.device, generation_config=config)

    def _by_engine(
        self, prompt_ids: list[list[int]], trainer: Any, greedy: bool
    ) -> tuple[list[list[int]], list[list[float]]]:
        trainer.sync_engine()
        engine = trainer.vllm_generation
        engine.temperature = 0.0 if greedy else trainer.temperature
        count = 1 if greedy else trainer.num_generations
        _, drawn, logps, _ = engine.generate(prompts=prompt_ids, images=None, num_generations=count)
        completion_ids = [self.stop.cut(ids) for ids in drawn]
        # Of each token the log-probability of the drawn one, the only one that is asked for.
        kept = [[token[0] for token in row[: len(ids)]] for row, ids in zip(logps, completion_ids, strict=True)]
        return completion_ids, kept


def check_engine(options: TrainOptions, ref: reference.ModelRef) -> None:
    """Check that the vLLM that *options* ask for is there and can hold the weights of *ref*."""
    if options.rollouts in ("auto", "transformers"):
        return
    if load.stored_format(ref.base or ref) != "plain":
        raise UsageError(f"--rollouts {options.rollouts} needs unquantized safetensors, and {ref.source} has none.")
    if find_spec("vllm") is None:
        raise ModelError(f"--rollouts {options.rollouts} needs vLLM: {packages.pip_install('vllm')}.")


def plan(
    options: TrainOptions,
    loaded: load.Loaded,
    make_config: Callable[[], Any],
    planned: memory.Memory,
    *,
    processes: int,
) -> tuple[str, memory.Memory]:
    """The engine of a run that passed :func:`check_engine`, and *planned* with its memory in place of generation's.

    It has the cache of all completions of a round, or what training leaves, which must hold those of one puzzle. Where
    that does not fit, "auto" is transformers. *loaded* is a skeleton; *make_config* returns the ``GRPOConfig``.
    """
    gpu, auto = loaded.device == "cuda", options.rollouts == "auto"
    plain = load.stored_format(loaded.ref.base or loaded.ref) == "plain"
    usable = gpu and plain and find_spec("vllm")
    if options.rollouts == "transformers" or (auto and not usable):
        return "transformers", planned
    *others, estimate = planned.estimates

    def changed(**parts: Any) -> memory.Memory:
        return replace(planned, estimates=[*others, replace(estimate, generation=0, **parts)])

    if options.rollouts == "vllm-server":
        return options.rollouts, changed()
    config = make_config()
    width = memory.forward_width(loaded.precision, loaded.device, loaded.model)
    groups = options.prompts * options.steps_per_generation / processes
    by_adapter = sends_adapter(options, loaded.ref, width, sleeps=config.vllm_enable_sleep_mode)
    weights = estimate.weights if in_4_bits(by_adapter, loaded) else loaded.model.num_parameters() * width
    fixed = weights // config.vllm_tensor_parallel_size + ENGINE + (width * planned.trainable if by_adapter else 0)
    least, engine = fixed + round(estimate.cache / max(1, groups)), fixed + estimate.cache
    left = changed().spare
    if gpu and left is not None:  # of another GPU the memory is not known
        if auto and left < least:
            return "transformers", planned
        engine = max(least, min(engine, int(left)))
        if any(item.partition("=")[0] == "vllm_gpu_memory_utilization" for item in options.trl):
            engine = int(config.vllm_gpu_memory_utilization * (planned.available or 0))
    return "vllm", changed(engine=engine)


def sends_adapter(options: TrainOptions, ref: reference.ModelRef, width: int, *, sleeps: bool) -> bool:
    """Return True if vLLM computes with its own base and the adapter of a run, which alone is sent for each round.

    Its LoRA has 16 bits and one rank and scale. In fp32 a merged adapter loses nothing, sleep mode discards the base,
    and a server reads no file of this machine.

    Args:
        ref: the model or adapter that is trained.
        width: bytes of a number in the engine.
        sleeps: it is in sleep mode during the loss, by ``--trl``.
    """
    lora_only = options.tune == "lora" and options.rollouts != "vllm-server" and not sleeps
    rank, uniform = options.lora_r, True
    if ref.base is not None:
        settings = model_files.adapter_config(reference.local_path(ref))
        rank, uniform = settings.get("r", 8), lora.is_uniform(settings)
    return lora_only and width == 2 and uniform and rank <= LORA_RANKS[-1]


def in_4_bits(by_adapter: bool, loaded: load.Loaded) -> bool:
    """Return True if the engine of *loaded* has NF4 weights, the policy's own, which only an adapter leaves as is."""
    nf4 = loaded.precision == "nf4" and loaded.device.startswith("cuda")
    return by_adapter and nf4 and find_spec("vllm_bnb_plugin") is not None


def resolve(rollouts: str, options: TrainOptions, model: Any) -> str:
    """The engine *rollouts* of :func:`plan`, or for "auto" another one where it cannot hold the adapter of *model*."""
    if rollouts == "transformers" or not any(map(lora.is_special, model.modules())):
        return rollouts
    if options.rollouts == "auto":
        return "transformers"
    raise UsageError(f"--rollouts {rollouts} supports LoRA without variants and biases; use --rollouts transformers.")


def use_engine(
    trainer: Any,
    rollouts: str,
    loaded: load.Loaded,
    length: int,
    planned: memory.Memory,
    on_warning: Callable[[str], None],
) -> None:
    """Let vLLM complete the prompts of *trainer*, of *length* tokens with their completions.

    Where it does not start, and nobody asked for it, transformers does: not every architecture has LoRA in vLLM.
    """
    from countdown_rl.training.trl_internals import PolicyEngine

    config, share, estimate = trainer.args, trainer.args.vllm_gpu_memory_utilization, planned.estimates[0]
    if planned.available and estimate.engine:
        share = round(estimate.engine / planned.available, 3)
    same = ("tensor_parallel_size", "enable_sleep_mode", "model_impl", "group_port")
    server = ("server_base_url", "server_host", "server_port", "server_timeout")
    sampling = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_completion_length")
    path = reference.local_path(loaded.ref.base or loaded.ref)  # the unquantized weights that the engine starts from
    model_files.check_files(path)
    stop = trainer.rollouts.stop
    dtype = load.compute_dtype(loaded.precision, torch.device(loaded.device), loaded.model)
    by_adapter = sends_adapter(trainer.options, loaded.ref, dtype.itemsize, sleeps=config.vllm_enable_sleep_mode)
    if not by_adapter and dtype.itemsize == 2 and trainer.options.tune == "lora":
        on_warning(
            f"--rollouts {rollouts} gets this adapter merged into bf16 weights, which rounds small changes away."
        )
    try:
        engine = PolicyEngine(
            str(path),
            dtype,
            by_adapter=by_adapter,
            same_base=loaded.storage == "plain" or in_4_bits(by_adapter, loaded),
            in_4_bits=in_4_bits(by_adapter, loaded),
            gpu_memory_utilization=share,
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server" if rollouts == "vllm-server" else "colocate",
            max_model_length=length,
            max_num_seqs=config.per_device_train_batch_size
            * config.steps_per_generation
            * config.vllm_tensor_parallel_size,
            trust_remote_code=config.trust_remote_code,
            generation_kwargs={
                "stop": [stop.text],
                "include_stop_str_in_output": True,
                "stop_token_ids": sorted(stop.ids),
            }
            | (config.generation_kwargs or {}),
            **{name: getattr(config, f"vllm_{name}") for name in (*same, *server)},
            **{name: getattr(config, name) for name in sampling},
        )
    except (ValueError, RuntimeError, KeyError) as error:  # the last where a model cannot be sent over LoRA's layers
        cause = (
            f"vLLM does not start: {first_line(error).rstrip('.')}; for another share of the GPU than {share:g} give "
            "--trl vllm_gpu_memory_utilization"
        )
        if trainer.options.rollouts == "auto":
            on_warning(f"{cause}; transformers now completes the prompts, which takes longer.")
            return
        raise ModelError(f"{cause}, or leave vLLM out by --rollouts transformers.") from error
    trainer.use_engine(engine)
    if rollouts == "vllm-server" and processes.is_main() and not engine.server_reports_drawn_probabilities():
        on_warning(
            "the vLLM server reports log-probabilities before temperature and top-p, which biases the importance "
            "sampling correction; start it with --logprobs-mode processed_logprobs."
        )

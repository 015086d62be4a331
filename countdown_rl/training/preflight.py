"""Checks before a training run: options, model, data, prompts and memory, without loading weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import InputError, ModelError, UsageError
from countdown_rl.inference import generate
from countdown_rl.models import chat_template, files, load, reference, shape
from countdown_rl.runlog import trackers
from countdown_rl.tasks.task import Row
from countdown_rl.training import memory, rewards, trl_config
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import in_turn
from countdown_rl.training.memory import Estimate

#: The memory that a run should find: its estimate times the first, and the second in bytes for CUDA and fragments.
_MARGIN_SHARE, _MARGIN = 1.1, 2**30


@dataclass(frozen=True)
class Preflight:
    """A run that can start.

    Attributes:
        longest_prompt: in tokens.
        estimates: for the device of this machine and, where that is another one, for CUDA.
        device_memory: bytes that the device of this machine has, where that is known.
    """

    model: str
    architecture: str
    parameters: int
    trainable: int
    rows: int
    longest_prompt: int
    estimates: list[Estimate]
    device_memory: int | None

    @property
    def fits(self) -> bool | None:
        """True if the run fits the memory of this machine with a margin; None where that is not known."""
        needed = _MARGIN_SHARE * self.estimates[0].peak + _MARGIN
        return None if self.device_memory is None else needed <= self.device_memory

    def as_dict(self) -> dict[str, Any]:
        """All values, for ``--json``."""
        values = {name: value for name, value in vars(self).items() if name != "estimates"}
        return values | {"fits": self.fits, "memory": [estimate.as_dict() for estimate in self.estimates]}


def check(
    options: TrainOptions,
    *,
    model: str,
    data: Path,
    out: Path,
    checkpoints: Path,
    log: Path | None = None,
    revision: str | None = None,
    count: int = 1,
    sharded: bool = False,
    trust_remote_code: bool = False,
) -> Preflight:
    """Check the arguments of :func:`countdown_rl.training.train.train`; nothing is trained or written.

    Of a model on the Hub everything but the weights is downloaded.

    Args:
        count: processes that will train.
        sharded: they will share the weights.

    Raises:
        CountdownError: the run cannot start.
    """
    options.micro_batches(count)
    weights = rewards.parse(options.reward)
    check_paths(options, out=out, checkpoints=checkpoints, log=log)
    rows, _ = read_rows(data)
    rewards.check(weights, rows[:2])
    validation = read_validation(data, options) if options.eval_every else []
    load.silence_libraries()
    from countdown_rl.training import rollouts  # imports TRL, and with it bitsandbytes, which logs

    ref = reference.without_weights(reference.resolve(model, revision=revision))
    check_model(ref, options, sharded=sharded)
    trackers.check(options.report_to)
    rollouts.check(options, ref, sharded=sharded)
    base = ref.base or ref
    config = shape.read_config(reference.files(base), trust_remote_code=trust_remote_code)
    skeleton = shape.skeleton(config, trust_remote_code=trust_remote_code)
    device = load.device_name("auto").partition(":")[0]
    quantized = load.stored_format(base) == "bitsandbytes-4bit"
    precision = "nf4" if options.precision == "auto" and quantized else options.precision
    loaded = load.Loaded(
        skeleton, load.load_tokenizer(ref, trust_remote_code=trust_remote_code), ref, precision, device, "skeleton"
    )
    longest = check_prompts(loaded, rows, options, validation)
    trl_config.grpo_config(options, loaded, list(weights.values()), checkpoints)  # TRL refuses some values
    estimates = [
        estimate(ref, options, kind, precision, longest, count, skeleton=skeleton)
        for kind in dict.fromkeys((device, "cuda"))
    ]
    total = skeleton.num_parameters()
    trained = memory.lora_parameters(skeleton, _rank(ref, options)) if options.tune == "lora" else total
    return Preflight(
        model=ref.reference,
        architecture=type(skeleton).__name__,
        parameters=total + (trained if options.tune == "lora" else 0),
        trainable=trained,
        rows=len(rows),
        longest_prompt=longest,
        estimates=estimates,
        device_memory=_device_memory(device),
    )


def check_paths(options: TrainOptions, *, out: Path, checkpoints: Path, log: Path | None) -> None:
    """Check that a run can write to these paths.

    Raises:
        ArtifactError: *out* or *checkpoints* holds what other programs wrote, or *out* cannot be written.
        UsageError: *checkpoints* or *log* lies in *out*.
    """
    for flag, path in (("--checkpoints", checkpoints), ("--log", log)):
        if path is not None and Path(path).resolve().is_relative_to(Path(out).resolve()):
            raise UsageError(f"{flag} {path} lies in --out {out}, which the run replaces; give a path outside of it.")
    artifacts.check_writable(out, options.kind)  # later: the lock of *checkpoints* would be a file in *out*
    Checkpoints(Path(checkpoints), {}).check()


def check_memory(loaded: load.Loaded, options: TrainOptions, processes: int) -> None:
    """Check that the completions of a step can be sampled at all: one token of each, with its logits.

    Raises:
        UsageError: even that exceeds the memory of this machine.
    """
    dimensions = shape.ModelShape.of(loaded.model.config)
    completions = options.prompts * options.num_generations * options.steps_per_generation // processes
    cache = 4 * dimensions.num_layers * dimensions.num_kv_heads * dimensions.head_dim  # keys and values in bf16
    needed = completions * (4 * dimensions.vocab_size + cache)
    available = _device_memory(loaded.device.partition(":")[0])
    if available is not None and needed > available:
        raise UsageError(
            f"{completions:,} completions at a time take over {needed / 1e9:,.0f} GB and this machine has "
            f"{available / 1e9:,.0f} GB; lower --num-generations, --prompts or --steps-per-generation."
        )


def read_rows(data: Path) -> tuple[list[Row], dict[str, Any]]:
    """The training rows at *data* (a data artifact or one JSONL file), and the manifest entry of that input."""
    data = Path(data)
    if data.is_file():
        return jsonl.read_rows(data), artifacts.file_input(data)
    manifest = artifacts.read(data, "data")
    return jsonl.read_rows(data / "train.jsonl"), manifest.as_input()


def check_model(ref: reference.ModelRef, options: TrainOptions, *, sharded: bool) -> None:
    """Check that *ref* can be trained with *options*.

    Raises:
        UsageError: it cannot.
    """
    if options.tune == "all" and ref.base is not None:
        raise UsageError(f"--tune all trains a whole model, and {ref.source} is an adapter; merge it first.")
    if options.tune == "all" and options.beta and load.stored_format(ref) == "gguf":
        raise UsageError(
            f"--beta with --tune all needs the initial model a second time, and TRL does not read GGUF files such as "
            f"{ref.source}; leave --beta out, or give the model as safetensors."
        )
    if sharded:
        stored = options.precision == "auto" and load.stored_format(ref.base or ref) == "bitsandbytes-4bit"
        if options.precision == "nf4" or stored:
            raise UsageError("FSDP and ZeRO-3 cannot shard 4-bit weights; add --precision bf16, or use --launch ddp.")


def read_validation(data: Path, options: TrainOptions) -> list[Row]:
    """The rows of the validation split that are evaluated during training.

    Raises:
        UsageError: *data* has no such split.
    """
    if Path(data).is_file():
        raise UsageError(f"--eval-every needs a data directory with a validation split, and {data} is one file.")
    return jsonl.read_rows(Path(data) / "valid.jsonl")[: options.eval_size]


def check_prompts(
    loaded: load.Loaded, rows: Sequence[Row], options: TrainOptions, validation: Sequence[Row] = ()
) -> int:
    """Check the length of all prompts that the run will use.

    Returns:
        The tokens of the longest one.

    Raises:
        InputError: a prompt is longer than ``max_prompt_length``; the row is named.
        ModelError: prompt and completion together exceed the context length of the model.
    """
    used: Sequence[int] = range(len(rows))  # a curriculum may draw any of them
    if not options.curriculum:
        rounds = -(-options.max_steps // options.round_steps)
        count = rounds * options.steps_per_generation * options.prompts
        used = sorted(set(islice(in_turn(len(rows), options.seed), min(count, len(rows)))))
    drawn = [*(rows[index] for index in used), *validation]
    longest = 0
    for start in range(0, len(drawn), 1024):
        part = drawn[start : start + 1024]
        prompts = [chat_template.render(loaded.tokenizer, row.messages()) for row in part]
        for row, ids in zip(part, loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"], strict=True):
            longest = max(longest, len(ids))
            if len(ids) > options.max_prompt_length:
                raise InputError(
                    f"the prompt of row {row.get('id', '?')} has {len(ids)} tokens and --max-prompt-length "
                    f"is {options.max_prompt_length}; raise it, or remove that row."
                )
    context_length = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if context_length and longest + options.max_completion_length > context_length:
        raise ModelError(
            f"the model reads {context_length} tokens, but the longest prompt ({longest}) and "
            f"--max-completion-length ({options.max_completion_length}) need "
            f"{longest + options.max_completion_length}; lower --max-completion-length."
        )
    return longest


def estimate(
    ref: reference.ModelRef,
    options: TrainOptions,
    device: str,
    precision: str,
    longest: int,
    count: int,
    *,
    skeleton: Any = None,
    trust_remote_code: bool = False,
) -> Estimate:
    """The memory of each of *count* processes on *device* ("cuda", "mps" or "cpu"), for prompts of up to *longest*."""
    if skeleton is None:
        config = shape.read_config(reference.files(ref.base or ref), trust_remote_code=trust_remote_code)
        skeleton = shape.skeleton(config, trust_remote_code=trust_remote_code)
    return memory.estimate(
        skeleton,
        options,
        device=device,
        nf4=device == "cuda" and precision == "nf4",
        width=_width(precision, device, skeleton),
        prompt=longest,
        rank=_rank(ref, options),
        processes=count,
    )


def _rank(ref: reference.ModelRef, options: TrainOptions) -> int:
    """The rank of the adapter: of the one that is trained further, or of a new one."""
    return options.lora_r if ref.base is None else int(files.adapter_config(reference.files(ref)).get("r", 8))


def _width(precision: str, device: str, skeleton: Any) -> int:
    """Bytes per number in the forward pass on *device*; a CUDA GPU that is not in this machine has bf16."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return 4 if precision == "fp32" else 2
    return int(load.compute_dtype(precision, torch.device(device), skeleton).itemsize)


def _device_memory(device: str) -> int | None:
    """Bytes of memory that *device* has in total."""
    import torch

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return generate.main_memory()

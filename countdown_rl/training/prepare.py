"""Preparation of a training run: all that can be checked without loading weights.

``train --check`` prints the result, and ``train`` starts from it.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.models import chat_template, load, reference, shape
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import journal, memory, rewards, shared_prompts, trackers, trl_config, tuning, vllm
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.config import TrainOptions
from countdown_rl.training.curriculum import in_turn
from countdown_rl.training.log import StepRow


@dataclass(frozen=True, kw_only=True)
class TrainRun(tuning.Run):
    """A run of ``train``.

    Attributes:
        data: a data artifact, of which ``train.jsonl`` and for evaluations ``valid.jsonl`` are used, or one JSONL file.
    """

    data: Path


@dataclass(frozen=True)
class PreparedTraining:
    """A run that can start.

    Attributes:
        weights: of the rewards, by name.
        validation: the rows that are evaluated during training.
        inputs: entries of the manifest.
        resume: the checkpoint to continue from.
        longest_prompt: in tokens.
        bytes_per_token: least memory that one token of a completion takes.
        rollouts: the engine, "transformers", "vllm" or "vllm-server".
    """

    run: TrainRun
    options: TrainOptions
    ref: reference.ModelRef
    weights: dict[str, float]
    rows: list[Row]
    validation: list[Row]
    inputs: dict[str, Any]
    store: Checkpoints
    resume: Path | None
    architecture: str
    parameters: int
    longest_prompt: int
    bytes_per_token: int
    rollouts: str
    memory: memory.Memory

    def as_dict(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        values = {name: getattr(self, name) for name in ("architecture", "parameters", "longest_prompt", "rollouts")}
        return {"model": self.ref.portable_source, "rows": len(self.rows)} | values | self.memory.as_dict()

    def check_memory(self) -> None:
        """Check that the completions of a step can be sampled at all: one token of each, with its logits."""
        options = self.options
        completions = options.prompts * options.num_generations * options.steps_per_generation // self.run.processes
        needed, available = completions * self.bytes_per_token, self.memory.available
        if self.rollouts == "transformers" and available is not None and needed > available:
            raise UsageError(
                f"{completions:,} completions at a time take over {needed / 1e9:,.0f} GB and this machine has "
                f"{available / 1e9:,.0f} GB; lower --num-generations, --prompts or --steps-per-generation."
            )


def prepare(run: TrainRun, options: TrainOptions, on_note: Callable[[str], None] = lambda _: None) -> PreparedTraining:
    """Check everything that *run* needs before its weights are loaded; nothing is written.

    Of a model on the Hub all files but the weights are downloaded. *on_note* is called with remarks on the data.
    """
    processes.run_alone()
    options.micro_batches(run.processes)
    weights = rewards.parse(options.reward)
    Checkpoints(run.checkpoints, {}).check_paths(run.out, options.kind, run.log)
    one_file = run.data.is_file()
    data_input = artifacts.file_input(run.data) if one_file else artifacts.read(run.data, "data").as_input()
    rows = jsonl.read_rows(run.data if one_file else run.data / "train.jsonl", on_note)
    known, rows = len(rows), [row for row in rows if not one_file or row.get("split") not in ("valid", "test")]
    if len(rows) < known:
        on_note(f"{run.data}: left out {known - len(rows):,} rows of a test or validation split.")
    if not rows:
        raise InputError(f"{run.data} has no rows for training; those of a test or validation split are left out.")
    rewards.check_rewards(weights, rows[:2])
    validation = tuning.read_validation(run.data, options)
    load.silence_libraries()
    ref = tuning.resolve(run)
    light = reference.without_weights(ref)
    check_model(light, options, sharded=run.sharded)
    trackers.check_trackers(options.report_to)
    inputs = {"model": ref.as_input(), "data": data_input}
    store = tuning.checkpoints(run, options, inputs)
    resume = None if run.restart else store.to_resume()
    journal.check_log(run.log, StepRow, resumes=resume is not None)

    config = shape.read_config(reference.local_path(light.base or light), trust_remote_code=run.trust_remote_code)
    skeleton = load.skeleton(light.base or light)
    adapted = tuning.check_adapter(light, copy.deepcopy(skeleton), options)
    tokenizer = load.load_tokenizer(light)
    device = load.device_name("auto").partition(":")[0]
    dimensions = shape.ModelShape.of(config)
    longest = check_prompts(tokenizer, dimensions.context_length, rows, options, validation, adapted)
    if options.share_prompts:
        shared_prompts.check(skeleton)
    loaded = load.Loaded(
        skeleton, tokenizer, light, load.trained_precision(light, options.precision), device, "skeleton"
    )
    engine, planned = plan(run, options, loaded, list(weights.values()), longest, adapted)
    return PreparedTraining(
        run=run,
        options=options,
        ref=ref,
        weights=weights,
        rows=rows,
        validation=validation,
        inputs=inputs,
        store=store,
        resume=resume,
        architecture=type(skeleton).__name__,
        parameters=skeleton.num_parameters() + (planned.trainable if options.tune == "lora" else 0),
        longest_prompt=longest,
        bytes_per_token=4 * dimensions.vocab_size
        + 4 * dimensions.num_layers * dimensions.num_kv_heads * dimensions.head_dim,  # keys and values in bf16
        rollouts=engine,
        memory=planned,
    )


def plan(
    run: TrainRun, options: TrainOptions, loaded: load.Loaded, weights: Sequence[float], longest: int, adapted: Any
) -> tuple[str, memory.Memory]:
    """The engine of *run*, and its memory.

    Args:
        loaded: a skeleton.
        weights: of the rewards.
        longest: tokens of the longest prompt.
        adapted: the skeleton with the adapter that is trained.
    """
    grpo_config = cache(partial(trl_config.grpo_config, options, loaded, weights, run.checkpoints))
    completions = options.prompts * options.num_generations * options.steps_per_generation
    planned = memory.plan(
        loaded.model,
        loaded.ref,
        options,
        shards=run.processes if run.sharded or run.zero else 1,
        zero=run.zero,
        optimiser=grpo_config().optim if options.trl else "",  # TRL's default has no 8 bits, and takes seconds to load
        length=longest + options.max_completion_length,
        scored=options.max_completion_length,
        sequences=completions // run.processes,
        reference=bool(options.beta),
    )
    return vllm.plan(options, loaded, adapted, grpo_config, planned)


def check_model(ref: reference.ModelRef, options: TrainOptions, *, sharded: bool) -> None:
    """Check that *ref* can be trained with *options*."""
    tuning.check_model(ref, options, sharded=sharded)
    if options.tune == "all" and options.beta and load.stored_format(ref) == "gguf":
        raise UsageError(
            f"--beta with --tune all needs the initial model a second time, and TRL does not read GGUF files such as "
            f"{ref.source}; leave --beta out, or give the model as safetensors."
        )


def check_prompts(
    tokenizer: Any,
    context_length: int | None,
    rows: Sequence[Row],
    options: TrainOptions,
    validation: Sequence[Row] = (),
    model: Any = None,
) -> int:
    """Check the length of all prompts that the run will use, and that *model*, a skeleton, has their tokens.

    Returns:
        The tokens of the longest one.

    Raises:
        InputError: a prompt is longer than ``max_prompt_length``; the row is named.
        ModelError: prompt and completion together exceed the context length of the model.
    """
    used: Sequence[int] = range(len(rows))
    if not options.curriculum and not options.dynamic_sampling:  # which may draw any of them
        rounds = -(-options.max_steps // options.round_steps)
        count = rounds * options.steps_per_generation * options.prompts
        used = sorted(set(islice(in_turn(len(rows), options.seed), min(count, len(rows)))))
    drawn = [*(rows[index] for index in used), *validation]
    longest = 0
    for start in range(0, len(drawn), 1024):
        part = drawn[start : start + 1024]
        prompts = chat_template.encode(tokenizer, (row.messages() for row in part))
        if model is not None:
            shape.check_tokens(model, prompts, tokenizer.name_or_path)
        for row, ids in zip(part, prompts, strict=True):
            longest = max(longest, len(ids))
            if len(ids) > options.max_prompt_length:
                raise InputError(
                    f"the prompt of row {row.get('id', '?')} has {len(ids)} tokens and --max-prompt-length "
                    f"is {options.max_prompt_length}; raise it, or remove that row."
                )
    shape.check_context(context_length, longest, options.max_completion_length, "--max-completion-length")
    return longest

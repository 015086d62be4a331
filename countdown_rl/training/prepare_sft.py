"""Preparation of supervised fine-tuning: all that can be checked without loading weights."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.models import chat_template, load, reference, shape
from countdown_rl.tasks.task import Row
from countdown_rl.training import demonstrations, journal, memory, trackers, tuning
from countdown_rl.training.checkpoints import Checkpoints
from countdown_rl.training.demonstrations import Demonstrations
from countdown_rl.training.log import SftRow
from countdown_rl.training.sft_config import SftOptions


@dataclass(frozen=True, kw_only=True)
class SftRun(tuning.Run):
    """A run of ``sft``.

    Attributes:
        files: demonstrations.
        data: a data artifact: its test puzzles are kept out, its validation puzzles evaluated.
    """

    files: Sequence[Path]
    data: Path | None = None


@dataclass(frozen=True)
class PreparedSft:
    """A run that can start.

    Attributes:
        examples: token ids and labels, see :func:`demonstrations.tokenize`; packed where that was asked for.
        prompt: the messages of the first demonstration of a task's row.
        validation: the rows that are evaluated during training.
        resume: the checkpoint to continue from.
        longest: tokens of the longest example.
    """

    run: SftRun
    options: SftOptions
    ref: reference.ModelRef
    demonstrations: Demonstrations
    examples: Any
    validation: list[Row]
    inputs: dict[str, Any]
    store: Checkpoints
    resume: Path | None
    parameters: int
    learning_rate: float
    max_steps: int
    longest: int
    memory: memory.Memory

    def as_dict(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        names = ("parameters", "learning_rate", "max_steps", "longest")
        values = {name: getattr(self, name) for name in names}
        facts = {"model": self.ref.portable_source, "demonstrations": self.demonstrations.facts()}
        return facts | values | self.memory.as_dict()


def prepare(run: SftRun, options: SftOptions, on_row: Callable[[int], None] = lambda _: None) -> PreparedSft:
    """Check everything that *run* needs before its weights are loaded; nothing is written."""
    processes.run_alone()
    options.micro_batches(run.processes)
    if options.eval_every and run.data is None:
        raise UsageError("--eval-every evaluates the validation puzzles of --data; give that too.")
    if options.eval_every and run.sharded:
        raise UsageError("--eval-every needs all weights in each process; use --launch ddp or zero2.")
    Checkpoints(run.checkpoints, {}).check_paths(run.out, options.kind, run.log)
    journal.check_log(run.log, SftRow)
    ref = tuning.resolve(run)
    light = reference.without_weights(ref)
    tuning.check_model(light, options, sharded=run.sharded)
    trackers.check_trackers(options.report_to)
    load.silence_libraries()
    known, inputs = demonstrations.read(options, run.files, run.data, on_row)
    validation = tuning.read_validation(run.data, options) if run.data else []
    config = shape.read_config(reference.local_path(light.base or light), trust_remote_code=run.trust_remote_code)
    skeleton = load.skeleton(light.base or light)
    if options.packing:
        check_packing(config, trust_remote_code=run.trust_remote_code)
    adapted = tuning.check_adapter(light, copy.deepcopy(skeleton), options)
    parameters = skeleton.num_parameters()
    tokenizer = load.load_tokenizer(light)
    examples = dataset(demonstrations.tokenize(known, tokenizer, options.max_length), options)
    asked = chat_template.encode(tokenizer, (row.messages() for row in validation))
    shape.check_tokens(adapted, [*examples["input_ids"], *asked], run.model)
    context = shape.ModelShape.of(config).context_length
    if asked:
        shape.check_context(context, max(map(len, asked)), options.max_completion_length, "--max-completion-length")
    longest = max(map(len, examples["input_ids"]))
    if context and longest > context:
        raise UsageError(f"the model reads {context} tokens, and a demonstration has {longest}; lower --max-length.")
    inputs = {"model": ref.as_input()} | inputs
    store = tuning.checkpoints(run, options, inputs)
    steps_per_epoch = ceil(len(examples) / options.batch_size)
    return PreparedSft(
        run=run,
        options=options,
        ref=ref,
        demonstrations=known,
        examples=examples,
        validation=validation,
        inputs=inputs,
        store=store,
        resume=None if run.restart else store.to_resume(),
        parameters=parameters,
        learning_rate=options.rate(parameters),
        max_steps=options.max_steps or ceil(options.num_train_epochs * steps_per_epoch),
        longest=longest,
        memory=memory.plan(
            skeleton,
            light,
            options,
            shards=run.processes if run.sharded or run.zero else 1,
            zero=run.zero,
            length=longest,
            scored=longest,
        ),
    )


def check_packing(config: Any, *, trust_remote_code: bool = False) -> None:
    """Check that packed samples do not see each other in a model of *config*: two layers with random weights decide.

    Raises:
        UsageError: they do, or the architecture cannot read packed samples on this machine.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    samples = list(range(1, 13)), list(range(20, 30))
    rows = [{"input_ids": ids, "labels": ids} for ids in samples]
    device = load.device_name("auto")
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(
                _shallow(config), dtype=torch.float32, trust_remote_code=trust_remote_code
            )
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
            model.to(device).eval()
            alone = [model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0] for ids in samples]
            batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            inputs = {
                name: getattr(value, "to", lambda _, value=value: value)(device) for name, value in inputs.items()
            }
            packed = model(**inputs, use_cache=False).logits[0]
    except Exception as error:  # each architecture has its own
        raise UsageError(f"{config.model_type} cannot be trained with --packing: {first_line(error)}") from error
    expected = torch.cat(alone)
    if not (packed - expected).abs().max() < 1e-2 * expected.std():
        raise UsageError(
            f"packed samples would see each other in {config.model_type}: its logits differ from those of each sample "
            "alone; leave --packing out."
        )


def _shallow(config: Any) -> Any:
    """*config* with two layers and 64 tokens."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    layers, depth = text.num_hidden_layers, min(2, text.num_hidden_layers)
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:  # one value a layer
            setattr(text, name, value[:depth])
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = depth, 64, 0
    return shallow


def dataset(examples: list[dict[str, list[int]]], options: SftOptions) -> Any:
    """The data set of *examples*, packed where *options* say so."""
    import datasets
    from trl import pack_dataset

    rows = datasets.Dataset.from_list(examples)
    return pack_dataset(rows.shuffle(seed=options.seed), options.max_length) if options.packing else rows

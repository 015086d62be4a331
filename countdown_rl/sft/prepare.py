"""Preparation of supervised fine-tuning: all that can be checked without loading weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from countdown_rl import processes
from countdown_rl.errors import UsageError
from countdown_rl.models import load, reference, shape
from countdown_rl.runlog import journal, trackers
from countdown_rl.runlog.checkpoints import Checkpoints
from countdown_rl.runlog.log import SftRow
from countdown_rl.sft import demonstrations, memory, tuning
from countdown_rl.sft.config import SftOptions
from countdown_rl.sft.demonstrations import Demonstrations
from countdown_rl.tasks.task import Row


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
    skeleton = shape.skeleton(config, trust_remote_code=run.trust_remote_code)
    adapted = tuning.check_adapter(light, shape.skeleton(config, trust_remote_code=run.trust_remote_code), options)
    parameters = skeleton.num_parameters()
    tokenizer = load.load_tokenizer(light)
    examples = dataset(demonstrations.tokenize(known, tokenizer, options.max_length), options)
    shape.check_tokens(adapted, examples["input_ids"], run.model)
    context = shape.ModelShape.of(config).context_length
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


def dataset(examples: list[dict[str, list[int]]], options: SftOptions) -> Any:
    """The data set of *examples*, packed where *options* say so."""
    import datasets
    from trl import pack_dataset

    rows = datasets.Dataset.from_list(examples)
    return pack_dataset(rows.shuffle(seed=options.seed), options.max_length) if options.packing else rows

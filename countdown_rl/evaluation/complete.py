"""Completions of rows by a model or a server, in batches.

An interrupted run resumes after its last finished batch.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path

from countdown_rl.core import processes
from countdown_rl.core.identity import Identity
from countdown_rl.core.manifest import installed_versions
from countdown_rl.core.types import Record
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.inference import engines
from countdown_rl.inference.engine import Completion, Engine, batches
from countdown_rl.inference.sampling import Decoding
from countdown_rl.models import chat_template, load
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks.task import Row

#: Seconds of a batch after which its tokens are counted.
SLOW = 5

#: Called with the numbers of finished and of all completions, and in a slow batch with its progress
#: in words. The share solved so far would mislead: batches of short prompts, which are easier
#: puzzles, come first.
OnBatch = Callable[..., None]


def load_engine(
    ref: ModelRef, options: EvalOptions, rows: int, on_warning: Callable[[str], None]
) -> Engine:
    """Load the model *ref* on this machine, to complete so many *rows*."""
    if warning := load.unused_gpu():
        on_warning(warning)
    import torch

    torch.set_num_threads(processes.cpu_threads())
    kind = engines.choose_engine(ref, options)
    engine: Engine = kind.load(ref, Decoding.of(options), options)
    if note := chat_template.note(engine.tokenizer):
        on_warning(note)
    return engine


def complete(
    engine: Engine,
    rows: Sequence[Row],
    options: EvalOptions,
    inputs: Record,
    unfinished: Path,
    *,
    on_batch: OnBatch | None = None,
) -> tuple[Sequence[Row], list[Completion]]:
    """Complete each of *rows* ``options.samples`` times, in batches of prompts of similar length.

    Processes of a launcher complete every so many-th batch each, and return the completions of all.

    Args:
        engine: the engine, whose settings are a part of the run's identity.
        rows: the rows.
        options: the decoding, and the size of a batch.
        inputs: entries of a manifest that decide the completions.
        unfinished: the file of the finished batches of a run that was interrupted.
        on_batch: called after every batch and within slow ones.

    Returns:
        The rows as *engine* completed them, and the completions, those of a row side by side.
    """
    limit = options.max_new_tokens
    rows, prompts = engine.prompts(rows, limit)
    machine = {
        "versions": installed_versions(engine.libraries),
        "engine": {
            "name": engine.name,
            "storage": engine.storage,
            "precision": engine.precision,
            "device": engine.device.partition(":")[0],
            "batch_size": options.batch_size,
            "prompts": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
        },
    }
    progress = Progress(unfinished, Identity.of(options.recorded, inputs, **machine))
    # Completion i belongs to row i // samples; those of one row share a batch, which reads its
    # prompt once.
    owners = [row for row in range(len(rows)) for _ in range(options.samples)]
    completions: dict[int, Completion] = {}
    reported = 0.0

    count = processes.world_size()

    def capacity(length: int) -> int:
        size = options.batch_size or engine.max_rows(length + limit)
        if options.engine == "openai":  # a request each; the batch size is their number in flight
            size = 1
        return min(size, -(-len(owners) // count))

    def report(*within: str) -> None:
        nonlocal reported
        reported = time.monotonic()
        if on_batch:
            on_batch(len(completions), len(owners), *within)

    def on_step(tokens: Sequence[int]) -> None:
        if time.monotonic() - reported >= SLOW:
            report(f"token {len(tokens):,} of up to {limit:,} in this batch")

    todo: list[list[int]] = []
    requests = []
    for number, batch in enumerate(batches([len(prompts[row]) for row in owners], capacity)):
        if finished := progress.batches.get(tuple(batch)):
            completions.update(zip(batch, finished, strict=True))
        elif number % count == processes.rank():
            todo.append(batch)
            requests.append((number, [prompts[owners[index]] for index in batch]))
    report()
    engine.on_step = on_step
    with closing(
        engine.complete_all(requests)
    ) as results:  # an exception cancels requests in flight
        for place, finished in results:
            progress.add(todo[place], finished)
            completions.update(zip(todo[place], finished, strict=True))
            report()
    if count > 1:
        completions = _of_all_processes(completions)
    in_order = [completions[index] for index in range(len(owners))]
    if engine.tokenizer is None:
        return rows, in_order
    texts = [engine.tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts]
    return rows, [
        completion.after(rows[i], texts[i]) for i, completion in zip(owners, in_order, strict=True)
    ]


def _of_all_processes(completions: dict[int, Completion]) -> dict[int, Completion]:
    """Return the *completions* of all launched processes, which communicate no more after this."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState(
        cpu=not torch.cuda.is_available(),
        timeout=timedelta(days=7),  # for the slowest process
    )
    gathered = gather_object(list(completions.items()))
    state.destroy_process_group()
    return dict(gathered)


class Progress:
    """Finished *batches* of an unfinished run, a line of the file *path* each.

    The first line is the *identity* of the run: everything that decides its completions. Batches of
    another run are dropped, and so is everything from a damaged line on.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._path = path
        self.batches: dict[tuple[int, ...], list[Completion]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            stream.seek(0)
            head, intact = stream.readline(), 0
            with suppress(ValueError):  # of no JSON
                if head.endswith(b"\n") and not identity.differences(json.loads(head)):
                    intact = len(head)
            while intact and (line := stream.readline()).endswith(b"\n"):
                indices, completions = json.loads(line)
                self.batches[tuple(indices)] = [Completion(*fields) for fields in completions]
                intact += len(line)
            stream.truncate(intact)
            if not intact:
                stream.write(json.dumps(identity.to_json()).encode() + b"\n")

    def add(self, indices: Sequence[int], completions: Sequence[Completion]) -> None:
        """Save a finished batch."""
        line = json.dumps(
            [list(indices), [astuple(completion) for completion in completions]], ensure_ascii=False
        )
        with self._path.open("ab") as stream:
            stream.write(line.encode() + b"\n")

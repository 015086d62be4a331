"""Training stage: GRPO on a LoRA adapter or on all weights, from artifacts to an ``adapter`` or ``model`` artifact.

A run that was killed resumes from its last checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from countdown_rl.core import processes
from countdown_rl.inference.generate import STOP
from countdown_rl.models import load
from countdown_rl.tasks.registry import task_of
from countdown_rl.training import rewards, trl_config, tuning
from countdown_rl.training.checkpoints import step_of
from countdown_rl.training.curriculum import Curriculum, in_turn
from countdown_rl.training.journal import Journal
from countdown_rl.training.log import StepRow
from countdown_rl.training.prepare import PreparedTraining

if TYPE_CHECKING:
    from countdown_rl.training.trainer import Trainer


def train(
    prepared: PreparedTraining,
    *,
    on_step: Callable[[StepRow], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> tuning.Result:
    """Train with GRPO; write an ``adapter`` artifact, or a ``model`` artifact of all weights.

    Args:
        prepared: from :func:`countdown_rl.training.prepare.prepare`.
        on_step: called after every optimiser step.
        on_note: called with remarks.
        on_warning: called once with each warning about the course of training.

    A signal other than Ctrl-C finishes the round and saves a checkpoint of it before it raises ``Terminated``.
    """
    import torch

    journal = Journal(prepared.run.log if processes.is_main() else None, prepared.options.max_steps)
    prepared.check_memory()
    loaded = tuning.begin(prepared, journal, on_note)
    trainer = _trainer(prepared, loaded, journal, on_step=on_step, on_warning=on_warning)
    longest = "--max-completion-length"
    if prepared.rollouts == "vllm" and trainer.use_vllm:  # else it did not start
        longest += " or --trl vllm_gpu_memory_utilization"
    tuning.run(trainer, prepared, journal, longest=longest)

    facts = _facts(trainer, prepared, loaded, journal)
    memory = None
    if loaded.device.startswith("cuda"):
        memory = {"peak": torch.cuda.max_memory_allocated(), "estimate": prepared.memory.estimates[-1].peak}
        peak, expected = (f"{count / 2**30:.1f} GiB" for count in memory.values())
        on_note(f"Peak memory of the GPU: {peak}, estimated {expected}.")
    result = tuning.finish(trainer, loaded, prepared, journal, facts, prompt=prepared.rows[0].messages())
    return replace(result, memory=memory)


def _trainer(
    prepared: PreparedTraining,
    loaded: load.Loaded,
    journal: Journal,
    *,
    on_step: Callable[[StepRow], None],
    on_warning: Callable[[str], None],
) -> "Trainer":
    from countdown_rl.inference.stop import Stop
    from countdown_rl.training import vllm
    from countdown_rl.training.callbacks import StepRecorder
    from countdown_rl.training.dynamic_sampling import DynamicRollouts
    from countdown_rl.training.rollouts import Rollouts
    from countdown_rl.training.trainer import Trainer
    from countdown_rl.training.validation import Validation

    options, rows = prepared.options, prepared.rows
    first_round = step_of(prepared.resume) // options.round_steps if prepared.resume else 0
    round_size = options.steps_per_generation * options.prompts
    curriculum = None
    if options.curriculum:
        curriculum = Curriculum(rows, size=round_size, seed=options.seed, evidence=journal.evidence)
        order = partial(curriculum.indices, first_round)
    else:
        order = partial(in_turn, len(rows), options.seed, first_round * round_size)
    recorder = StepRecorder(
        options, journal, prepared.store, curriculum, task_of(rows[0]), on_step=on_step, on_warning=on_warning
    )
    stop = Stop(loaded.tokenizer, loaded.model, STOP)
    weights = prepared.weights
    kind = partial(DynamicRollouts, seed=options.seed) if options.dynamic_sampling else Rollouts
    sampler = kind(rows, stop, recorder.on_graded)
    trainer = tuning.make_trainer(
        partial(Trainer, options, sampler),
        loaded,
        options,
        reward_funcs=rewards.functions(list(weights)),
        args=trl_config.grpo_config(options, loaded, list(weights.values()), prepared.store.directory),
        train_dataset=_prompts(order),
        callbacks=[recorder],
    )
    if prepared.rollouts != "transformers":
        length = prepared.longest_prompt + options.max_completion_length
        vllm.use_engine(trainer, prepared.rollouts, loaded, length, on_warning)
    if prepared.validation:
        complete = partial(sampler.complete_greedily, trainer=trainer)
        figures = recorder.figures
        trainer.add_callback(Validation(prepared, trainer, loaded, journal, complete=complete, figures=figures))
    return trainer


def _prompts(order: Callable[[], Iterator[int]]) -> Any:
    """The endless data set of prompts: the indices of rows, which the rollouts render."""
    import datasets

    return datasets.IterableDataset.from_generator(lambda: ({"prompt": index} for index in order()))


def _facts(trainer: "Trainer", prepared: PreparedTraining, loaded: load.Loaded, journal: Journal) -> dict[str, Any]:
    facts, last = tuning.facts(trainer, loaded, prepared.options, journal)
    return facts | {
        "command": "countdown-rl train",
        "task": prepared.rows[0].task,
        **({"layout": prepared.rows[0].layout} if prepared.run.data.is_file() else {}),  # else the data records it
        "reward_first": journal.rows[0].reward,
        "reward_last_tenth": last.reward,
        "correct_last_tenth": last.correct,
        "reward_best": max(row.reward for row in journal.rows),
    }

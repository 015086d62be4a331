"""GRPO on a LoRA adapter or on all weights: what ``train`` adds to a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import file_input
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.inference.generate import STOP, Completion
from countdown_rl.models import chat_template, load
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row
from countdown_rl.training import memory, weights
from countdown_rl.training.grpo import advantages, prompts, rewards, trl, vllm
from countdown_rl.training.options import RunArguments, TrainOptions
from countdown_rl.training.run import SILENT, Prepared, Reporter, Start
from countdown_rl.training.state import Journal, step_of

if TYPE_CHECKING:
    from countdown_rl.training.callbacks import CheckpointCallback
    from countdown_rl.training.grpo.trl_internals import RoundTrainer


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Prepared[TrainOptions]):
    """A run of ``train`` that can start."""

    row_type = StepRow
    less_memory = ("micro_batch", "prompts", "max_completion_length")
    summary = (
        "mean reward {reward_first:.3f} → {reward_last_tenth:.3f} (first step → last 10%), training accuracy "
        "{correct_last_tenth:.0%}."
    )

    rows: list[Row]
    rewards: Mapping[str, float]  # weights by name
    rollouts: str  # the engine: "transformers", "vllm" or "vllm-server"

    def make_trainer(
        self, loaded: load.Loaded, journal: Journal
    ) -> "tuple[RoundTrainer, CheckpointCallback]":
        import datasets

        from countdown_rl.inference.sampling import Stop
        from countdown_rl.training.callbacks import GrpoCallback
        from countdown_rl.training.grpo.rollouts import DynamicRollouts, Rollouts
        from countdown_rl.training.grpo.trainer import Trainer

        options, callback = self.options, GrpoCallback(self, journal)
        stop = Stop(loaded.tokenizer, loaded.model, STOP)
        sampling = (
            partial(DynamicRollouts, seed=options.seed) if options.dynamic_sampling else Rollouts
        )
        rollouts = sampling(self.rows, stop, self.rewards)
        rollouts.keeps_graphs = self.memory.keeps_caches
        first_round = step_of(self.resume) // options.round_steps if self.resume else 0
        observed: dict[str, Any] = {"outcomes": journal.outcomes, "states": journal.states}
        observed["warn"] = lambda text: journal.warn({"sampler": text}, self.reporter.warning)
        stream = prompts.Stream(prompts.chosen(options, self.rows, first_round, **observed))
        trainer = weights.make_trainer(
            partial(Trainer, options, rollouts, callback.on_round),
            loaded,
            options,
            reward_funcs=rewards.functions(list(self.rewards)),
            args=trl.grpo_config(
                options, loaded, list(self.rewards.values()), self.checkpoints.directory
            ),
            train_dataset=datasets.IterableDataset.from_generator(stream),
            callbacks=[callback],
        )
        if self.rollouts != "transformers":
            # A hint is a part of a completion, and stands before another one.
            length = self.longest + options.max_completion_length * (2 if options.sampler else 1)
            vllm.use_engine(trainer, self.rollouts, loaded, length, self.reporter.warning)
        return trainer, callback

    def length_options(self, trainer: "RoundTrainer") -> str:
        colocated = self.rollouts == "vllm" and trainer.use_vllm  # else it did not start
        share = " or --trl vllm_gpu_memory_utilization" if colocated else ""
        return "--max-completion-length" + share

    def validate(
        self, trainer: "RoundTrainer", loaded: load.Loaded, prompts: list[str]
    ) -> list[Completion]:
        return trainer.rollouts.validate(prompts, trainer, self.options.eval_temperature)

    def facts(self, rows: Sequence[StepRow], last: StepRow) -> dict[str, object]:
        row = self.rows[0]
        return {
            "task": row.task,
            **(
                {} if "lineage" in self.inputs["data"] else {"layout": row.layout}
            ),  # else the data records it
            "reward_first": rows[0].reward,
            "reward_last_tenth": last.reward,
            "correct_last_tenth": last.correct,
            "reward_best": max(step.reward for step in rows),
            "log_digest": training_log.digest(rows),
        }


def prepare(arguments: RunArguments, options: TrainOptions, reporter: Reporter = SILENT) -> GrpoRun:
    """Check everything that a run of ``train`` needs before its weights are loaded; nothing is written."""
    start = Start.begin(arguments, options, reporter)
    options, loaded = start.options, start.loaded
    rows, data = _read(arguments, reporter)
    reward_weights = rewards.parse(options.reward)
    rewards.check_rewards(reward_weights, rows[:2])
    next(prompts.chosen(options, rows)())
    advantages.advantage(options)  # of the user's own
    if options.loss:
        advantages.loss(options.loss)
    recognized = start.recognized(StepRow, {"data": data})
    _check_model(options, loaded)
    longest = start.longest_prompt(
        [*_used(options, rows), *start.validation], options.max_completion_length
    )
    config = partial(
        trl.grpo_config, options, loaded, list(reward_weights.values()), start.checkpoints.directory
    )
    warmup = config().get_warmup_steps(options.max_steps) if options.trl else 0  # checks its fields
    scored = options.max_completion_length
    sequences = options.step_size * options.steps_per_generation // start.processes
    sizes: dict[str, int] = {"length": longest + scored, "scored": scored, "sequences": sequences}
    sizes |= {"prompts": -(-sequences // options.num_generations), "reference": bool(options.beta)}

    def plan(options: TrainOptions) -> tuple[str, memory.Memory]:
        make_plan = partial(
            memory.plan, loaded.model, start.adapted, options, loaded.precision, **sizes
        )
        return vllm.plan(options, loaded, start.adapted, config, make_plan)

    options = memory.with_micro_batch(options, start.processes, plan)
    engine, planned = plan(options)
    reporter.note(f"Peak learning rate: {options.peak(options.max_steps, warmup):g}.")
    if options.curriculum:
        harder = f"the curriculum samples harder {task_of(rows[0]).noun}s; see --eval-every."
        reporter.note(f"Training accuracy may fall while the model improves, as {harder}")
    example = rows[0].messages()
    return GrpoRun(
        **vars(start) | recognized | {"options": options},
        rows=rows,
        rewards=reward_weights,
        rollouts=engine,
        max_steps=options.max_steps,
        longest=longest,
        first=loaded.tokenizer.decode(chat_template.encode(loaded.tokenizer, [example])[0]),
        example=example,
        details={"rows": len(rows), "longest_prompt": longest, "rollouts": engine},
        memory=planned,
    )


def _read(arguments: RunArguments, reporter: Reporter) -> tuple[list[Row], dict[str, object]]:
    """The rows to train on, and the entry of their file in the manifest."""
    data = arguments.data
    if data is None:
        raise UsageError("there is nothing to train on; give --data.")
    if not data.is_file():
        entry = artifacts.read(data, "data").as_input()
        return jsonl.read_rows(data / "train.jsonl", reporter.note), entry
    entry, rows = file_input(data), jsonl.read_rows(data, reporter.note)
    used = [
        row for row in rows if row.get("split") not in ("valid", "test") and not jsonl.in_suite(row)
    ]
    if held_out := len(rows) - len(used):
        reporter.note(
            f"{data}: left out {plural(held_out, 'row')} of a test or validation split or of a benchmark."
        )
    if not used:
        raise InputError(
            f"{data} has no rows for training beside those of held-out splits and of benchmarks."
        )
    return used, entry


def _check_model(options: TrainOptions, loaded: load.Loaded) -> None:
    """Check that the skeleton *loaded* can be trained with *options*."""
    if options.tune == "all" and options.beta and load.stored_format(loaded.ref) == "gguf":
        raise UsageError(
            f"with --tune all needs the initial model a second time, and TRL cannot load "
            f"{loaded.ref.source}; give it as safetensors, or leave --beta out.",
            option="beta",
        )


def _used(options: TrainOptions, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of *rows* that will be sampled, or all if that is not known."""
    if options.curriculum or options.sampler or options.dynamic_sampling:
        return rows
    count = (
        -(-options.max_steps // options.round_steps)
        * options.steps_per_generation
        * options.prompts
    )
    return [
        rows[index]
        for index in islice(prompts.in_turn(len(rows), options.seed), min(count, len(rows)))
    ]

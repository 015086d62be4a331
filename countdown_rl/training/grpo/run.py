"""GRPO on a LoRA adapter or on all weights: what ``train`` adds to a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
from trl import GRPOConfig

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, ModelError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import file_input
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.inference.engine import STOP, Completion
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import chat_template, load
from countdown_rl.tasks import jsonl, probe
from countdown_rl.tasks.task import Row
from countdown_rl.training import memory, trl_fields, weights
from countdown_rl.training.grpo import advantages, prompts, rewards, vllm
from countdown_rl.training.grpo.callback import GrpoCallback
from countdown_rl.training.grpo.engines import PolicyEngine, RolloutEngine
from countdown_rl.training.grpo.loss import OwnLoss
from countdown_rl.training.grpo.trainer import Trainer
from countdown_rl.training.options import RunArguments, TrainOptions
from countdown_rl.training.prepared import SILENT, Prepared, Reporter, Start
from countdown_rl.training.state import Journal, step_of

#: Options that are fields of ``GRPOConfig`` of the same name and meaning.
_OPTIONS = (
    *("max_steps", "num_generations", "scale_rewards", "beta", "temperature"),
    "max_completion_length",
)
#: Rows that are tried for a solution, as a proof takes time.
PROVED = 200


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Prepared[TrainOptions]):
    """A run of ``train`` that can start."""

    row_type = StepRow
    summary = (
        "mean reward {reward_first:.3f} → {reward_last_tenth:.3f} (first step → last 10%), "
        "training accuracy {correct_last_tenth:.0%}."
    )

    rows: list[Row]
    asked: Mapping[str, object]  # facts about the task and the prompts
    rewards: Mapping[str, float]  # weights by name

    def make_trainer(self, loaded: load.Loaded, journal: Journal) -> Trainer:
        options = self.options
        callback = GrpoCallback(self, journal)
        stop = Stop(loaded.tokenizer, loaded.model, STOP)
        first_round = step_of(self.resume) // options.round_steps
        order = prompts.chosen(options, self.rows, first_round, journal.outcomes)
        engine = self._engine(loaded, stop)
        trainer = weights.make_trainer(
            partial(Trainer, options, self.rows, self.rewards, stop, engine, callback.on_round),
            loaded,
            options,
            args=grpo_config(options, loaded, self.checkpoints.directory, self.rollouts),
            train_dataset=datasets.IterableDataset.from_generator(prompts.Stream(order)),
            callbacks=[callback],
        )
        # The loss is corrected for the difference of another engine's probabilities.
        trainer.use_vllm = not isinstance(engine, PolicyEngine)
        trainer.eos_token_ids = sorted(stop.ids)
        return trainer

    def _engine(self, loaded: load.Loaded, stop: Stop) -> RolloutEngine:
        if self.rollouts == "transformers":
            return PolicyEngine(stop)
        if self.options.tune == "all":
            return vllm.TrlEngine()
        length = self.longest + self.options.max_completion_length
        try:
            return vllm.AdapterEngine(loaded, stop, self.options, length, self.log.parent)
        except ModelError as error:
            if vllm.asked(self.options):
                raise
            self.reporter.warning(f"{error} transformers completes the prompts, more slowly.")
            return PolicyEngine(stop)

    def validate(
        self, trainer: Trainer, loaded: load.Loaded, prompts: list[str]
    ) -> list[Completion]:
        return trainer.validate(prompts)

    def facts(self, rows: Sequence[StepRow], last: StepRow) -> dict[str, object]:
        return {
            **self.asked,
            "reward_first": rows[0].reward,
            "reward_last_tenth": last.reward,
            "correct_last_tenth": last.correct,
            "log_digest": training_log.digest(rows),
        }


def grpo_config(
    options: TrainOptions, loaded: load.Loaded, directory: Path, rollouts: str = "transformers"
) -> GRPOConfig:
    """Return TRL's configuration of a run with checkpoints in *directory*."""
    fields = weights.trainer_arguments(options, loaded, directory, *_OPTIONS)
    fields |= {
        "loss_type": "dapo" if options.own_loss else options.loss_type,
        "steps_per_generation": fields["gradient_accumulation_steps"],
        # The data set has an order of its own, so that a resumed run starts in its middle.
        "shuffle_dataset": False,
        "ignore_data_skip": True,
        "use_vllm": rollouts == "vllm" and options.tune == "all",
        "multi_objective_aggregation": "sum_then_normalize",
        "vllm_importance_sampling_mode": "token_truncate",
    }
    # Truncated importance sampling by token. The ratio of a whole completion is far from 1 if it is
    # long, and near 0 if it is sampled without unlikely tokens. The cap is that of Yao et al. 2025,
    # "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    defaults = {
        "epsilon_high": options.aggregation.epsilon_high,
        "vllm_importance_sampling_clip_max": 2.0,
        "vllm_mode": "server" if vllm.SERVER in trl_fields.split(options.trl) else "colocate",
    }
    return weights.config(GRPOConfig, options, fields, defaults)


def prepare(arguments: RunArguments, options: TrainOptions, reporter: Reporter = SILENT) -> GrpoRun:
    """Check everything that a run of ``train`` needs before its weights are loaded."""
    start = Start.begin(arguments, options, reporter)
    options = start.options
    loaded = start.loaded
    rows, data = _read(arguments, reporter)
    _note_refusals(rows[:PROVED], reporter)
    reward_weights = rewards.parse(options.reward)
    reward_values = rewards.check_rewards(reward_weights, rows[0], reporter.note, reporter.warning)
    _check_functions(options, rows)
    recognized = start.recognized(StepRow, {"data": data}, options.max_steps)
    used = _used(options, rows)
    longest = start.longest_prompt([*used, *start.validation], options.max_completion_length)
    reporter.note(f"Peak learning rate: {options.learning_rate:g}.")
    engine = vllm.chosen(options, loaded)
    example = rows[0].messages()
    first = loaded.tokenizer.decode(chat_template.encode(loaded.tokenizer, [example])[0])
    asked = {"task": rows[0].task, "prompt": probe.prompt(rows[0]) | {"first": first}}
    if "lineage" not in data:  # else the data records it
        asked["layout"] = rows[0].layout
    details = {
        "rows": len(rows),
        "longest_prompt": longest,
        "rollouts": engine,
        "rewards": reward_values,
    }
    run = GrpoRun(
        **vars(start) | recognized,
        rows=rows,
        asked=asked,
        rewards=reward_weights,
        rollouts=engine,
        max_steps=options.max_steps,
        ids=start.trained_ids(used),
        longest=longest,
        first=first,
        example=example,
        details=details,
        memory=memory.of_run(
            loaded,
            start.adapted,
            sequences=options.per_device_batch * options.micro_batches,
            length=longest + options.max_completion_length,
        ),
    )
    if options.trl:
        grpo_config(options, loaded, run.checkpoints.directory, engine)  # what TRL says
    return run


def _note_refusals(rows: Sequence[Row], reporter: Reporter) -> None:
    """Note how many of the first *rows* have no solution."""
    refusals = [row.refusal for row in rows]
    if any(refusals):
        count = len(refusals) - refusals.count("")
        text = f"{count:,} of the first {plural(len(refusals), 'row')} have no solution"
        reporter.note(f"{text}; {max(refusals)!r} is the right answer there.")


def _check_functions(options: TrainOptions, rows: Sequence[Row]) -> None:
    """Raise UsageError if a function in *options* is missing, or a sampler yields no rows."""
    next(prompts.chosen(options, rows)())
    advantages.advantage(options)
    if options.own_loss:
        OwnLoss(options.loss_type)


def _read(arguments: RunArguments, reporter: Reporter) -> tuple[list[Row], dict[str, object]]:
    """The rows to train on, and the entry of their file in the manifest."""
    data = arguments.data
    if data is None:
        raise UsageError("there is nothing to train on; give --data.")
    if not data.is_file():
        entry = artifacts.read(data, "data").as_input()
        return jsonl.read_rows(data / "train.jsonl", reporter.note), entry
    entry, rows = file_input(data), jsonl.read_rows(data, reporter.note)
    used = [row for row in rows if row.split != "test" and row.get("split") != "valid"]
    if held_out := len(rows) - len(used):
        reporter.note(f"{data}: left out {plural(held_out, 'row')} of a test or validation split.")
    if not used:
        raise InputError(f"{data} has no rows for training beside those of held-out splits.")
    return used, entry


def _used(options: TrainOptions, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of *rows* that will be sampled, or all if that is not known."""
    if options.sampler != "uniform":
        return rows
    rounds = -(-options.max_steps // options.round_steps)
    count = min(rounds * options.prompts, len(rows))
    return [rows[index] for index in islice(prompts.in_turn(len(rows), options.seed), count)]

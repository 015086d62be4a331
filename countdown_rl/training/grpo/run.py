"""GRPO on a LoRA adapter or on all weights: what ``train`` adds to a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.manifest import file_input
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.inference.generate import STOP, Completion
from countdown_rl.models import chat_template, load
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from countdown_rl.training import memory, weights
from countdown_rl.training.grpo import prompts, rewards, shared_prompts, trl, vllm
from countdown_rl.training.memory import Memory
from countdown_rl.training.options import TrainOptions
from countdown_rl.training.run import Run
from countdown_rl.training.state import step_of


class GrpoRun(Run):
    """A run of ``train``."""

    command = "train"
    row_type = StepRow
    length_option = "--max-completion-length"
    less_memory = "--micro-batch, --prompts or --max-completion-length"

    options: TrainOptions
    rows: list[Row]
    rewards: dict[str, float]  # weights by name
    rollouts: str  # "transformers", "vllm" or "vllm-server"
    _is_file: bool

    def read(self) -> dict[str, Any]:
        data = self.arguments.data
        if data is None:
            raise UsageError(f"there is nothing to train on; give {flag('data')}.")
        self.rewards = rewards.parse(self.options.reward)
        one_file = self._is_file = data.is_file()
        inputs = {"data": file_input(data) if one_file else artifacts.read(data, "data").as_input()}
        rows = jsonl.read_rows(data if one_file else data / "train.jsonl", self.reporter.note)
        self.rows = [row for row in rows if not one_file or row.get("split") not in ("valid", "test")]
        if held_out := len(rows) - len(self.rows):
            self.reporter.note(f"{data}: left out {plural(held_out, 'row')} of a test or validation split.")
        if not self.rows:
            raise InputError(f"{data} has no rows for training; those of a test or validation split are left out.")
        rewards.check_rewards(self.rewards, self.rows[:2])
        next(self._order()())
        if ":" in (self.options.advantage or ""):
            user_code.imported(str(self.options.advantage))
        return inputs

    def encode(self, loaded: load.Loaded, adapted: Any) -> Memory:
        options, ref = self.options, loaded.ref
        if options.tune == "all" and options.beta and load.stored_format(ref) == "gguf":
            raise UsageError(
                f"{flag('beta')} with {flag('tune')} all needs the initial model a second time, and TRL cannot load "
                f"{ref.source}; give it as safetensors, or leave {flag('beta')} out."
            )
        if options.share_prompts:
            shared_prompts.check(loaded.model)
        self.max_steps, self.example = options.max_steps, self.rows[0].messages()
        self.first = loaded.tokenizer.decode(chat_template.encode(loaded.tokenizer, [self.example])[0])
        self.longest = self.longest_prompt([*self._used(), *self.validation], loaded, adapted)
        weights_of_rewards = list(self.rewards.values())
        config = partial(trl.grpo_config, options, loaded, weights_of_rewards, self.checkpoints.directory)
        if options.trl:
            config()  # checks its fields
        sequences = options.step_size * options.steps_per_generation // self.processes
        planned = memory.plan(
            loaded.model,
            adapted,
            options,
            loaded.precision,
            length=self.longest + options.max_completion_length,
            scored=options.max_completion_length,
            sequences=sequences,
            prompts=-(-sequences // options.num_generations),
            reference=bool(options.beta),
        )
        self.rollouts, planned = vllm.plan(options, loaded, adapted, config, planned)
        self.reporter.note(f"Peak learning rate: {options.learning_rate:g}.")
        if options.curriculum:
            self.reporter.note(
                "Training accuracy may fall while the model improves, as the curriculum samples more of the harder "
                f"puzzles; see {flag('eval_every')}."
            )
        self.details = {"rows": len(self.rows), "longest_prompt": self.longest, "rollouts": self.rollouts}
        return planned

    def _used(self) -> Sequence[Row]:
        """The rows that will be sampled, or all if that is not known."""
        options, rows = self.options, self.rows
        if options.curriculum or options.sampler or options.dynamic_sampling:
            return rows
        count = -(-options.max_steps // options.round_steps) * options.steps_per_generation * options.prompts
        return [rows[index] for index in islice(prompts.in_turn(len(rows), options.seed), min(count, len(rows)))]

    def _order(self, first_round: int = 0, **state: Any) -> Callable[[], Iterator[prompts.Prompt]]:
        """The order of the rows; *state* holds the arguments of :func:`prompts.order` in a resumed run."""
        options, rows = self.options, self.rows
        size = options.steps_per_generation * options.prompts
        if not (options.sampler or options.curriculum):
            return partial(prompts.in_turn, len(rows), options.seed, first_round * size)
        name = options.sampler or "curriculum"
        sampler = user_code.imported(name) if options.sampler else prompts.curriculum
        return partial(prompts.order, sampler, name, rows, size, options.seed, start=first_round, **state)

    def make_trainer(self, loaded: load.Loaded) -> tuple[Any, Any]:
        import datasets

        from countdown_rl.inference.stop import Stop
        from countdown_rl.training.callbacks import GrpoCallback
        from countdown_rl.training.grpo.rollouts import DynamicRollouts, Rollouts
        from countdown_rl.training.grpo.trainer import Trainer

        options, rows, outcomes = self.options, self.rows, self.journal.outcomes
        first_round = step_of(self.resume) // options.round_steps if self.resume else 0

        def warn(text: str) -> None:
            self.journal.warn({"sampler": text}, self.reporter.warning)

        order = self._order(first_round, outcomes=outcomes, warn=warn)
        callback = GrpoCallback(self)
        stop = Stop(loaded.tokenizer, loaded.model, STOP)
        sampling = partial(DynamicRollouts, seed=options.seed) if options.dynamic_sampling else Rollouts
        rollouts = sampling(rows, stop, callback.on_graded)
        rollouts.keeps_graphs = self.memory.keeps_caches
        trainer = weights.make_trainer(
            partial(Trainer, options, rollouts, outcomes),
            loaded,
            options,
            reward_funcs=rewards.functions(list(self.rewards)),
            args=trl.grpo_config(options, loaded, list(self.rewards.values()), self.checkpoints.directory),
            train_dataset=datasets.IterableDataset.from_generator(_Prompts(order)),
            callbacks=[callback],
        )
        if self.rollouts != "transformers":
            # A hint is a part of a completion, and stands before another one.
            length = self.longest + options.max_completion_length * (2 if options.sampler else 1)
            vllm.use_engine(trainer, self.rollouts, loaded, length, self.reporter.warning)
        if self.rollouts == "vllm" and trainer.use_vllm:  # else it did not start
            self.length_option += f" or {flag('trl')} vllm_gpu_memory_utilization"
        return trainer, callback

    def validate(self, trainer: Any, loaded: load.Loaded, prompts: list[str]) -> list[Completion]:
        completions: list[Completion] = trainer.rollouts.validate(prompts, trainer, self.options.eval_temperature)
        return completions

    def facts(self, last: StepRow) -> dict[str, Any]:
        row, logged = self.rows[0], self.journal.rows
        return {
            "task": row.task,
            **({"layout": row.layout} if self._is_file else {}),  # else the data records it
            "reward_first": logged[0].reward,
            "reward_last_tenth": last.reward,
            "correct_last_tenth": last.correct,
            "reward_best": max(step.reward for step in logged),
            "log_digest": training_log.digest(logged),
        }

    def summary(self, facts: Mapping[str, Any]) -> str:
        return (
            f"mean reward {facts['reward_first']:.3f} at first and {facts['reward_last_tenth']:.3f} in the last tenth "
            f"of the run, where {facts['correct_last_tenth']:.0%} of the completions were correct."
        )


class _Prompts:
    """The endless stream of prompts: the indices of rows, or pairs with a hint, which the rollouts render."""

    def __init__(self, order: Callable[[], Iterator[prompts.Prompt]]) -> None:
        self._order = order

    def __call__(self) -> Iterator[dict[str, prompts.Prompt]]:
        return ({"prompt": prompt} for prompt in self._order())

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return object, ()  # datasets hashes a pickle, for which a function of the user's own may have none

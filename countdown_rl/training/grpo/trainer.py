"""One step of GRPO, in its order: choose puzzles, sample, grade, reward, advantages, loss, log.

The losses, the optimizer and the distributed backends are TRL's, as they are.
``examples/grpo_countdown.py`` has the same step without TRL, by the same names. What differs from
TRL:

* rewards are computed once, here; a reward of None is in no mean;
* advantages come from a function of :mod:`advantages` or of the user, and may differ by token;
* rows with zero advantage, which add nothing to the gradient without a KL or entropy term, are
  skipped. The loss is normalized as if they were there, but the logged entropy, KL and clip ratios
  are means over the other rows. Groups with equal rewards have an advantage of exactly zero, where
  TRL leaves the rounding of their mean;
* the rows of an optimizer step are sorted by length, not shuffled, and each micro-batch is cut to
  its longest row. A sum over rows stays the same. Where a micro-batch has a mean over its tokens
  (``bnpo``, an entropy bonus, experts), rows are neither sorted nor skipped;
* so ``top_entropy_quantile`` takes its quantile over the remaining tokens of a micro-batch.

Private names of TRL, and the public ways that were considered:

* ``_prepare_inputs`` is where TRL turns prompts into a micro-batch. ``training_step`` and
  ``compute_loss`` see one micro-batch only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from countdown_rl.core.errors import UsageError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import to_completion
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import chat_template
from countdown_rl.models.shape import ModelShape
from countdown_rl.tasks.task import Row
from countdown_rl.training.grpo import advantages, rewards
from countdown_rl.training.grpo.engines import RolloutEngine
from countdown_rl.training.grpo.loss import OwnLoss
from countdown_rl.training.grpo.policy import Batch, PolicyTrainer
from countdown_rl.training.grpo.round import Graded, Round, Sampled
from countdown_rl.training.options import TrainOptions

PRIVATE = ("trl.GRPOTrainer._prepare_inputs",)

#: Maximum attempts of a round. Where half of the groups have reward variance, four fill 94% of it.
#: Where none has, the run needs easier puzzles, not more attempts.
MAX_ATTEMPTS = 4


class Trainer(PolicyTrainer):
    """``GRPOTrainer`` on a data set of indices into *rows*.

    Args:
        options: of the run.
        rows: to complete.
        reward_weights: by name.
        stop: end of a completion.
        engine: completes prompts.
        on_round: gets the first step of each round, and the round.
        settings: of ``GRPOTrainer``.
    """

    def __init__(
        self,
        options: TrainOptions,
        rows: Sequence[Row],
        reward_weights: Mapping[str, float],
        stop: Stop,
        engine: RolloutEngine,
        on_round: Callable[[int, Round], None],
        **settings: object,
    ) -> None:
        self.rows = rows
        self.weight_of = reward_weights
        self.reward_of = {name: rewards.reward(name) for name in reward_weights}
        self.on_round = on_round
        self.own_loss = OwnLoss(options.loss_type) if options.own_loss else None
        super().__init__(
            options, stop, engine, reward_funcs=list(self.reward_of.values()), **settings
        )

        self.waiting: list[Batch] = []
        self.advantage = advantages.advantage(options)
        self.advantage_columns = advantages.columns(self.advantage)
        if "line_ends" in self.advantage_columns:
            count = ModelShape.of(self.model.config).vocab_size
            ends = ["\n" in stop.tokenizer.decode([index]) for index in range(count)]
            self.ends_line = torch.tensor(ends, device=self.accelerator.device)  # (V,)

    def _prepare_inputs(self, generation_batch: list[dict[str, int]]) -> Batch:
        """Return the next micro-batch, of a new round where the last one is used up."""
        if not self.waiting:
            # The data set is the order of the puzzles that a sampler of :mod:`prompts` chooses.
            sampled = self.round([row["index"] for row in generation_batch])
            if self.options.sampler == "dynamic":
                self.resample(sampled)
            self.waiting = self.micro_batches(sampled) * self.num_iterations
        return self.waiting.pop(0)

    def round(self, indices: Sequence[int]) -> Round:
        """Sample, grade and reward completions of the rows *indices*, groups side by side."""
        begin = time.perf_counter()
        sampled = self.sample(indices)
        between = time.perf_counter()
        graded = [self.grade(completion) for completion in sampled]
        logged = self.reward(graded)
        return Round(graded, between - begin, time.perf_counter() - between, logged)

    def sample(self, indices: Sequence[int]) -> list[Sampled]:
        """Complete the prompts of the rows *indices*."""
        tokenizer = self.stop.tokenizer
        chosen = list(dict.fromkeys(indices))
        texts = [chat_template.render(tokenizer, self.rows[index].messages()) for index in chosen]
        encoded = chat_template.token_ids(tokenizer, texts)
        prompts = dict(zip(chosen, zip(texts, encoded, strict=True), strict=True))
        self.model.eval()  # no LoRA dropout while sampling
        prompt_ids = [prompts[index][1] for index in indices]
        ids, logps = self.engine(self, prompt_ids, self.temperature)
        self.model.train()
        sampled = []
        for position, index in enumerate(indices):
            own_logps = logps[position] if logps else None
            sampled.append(Sampled(index, *prompts[index], ids[position], own_logps))
        return sampled

    def grade(self, sampled: Sampled) -> Graded:
        """Grade a completion, with the thinking that its prompt began."""
        row = self.rows[sampled.index]
        completion = to_completion(self.stop, sampled.ids).after(row, sampled.prompt)
        return Graded(sampled, Sample.of(row, completion))

    def reward(self, graded: Sequence[Graded]) -> list[tuple[str, float]]:
        """Set the rewards of completions, and return the metrics that the functions log."""
        logged: list[tuple[str, float]] = []
        samples = [completion.sample for completion in graded]
        columns = {
            "prompts": [completion.sampled.prompt for completion in graded],
            "completion_ids": [completion.sampled.ids for completion in graded],
            "trainer_state": self.state,
            # Beside the columns of the log, of which none has such a prefix.
            "log_metric": lambda name, value: logged.append((f"metric/{name}", value)),
        }
        for name, function in self.reward_of.items():
            values = rewards.values(name, function, samples, columns)
            for completion, value in zip(graded, values, strict=True):
                completion.rewards[name] = value
        return logged

    def micro_batches(self, sampled: Round) -> list[Batch]:
        """Return the round as micro-batches of tensors with advantages, and note its metrics."""
        batch = self.tensors(sampled)
        totals = self.accelerator.gather(sampled.totals(self.weight_of).to(self.model.device))
        if totals.isnan().all():
            raise UsageError("No reward function returned a number for any completion of a step.")
        groups = totals.view(-1, self.num_generations)
        for name, value in sampled.metrics(groups).items():
            self.metrics[name].append(value)
        if self.options.sampler not in ("uniform", "dynamic"):
            sampled.outcomes = sampled.observed(groups)

        mask = batch["completion_mask"]
        values = self.advantages(groups, batch)
        by_token = values.ndim > 1
        means = values.sum(1) / mask.sum(1).clamp(min=1) if by_token else values
        for graded, mean in zip(sampled.graded, means.tolist(), strict=True):
            graded.advantage = mean
        self.on_round(self.state.global_step + 1, sampled)

        batch["advantages"] = values
        # Sequence-level ratios and the off-policy mask are means over all tokens of a row.
        ends_early = (
            self.importance_sampling_level == "token" and self.off_policy_mask_threshold is None
        )
        if by_token and ends_early and self.skips_rows and self.aggregation.by_token:
            batch["completion_mask"] = mask * advantages.up_to_last(values)
        return self.cut(batch)

    def advantages(self, rewards: Tensor, batch: Batch) -> Tensor:
        """Return the advantages (B,), or (B, T) by token, of the completions of this process.

        Args:
            rewards: (groups, generations) in all processes.
            batch: tokens of this process.
        """
        if "line_ends" in self.advantage_columns:
            batch["line_ends"] = self.ends_line[batch["completion_ids"]]
        count, process = self.accelerator.num_processes, self.accelerator.process_index
        if not self.advantage_columns:
            return self.advantage(rewards).flatten().chunk(count)[process]
        own = rewards.flatten().chunk(count)[process].view(-1, self.num_generations)
        tokens = {name: batch[name].view(*own.shape, -1) for name in self.advantage_columns}
        values = self.advantage(own, **tokens)
        if values.ndim == 2:
            return values.flatten()
        return values.flatten(0, 1) * batch["completion_mask"]

    def compute_loss(
        self, model: torch.nn.Module, inputs: Batch, *args: object, **settings: object
    ) -> Tensor:
        """Return the loss of a micro-batch by TRL, or by a function of the user's."""
        if len(inputs["advantages"]) == 0:
            # A gradient of zero for all: the optimizer leaves out parameters without one.
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            return sum(parameter.sum() for parameter in trained) * 0.0
        if self.own_loss is not None:
            return self.own_loss(self, model, inputs)
        return super().compute_loss(model, inputs, *args, **settings) * inputs["share"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the metrics of a step beside those of TRL."""
        noted = {name: fmean(values) for name, values in self.metrics.items()}
        super().log(logs | noted, start_time)
        self.metrics.clear()

    def resample(self, sampled: Round) -> None:
        """Replace groups with equal rewards by new ones: DAPO (Yu et al. 2025, arXiv:2503.14476).

        The puzzles of an attempt depend on the seed, the step and the attempt alone, so a resumed
        run samples the same.
        """
        size = self.num_generations
        processes = self.accelerator.num_processes
        groups = sampled.groups(self.weight_of, size)
        sampled.draws = len(groups) * processes
        for attempt in range(1, MAX_ATTEMPTS):
            missing = [index for index, (_, varies) in enumerate(groups) if not varies]
            # All processes complete as many: with some engines they must.
            most = max(gather_object([len(missing)]))
            if not most:
                break
            rng = np.random.default_rng((self.options.seed, self.state.global_step, attempt))
            rows = rng.integers(len(self.rows), size=(processes, most))
            more = self.round(rows[self.accelerator.process_index].repeat(size).tolist())
            varied = [group for group in more.groups(self.weight_of, size) if group[1]]
            for index, group in zip(missing, varied, strict=False):
                groups[index] = group
            sampled.draws += most * processes
            sampled.seconds_generation += more.seconds_generation
            sampled.seconds_reward += more.seconds_reward
            sampled.logged += more.logged
        sampled.graded = list(chain.from_iterable(group for group, _ in groups))

"""The policy below a step: its tensors, log-probabilities, micro-batches and greedy completions.

Private names of TRL, and the public ways that were considered:

* ``_get_per_token_logps_and_entropies`` has the log-probabilities of a batch; nothing public
  returns them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from countdown_rl.inference.engine import Completion, batches, to_completion
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import chat_template
from countdown_rl.training.grpo.engines import RolloutEngine
from countdown_rl.training.grpo.round import Round
from countdown_rl.training.options import TrainOptions

PRIVATE = ("trl.GRPOTrainer._get_per_token_logps_and_entropies",)

#: Tensors by name: those of tokens (B, P) or (B, T), of rows (B,), and numbers of the step ().
Batch = dict[str, Tensor]
#: Completions of an evaluation on which each process measures the divergence.
KL_COMPLETIONS = 64


class PolicyTrainer(GRPOTrainer):
    """``GRPOTrainer`` with what a step and an evaluation ask of the policy.

    Args:
        options: of the run.
        stop: end of a completion.
        engine: completes prompts.
        settings: of ``GRPOTrainer``.
    """

    def __init__(
        self, options: TrainOptions, stop: Stop, engine: RolloutEngine, **settings: object
    ) -> None:
        self.options = options
        self.stop = stop
        self.engine = engine
        self.aggregation = options.aggregation
        super().__init__(**settings)

        args = self.args
        self.decoding = Decoding(
            args.max_completion_length,
            top_p=args.top_p,
            top_k=args.top_k or 0,
            min_p=args.min_p or 0.0,
        )
        self.metrics: dict[str, list[float]] = defaultdict(list)  # of a step, for the log
        self.starts_at_base = settings.get("peft_config") is not None
        # The gradient of a step is a sum over its rows, however they are cut into micro-batches.
        per_micro_batch = args.entropy_coef or args.use_adaptive_entropy or self.aux_loss_enabled
        self.sums_over_rows = bool(self.aggregation.sum_over and not per_micro_batch)
        self.skips_rows = self.sums_over_rows and self.beta == 0.0 and not options.own_loss

    def padded(self, prompts: list[list[int]], completions: list[list[int]]) -> Batch:
        """Return *prompts* (B, P), padded on the left, and *completions* (B, T), on the right."""
        batch = {}
        sides = {"prompt": (prompts, "left"), "completion": (completions, "right")}
        for name, (rows, side) in sides.items():
            ids = [torch.tensor(row, device=self.model.device) for row in rows]
            masks = [torch.ones_like(row) for row in ids]
            batch[f"{name}_ids"] = pad(ids, self.processing_class.pad_token_id, side)
            batch[f"{name}_mask"] = pad(masks, 0, side)
        return batch

    def scores(
        self, model: torch.nn.Module, batch: Batch, **settings: object
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities (B, T) of completions, and their entropies (B, T) or None."""
        ids = torch.cat((batch["prompt_ids"], batch["completion_ids"]), 1)
        mask = torch.cat((batch["prompt_mask"], batch["completion_mask"]), 1)
        length = batch["completion_ids"].shape[1]
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, mask, length, **settings
        )
        return logps, entropies

    @torch.no_grad()
    def log_probabilities(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """Return the log-probabilities (B, T) of completions by *model*, without a gradient."""
        size = self.args.per_device_train_batch_size
        return self.scores(model, batch, batch_size=size)[0]

    def initial_log_probabilities(self, batch: Batch) -> Tensor:
        """Return the log-probabilities (B, T) of completions by the initial policy."""
        if self.ref_model is not None:
            return self.log_probabilities(self.ref_model, batch)
        model = self.accelerator.unwrap_model(self.model)
        # TRL holds the start of an adapter that is trained further under the name "ref".
        with use_adapter(model, "ref" if "ref" in model.peft_config else None):
            return self.log_probabilities(self.model, batch)

    def tensors(self, sampled: Round) -> Batch:
        """Return the tokens of a round, masks, and the log-probabilities that the loss needs."""
        completions = [graded.sampled for graded in sampled.graded]
        prompt_ids = [completion.prompt_ids for completion in completions]
        batch = self.padded(prompt_ids, [completion.ids for completion in completions])
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        if self.num_iterations > 1 or corrects:
            batch["old_per_token_logps"] = self.log_probabilities(self.model, batch)
        if self.use_vllm:
            logps = [torch.tensor(completion.logps) for completion in completions]
            batch["sampling_per_token_logps"] = pad(logps, 0.0).to(self.model.device)
        if corrects:
            difference = batch["old_per_token_logps"] - batch["sampling_per_token_logps"]
            batch["importance_sampling_ratio"] = self.importance_ratio(
                difference, batch["completion_mask"]
            )
        if self.beta:
            batch["ref_per_token_logps"] = self.initial_log_probabilities(batch)
        if self.args.mask_truncated_completions:
            ended = [not graded.sample.truncated for graded in sampled.graded]
            mask = torch.tensor(ended, device=self.model.device)
            batch["completion_mask"] = batch["completion_mask"] * mask[:, None]
        count = batch["completion_mask"].sum()
        batch["num_items_in_batch"] = self.accelerator.gather(count).sum()
        return batch

    def importance_ratio(self, difference: Tensor, mask: Tensor) -> Tensor:
        """Return the weights (B, T) that correct the loss for another engine's samples.

        Args:
            difference: (B, T) log-probabilities by the policy less those by the engine.
            mask: (B, T), 1 for the tokens of completions.
        """
        ratio = (difference.nan_to_num() * mask).exp()
        # The cap would hide a mean above it.
        mean = self.accelerator.gather(ratio[mask.bool()].mean()).nanmean()
        self.metrics["sampling/importance_sampling_ratio/mean"].append(mean.item())
        return ratio.clamp(
            self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        )

    def cut(self, batch: Batch) -> list[Batch]:
        """Return the rows of *batch* that have a gradient, in micro-batches."""
        size = self.args.per_device_train_batch_size
        lengths = batch["completion_mask"].sum(1)  # (B,)
        live = torch.ones_like(lengths, dtype=torch.bool)  # has a gradient
        if self.skips_rows:
            live = batch["advantages"].reshape(len(lengths), -1).ne(0).any(1) & (lengths > 0)
        order = torch.arange(len(lengths))
        if self.sums_over_rows:
            # The rows that have a gradient come first, the longest of all.
            rank = (live * (lengths.max() + 1) + lengths).cpu()
            order = rank.argsort(descending=True, stable=True)
        parts = order.split(size)
        counts = torch.tensor([[int(live[rows].sum()) for rows in parts]], device=lengths.device)
        if self.accelerator.num_processes > 1:
            # TRL gathers a metric per row, and a backward pass needs all processes: each has as
            # many rows as the most.
            counts = self.accelerator.gather(counts).amax(0, keepdim=True).clamp(min=1)
        multiple = 32 if lengths.is_cuda else 1  # a GPU chooses kernels anew for each length
        micro_batches = []
        for rows, count in zip(parts, counts[0].tolist(), strict=True):
            part = selected(batch, rows[:count], multiple)
            mean = self.aggregation.sum_over == "rows"
            part["share"] = torch.tensor(count / size if mean else 1.0)
            micro_batches.append(part)
        return micro_batches

    def validate(self, prompts: Sequence[str]) -> list[Completion]:
        """Return a greedy completion of each rendered prompt; processes share them."""
        share = -(-len(prompts) // self.accelerator.num_processes)
        begin = share * self.accelerator.process_index
        own = [prompts[index % len(prompts)] for index in range(begin, begin + share)]
        prompt_ids = chat_template.token_ids(self.stop.tokenizer, own)
        # One size in all processes, which may have to take part.
        size = self.args.per_device_train_batch_size * self.args.steps_per_generation
        ids: dict[int, list[int]] = {}
        self.model.eval()
        for batch in batches(list(map(len, prompt_ids)), lambda _: size):
            completed, _ = self.engine(self, [prompt_ids[index] for index in batch], 0.0)
            ids |= zip(batch, completed, strict=True)
        rows = [ids[index] for index in range(share)]
        completions = [to_completion(self.stop, row) for row in rows]
        divergences = self.divergence(prompt_ids[:KL_COMPLETIONS], rows[:KL_COMPLETIONS])
        for index, divergence in enumerate(divergences):
            completions[index] = replace(completions[index], details={"kl": divergence})
        self.model.train()
        return gather_object(completions)[: len(prompts)]

    def divergence(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Return the KL divergence from the initial policy, summed over each completion's tokens.

        It is k3 of Schulman 2020, "Approximating KL Divergence", as in the loss. Empty if the
        initial policy is not in memory.
        """
        model = self.accelerator.unwrap_model(self.model)
        in_memory = self.starts_at_base or "ref" in getattr(model, "peft_config", ())
        if not prompts or not (in_memory or self.ref_model is not None):
            return []
        batch = self.padded(prompts, completions)
        initial = self.initial_log_probabilities(batch)
        difference = initial - self.log_probabilities(self.model, batch)
        divergence = (difference.exp() - difference - 1) * batch["completion_mask"]
        return divergence.sum(1).tolist()


def selected(batch: Batch, rows: Tensor, multiple: int) -> Batch:
    """Return the *rows* of *batch* without columns in which none of them has a token.

    Columns stay that fill a *multiple*, as far as *batch* has them.
    """
    part = {name: value[rows] if value.ndim else value for name, value in batch.items()}
    if len(rows) == 0:
        return part
    widths = {}
    for side in ("prompt", "completion"):
        longest = max(1, int(part[f"{side}_mask"].sum(1).max()))
        widths[side] = -(-longest // multiple) * multiple
    for name, value in part.items():
        if name.startswith("prompt_"):
            part[name] = value[:, -widths["prompt"] :]
        elif value.ndim > 1:
            part[name] = value[:, : widths["completion"]]
    return part

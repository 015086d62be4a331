"""TRL's GRPO trainer, quick on small machines and exact when continued.

The loss and its gradient are TRL's. What differs is what is not paid for, and where randomness comes from:

* a row whose advantage is zero adds nothing to the gradient unless there is a KL term, so it is left out of
  the forward and backward passes, while the loss is still normalised as if it were there;
* the rows of an optimiser step are sorted by length and each micro-batch is cut to its own longest row;
* every step starts from random numbers of its own (seed, step and process), so a run that was killed and
  continued draws what an unbroken one would have drawn.
"""

import time
from typing import Any

import torch
from trl import GRPOTrainer

from countdown_rl.inference.cpu_decoder import Decoder, Stop, supports

#: Losses that sum over tokens and divide by a count taken before rows are left out.
_BY_TOKEN = ("dapo",)
#: Losses that average over the rows of a micro-batch, and so must be scaled back for those left out.
_BY_ROW = ("grpo", "dr_grpo")

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",  # (B, T), or (B, 1) where it is one number a sequence
)

Batch = dict[str, Any]


class Trainer(GRPOTrainer):
    """A ``GRPOTrainer`` whose data set yields ``prompt`` (text, special tokens and all) and ``row``.

    Args:
        stop: where a completion is over.
        mask_truncated: leave completions that did not end out of the loss.
    """

    _name = "GRPO"

    def __init__(
        self,
        *args: Any,
        stop: Stop,
        mask_truncated: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.eos_token_ids = sorted(stop.ids)
        self.generation_config.eos_token_id = self.eos_token_ids
        self.generation_kwargs["eos_token_id"] = self.eos_token_ids
        self.seconds = {"generation": 0.0, "reward": 0.0, "loss": 0.0}
        self._buffered_inputs: list[Batch] | None = None
        self._stop = stop
        self._mask_truncated = mask_truncated
        self._ended = torch.empty(0, dtype=torch.bool)
        # What the quick decoder knows is temperature and top-p; any other wish is for transformers to grant.
        asked = self.args
        others = (asked.top_k, asked.min_p, asked.generation_kwargs, asked.cache_implementation, asked.use_vllm)
        batching = asked.use_transformers_continuous_batching
        self._plain_sampling = not any(others) and not batching and asked.repetition_penalty == 1.0

    def _send_telemetry(self) -> None:
        """Nothing here calls home."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The release has a card; a checkpoint needs none."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # Without save_embedding_layers=False, PEFT asks the Hub whether the vocabulary was changed.
        self.accelerator.unwrap_model(self.model).save_pretrained(
            output_dir or self.args.output_dir, state_dict=state_dict, save_embedding_layers=False
        )

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        # A prompt holds its special tokens already; the tokenizer must not add a second first token.
        unique = list(dict.fromkeys(prompts))
        ids = self.processing_class(text=unique, add_special_tokens=False)["input_ids"]
        known = dict(zip(unique, ids, strict=True))
        return [known[prompt] for prompt in prompts], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], list[Any] | None]:
        begin = time.perf_counter()
        logps = None
        self.model.eval()  # no LoRA dropout while sampling
        policy = self.accelerator.unwrap_model(self.model)
        if self._plain_sampling and supports(policy):
            completion_ids = Decoder(policy).decode(
                prompt_ids,
                max_new_tokens=self.max_completion_length,
                stop=self._stop,
                temperature=self.temperature,
                top_p=self.top_p,
            )
        else:
            completion_ids, logps = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            completion_ids = [self._stop.cut(ids) for ids in completion_ids]
            if logps is not None:  # vLLM's own, which its importance sampling goes by
                logps = [one[: len(ids)] for one, ids in zip(logps, completion_ids, strict=True)]
        self.model.train()
        self.seconds["generation"] += time.perf_counter() - begin
        self._ended = torch.tensor([self._stop(ids) for ids in completion_ids], device=self.accelerator.device)
        truncated = 1.0 - self.accelerator.gather(self._ended.float()).mean().item()
        self._metrics["train"]["truncated"].append(truncated)
        return completion_ids, logps

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        begin = time.perf_counter()
        rewards = super()._calculate_rewards(*args, **kwargs)
        self.seconds["reward"] += time.perf_counter() - begin
        return rewards

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        begin, before = time.perf_counter(), self.seconds["generation"] + self.seconds["reward"]
        loss = super().training_step(*args, **kwargs)
        aside = self.seconds["generation"] + self.seconds["reward"] - before
        self.seconds["loss"] += time.perf_counter() - begin - aside
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        every = self.args.steps_per_generation * self.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        """The generated *batch* cut into ``steps_per_generation`` micro-batches, in order of use."""
        if self._mask_truncated:  # not by TRL, which only knows a completion that ends in a single end token
            batch["completion_mask"] = batch["completion_mask"] * self._ended[:, None]
            batch["num_items_in_batch"] = self.accelerator.gather(batch["completion_mask"].sum()).sum()
        rows = len(batch["advantages"])
        lengths = batch["completion_mask"].sum(1)  # (B,)
        live = (batch["advantages"] != 0) & (lengths > 0) if self.skips_dead_rows else lengths >= 0  # (B,)
        updates = self.args.steps_per_generation // self.args.gradient_accumulation_steps
        order = torch.randperm(rows) if updates > 1 else torch.arange(rows)
        size = self.args.per_device_train_batch_size
        parts = []
        for update in order.tensor_split(updates):
            rank = (live[update].long() * (lengths.max() + 1) + lengths[update]).cpu()
            parts.extend(update[rank.argsort(descending=True, stable=True)].split(size))
        counts = self._agreed([int(live[chosen].sum()) for chosen in parts])
        kept = [chosen[:count] for chosen, count in zip(parts, counts, strict=True)]  # those that count come first
        by_row = self.loss_type in _BY_ROW
        return [_cut(batch, rows) | {"share": len(rows) / size if by_row else 1.0} for rows in kept]

    def _agreed(self, counts: list[int]) -> list[int]:
        """How many rows each micro-batch keeps: those that count here, and as many in every process.

        TRL gathers a figure a row, and a backward pass needs all processes, so none may have fewer.
        """
        if self.accelerator.num_processes == 1:
            return counts
        mine = torch.tensor([counts], device=self.accelerator.device)
        return self.accelerator.gather(mine).max(0).values.clamp(min=1).tolist()

    @property
    def skips_dead_rows(self) -> bool:
        """Whether leaving out rows of zero advantage leaves the gradient as it was."""
        args = self.args
        entropy = args.entropy_coef or args.use_adaptive_entropy or args.top_entropy_quantile < 1.0
        others = entropy or self.aux_loss_enabled or args.use_liger_kernel
        return self.beta == 0.0 and not others and self.loss_type in (*_BY_TOKEN, *_BY_ROW)

    def gathered(self) -> dict[str, torch.Tensor] | None:
        """The weights by name where processes hold parts of them, else None; for all processes to call."""
        if self.is_fsdp_enabled or getattr(self.accelerator.state.deepspeed_plugin, "zero_stage", 0) == 3:
            return self.accelerator.get_state_dict(self.model_wrapped)
        return None

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        if len(inputs["advantages"]) == 0:
            anchor = next(parameter for parameter in model.parameters() if parameter.requires_grad)
            return anchor.sum() * 0.0
        return super()._compute_loss(model, inputs) * inputs["share"]


def _cut(batch: Batch, rows: torch.Tensor) -> Batch:
    """*rows* of *batch*, without the columns in which none of them has a token."""
    out = {key: value[rows] if value.ndim else value for key, value in batch.items()}
    if len(rows):
        prompt = int(out["prompt_mask"].sum(1).max())
        completion = max(1, int(out["completion_mask"].sum(1).max()))
        out |= {key: out[key][:, -prompt:] for key in _PROMPT}
        out |= {key: out[key][:, :completion] for key in _COMPLETION if key in out}
    return out

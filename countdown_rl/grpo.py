"""TRL's GRPO trainer, quick on small machines and exact when continued.

The loss and its gradient are TRL's. What differs is what is not paid for, and where randomness comes from:

* a row whose advantage is zero adds nothing to the gradient unless there is a KL term, so it is left out of
  the forward and backward passes, while the loss is still normalised as if it were there;
* the rows of an optimiser step are sorted by length and each micro-batch is cut to its own longest row;
* every step starts from random numbers of its own (seed, step and process), so a run that was killed and
  continued draws what an unbroken one would have drawn.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from countdown_rl.tasks import Grade
from countdown_rl.trainlog import StepRow, mean, rounded

#: Losses that sum over tokens and divide by a count taken before rows are left out.
_BY_TOKEN = ("dapo",)
#: Losses that average over the rows of a micro-batch, and so must be scaled back for those left out.
_BY_ROW = ("grpo", "dr_grpo")

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps")

Batch = dict[str, Any]


class Trainer(GRPOTrainer):
    """A ``GRPOTrainer`` whose data set yields ``prompt`` (text, special tokens and all) and ``row``.

    Args:
        finished: whether a completion, given as token ids, ended by itself.
        stop_ids: single tokens that end a completion, beside the model's own.
        mask_truncated: leave completions that did not end out of the loss.
    """

    _name = "GRPO"

    def __init__(
        self,
        *args: Any,
        finished: Callable[[Sequence[int]], bool],
        stop_ids: Sequence[int],
        mask_truncated: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.eos_token_ids = [
            *self.eos_token_ids,
            *(token for token in stop_ids if token not in self.eos_token_ids),
        ]
        self.generation_config.eos_token_id = self.eos_token_ids
        self.generation_kwargs["eos_token_id"] = self.eos_token_ids
        self.seconds = {"generation": 0.0, "reward": 0.0, "loss": 0.0}
        self._finished = finished
        self._mask_truncated = mask_truncated
        self._ended = torch.empty(0, dtype=torch.bool)

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

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        begin = time.perf_counter()
        self.model.eval()  # no LoRA dropout while sampling
        completion_ids, _ = super()._generate_single_turn(*args, **kwargs)
        self.model.train()
        self.seconds["generation"] += time.perf_counter() - begin
        self._ended = torch.tensor([self._finished(ids) for ids in completion_ids], device=self.accelerator.device)
        truncated = 1.0 - self.accelerator.gather(self._ended.float()).mean().item()
        self._metrics["train"]["truncated"].append(truncated)
        return completion_ids, None

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
        micro = []
        for update in order.tensor_split(updates):
            rank = (live[update].long() * (lengths.max() + 1) + lengths[update]).cpu()
            for chosen in update[rank.argsort(descending=True, stable=True)].split(size):
                kept = chosen[live[chosen].cpu()]
                micro.append(_cut(batch, kept) | {"share": len(kept) / size if self.loss_type in _BY_ROW else 1.0})
        return micro

    @property
    def skips_dead_rows(self) -> bool:
        """Whether leaving out rows of zero advantage leaves the gradient as it was."""
        alone = self.accelerator.num_processes == 1  # others would wait for a backward pass that never comes
        return alone and self.beta == 0.0 and self.loss_type in (*_BY_TOKEN, *_BY_ROW)

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


class Grading:
    """Reward functions for TRL over one grade a completion: each is read once, whatever is rewarded."""

    def __init__(
        self, grade: Callable[[str, Mapping[str, Any]], Grade], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._grade = grade
        self._decode = decode
        self._batch: Any = None
        self._grades: list[Grade] = []

    def function(
        self, name: str, reward: Callable[[Grade, Mapping[str, Any], int], float]
    ) -> Callable[..., list[float]]:
        """*reward* as TRL calls it: with the ``row`` column and the token ids of every completion."""

        def rewards(
            completion_ids: list[list[int]], row: list[Mapping[str, Any]], log_metric: Any, **_: Any
        ) -> list[float]:
            if self._batch is not completion_ids:
                pairs = zip(completion_ids, row, strict=True)
                self._batch, self._grades = (
                    completion_ids,
                    [self._grade(self._decode(ids), one) for ids, one in pairs],
                )
                log_metric("correct", sum(grade.correct for grade in self._grades) / len(self._grades))
                log_metric("format", sum(grade.format for grade in self._grades) / len(self._grades))
            graded = zip(self._grades, row, completion_ids, strict=True)
            return [reward(grade, one, len(ids)) for grade, one, ids in graded]

        rewards.__name__ = name
        return rewards


class Recorder(TrainerCallback):
    """Seeds each step, turns TRL's logs into rows, and says when a checkpoint is due.

    Args:
        rows: the rows of a run that is being continued; new ones are added.
        due: whether a checkpoint is wanted after this step.
        on_step: called with every step's row, logged or not.
        on_log: called after a row was added to ``rows``.
        on_checkpoint: called with the directory of a checkpoint that was just written.
    """

    def __init__(
        self,
        rows: list[StepRow],
        *,
        seed: int,
        log_every: int,
        due: Callable[[int], bool],
        on_step: Callable[[StepRow], None],
        on_log: Callable[[], None],
        on_checkpoint: Callable[[Path], None],
    ) -> None:
        self.rows = rows
        self.trainer: Trainer | None = None
        self._seed, self._log_every, self._due = seed, log_every, due
        self._on_step, self._on_log, self._on_checkpoint = on_step, on_log, on_checkpoint
        self._pending: list[StepRow] = []
        self._begin = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin = time.perf_counter()
        torch.manual_seed(step_seed(self._seed, state.global_step, args.process_index))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_save = self._due(state.global_step)
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "grad_norm" not in logs or self.trainer is None:  # the summary at the end of training
            return
        if "reward" in logs:  # a step that reuses completions has none of its own
            self._last = logs
        known = self._last | logs
        seconds, self.trainer.seconds = self.trainer.seconds, dict.fromkeys(self.trainer.seconds, 0.0)
        entropy = known.get("entropy")
        row = StepRow(
            step=state.global_step,
            reward=rounded(known["reward"]),
            correct=rounded(known["correct"]),
            format=rounded(known["format"]),
            length=rounded(known["completions/mean_length"]),
            truncated=rounded(known["truncated"]),
            dead_groups=rounded(known["frac_reward_zero_std"]),
            entropy=None if entropy is None else rounded(entropy),
            kl=None if known.get("kl") is None else rounded(known["kl"]),
            grad_norm=rounded(logs["grad_norm"]),
            learning_rate=rounded(logs["learning_rate"]),
            seconds=rounded(time.perf_counter() - self._begin),
            **{f"seconds_{part}": rounded(spent) for part, spent in seconds.items()},
        )
        self._pending.append(row)
        self._on_step(row)
        if state.global_step % self._log_every == 0 or state.global_step == state.max_steps:
            self.rows.append(mean(self._pending))
            self._pending = []
            self._on_log()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            self._on_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def step_seed(seed: int, step: int, process: int) -> int:
    """A seed for one step of one process, so that no step depends on how the ones before it were run."""
    return int(np.random.SeedSequence((seed, step, process)).generate_state(1, np.uint64)[0] >> 1)

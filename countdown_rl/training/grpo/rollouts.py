"""A round of completions, sampled by a decoder of this package, by transformers or by vLLM, and graded."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object

from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.generate import (
    Completion,
    batches,
    decoder_of,
    generate,
    max_rows,
    to_completion,
)
from countdown_rl.inference.graph_decoder import GraphDecoder
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import chat_template
from countdown_rl.models.shape import ModelShape, check_context
from countdown_rl.tasks.task import Row
from countdown_rl.training.grpo import advantages, rewards
from countdown_rl.training.grpo.prompts import Outcome, Prompt

if TYPE_CHECKING:
    from countdown_rl.inference.cpu_decoder import Decoder
    from countdown_rl.training.grpo.trl_internals import RoundTrainer

    OwnDecoder = Decoder | GraphDecoder | None

#: Completions of an evaluation on which each process measures the KL divergence from the initial policy.
KL_COMPLETIONS = 64
#: Maximum attempts of a round. Where half of the groups have reward variance, four fill 94% of it. Where none has, the
#: run needs easier puzzles, not more attempts.
MAX_ATTEMPTS = 4


@dataclass
class Graded:
    """A completion with its grade."""

    prompt: str
    prompt_ids: list[int]
    ids: list[int]
    logps: list[float] | None  # the log-probabilities with which vLLM sampled *ids*
    sample: Sample
    rewards: dict[str, float | None] = field(default_factory=dict)  # None if it does not apply
    index: int = 0  # of its row
    advantage: float = 0.0  # mean over its tokens


@dataclass
class Round:
    """The completions of a round in this process, those of a puzzle side by side."""

    graded: list[Graded]
    generation: float  # seconds spent on completions
    reward: float  # seconds spent on their grades and rewards
    attempts: int | None = None  # groups that all processes sampled; None without dynamic sampling
    logged: list[tuple[str, float]] = field(
        default_factory=list
    )  # the metrics of the user's rewards
    outcomes: list[Outcome] = field(
        default_factory=list
    )  # the groups of all processes, for a sampler

    def totals(self, weights: Mapping[str, float]) -> torch.Tensor:
        """The weighted sums (B,) of the rewards; NaN where none applies."""
        values = np.array(
            [[graded.rewards[name] for name in weights] for graded in self.graded], np.float32
        )
        return advantages.total(torch.from_numpy(values), torch.tensor(list(weights.values())))

    def groups(self, weights: Mapping[str, float], size: int) -> list[tuple[list[Graded], bool]]:
        """The groups of *size* completions, each with True if its rewards vary."""
        varies = advantages.varies(self.totals(weights).view(-1, size))
        return [
            (self.graded[size * index : size * (index + 1)], each)
            for index, each in enumerate(varies)
        ]


class Rollouts:
    """``rollout_func`` of a ``RoundTrainer`` on a data set of indices into *rows*; *weights* name the rewards."""

    def __init__(self, rows: Sequence[Row], stop: Stop, weights: Mapping[str, float]) -> None:
        self.rows, self.stop, self.weights = rows, stop, weights
        self._rewards = {name: rewards.reward(name) for name in weights}
        self.keeps_graphs = False  # during the loss
        self._graphs: GraphDecoder | None = None

    def __call__(self, prompts: Sequence[Prompt], trainer: "RoundTrainer") -> dict[str, object]:
        """Complete the rows of *prompts*, those of a group side by side, also in a column for the reward functions."""
        sampled = self.rewarded(prompts, trainer)
        logps = [graded.logps for graded in sampled.graded]
        return {
            "prompt_ids": [graded.prompt_ids for graded in sampled.graded],
            "completion_ids": [graded.ids for graded in sampled.graded],
            "logprobs": None if None in logps else logps,
            "round": sampled,
        }

    def rewarded(self, prompts: Sequence[Prompt], trainer: "RoundTrainer") -> Round:
        """Complete, grade and reward the rows of *prompts*."""
        sampled = self.sample(prompts, trainer)
        begin, samples = time.perf_counter(), [graded.sample for graded in sampled.graded]
        columns = {
            "prompts": [graded.prompt for graded in sampled.graded],
            "completion_ids": [graded.ids for graded in sampled.graded],
            "trainer_state": trainer.state,
            "log_metric": rewards.metrics_into(sampled.logged, samples),
        }
        for name, function in self._rewards.items():
            for graded, value in zip(
                sampled.graded, rewards.values(name, function, samples, columns), strict=True
            ):
                graded.rewards[name] = value
        sampled.reward += time.perf_counter() - begin
        return sampled

    def sample(self, prompts: Sequence[Prompt], trainer: "RoundTrainer") -> Round:
        """Complete and grade the rows of *prompts*, each after its hint."""
        begin = time.perf_counter()
        pairs = [prompt if isinstance(prompt, tuple) else (prompt, "") for prompt in prompts]
        rendered = {pair: self._render(*pair) for pair in dict.fromkeys(pairs)}
        texts = [text + hint for text, hint in rendered.values()]
        prompt_ids = dict(
            zip(rendered, chat_template.token_ids(self.stop.tokenizer, texts), strict=True)
        )
        if any(hint for _, hint in rendered.values()):
            context, longest = (
                ModelShape.of(trainer.model.config).context_length,
                max(map(len, prompt_ids.values())),
            )
            check_context(
                context, longest, trainer.args.max_completion_length, "--max-completion-length"
            )
        completions, logps = self.complete(
            [prompt_ids[pair] for pair in pairs], trainer, self._decoder(trainer)
        )
        if self._graphs is not None and not self.keeps_graphs:
            self._graphs.release()
        sampled = time.perf_counter()
        graded = []
        for pair, ids, own_logps in zip(pairs, completions, logps, strict=True):
            row, (text, hint) = self.rows[pair[0]], rendered[pair]
            completion = to_completion(self.stop, ids)
            details = {"hint": hint} if hint else {}
            completion = replace(completion, text=hint + completion.text, details=details).after(
                row, text
            )
            sample = Sample.of(row, completion)
            graded.append(
                Graded(text + hint, prompt_ids[pair], ids, own_logps, sample, index=pair[0])
            )
        return Round(graded, sampled - begin, time.perf_counter() - sampled)

    def _render(self, index: int, hint: str) -> tuple[str, str]:
        """The rendered prompt of the row at *index*, and the part of *hint* that continues it."""
        row = self.rows[index]
        prompt = chat_template.render(self.stop.tokenizer, row.messages())
        return prompt, chat_template.Rendered(prompt, row.prompt().prefill).continuation(hint)

    def validate(
        self, prompts: Sequence[str], trainer: "RoundTrainer", temperature: float
    ) -> list[Completion]:
        """A completion of each rendered prompt; in several processes each decodes a share of them."""
        share = -(-len(prompts) // trainer.accelerator.num_processes)
        begin = share * trainer.accelerator.process_index
        own = [prompts[index % len(prompts)] for index in range(begin, begin + share)]
        prompt_ids = chat_template.token_ids(self.stop.tokenizer, own)
        policy, args, decoder = (
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.args,
            self._decoder(trainer),
        )

        def capacity(length: int) -> int:
            if decoder is None:  # one size in all processes, which may have to take part
                return int(args.per_device_train_batch_size * args.steps_per_generation)
            return max_rows(policy, decoder, length, args.max_completion_length, training=True)

        sampled: dict[int, list[int]] = {}
        for batch in batches(list(map(len, prompt_ids)), capacity):
            completions, _ = self.complete(
                [prompt_ids[index] for index in batch], trainer, decoder, temperature
            )
            sampled |= zip(batch, completions, strict=True)
        if self._graphs is not None:  # of batches larger than those of a round
            self._graphs.release()
        scored = [sampled[index] for index in range(min(share, KL_COMPLETIONS))]
        divergences = trainer.divergence(prompt_ids[:KL_COMPLETIONS], scored)
        own_completions = [to_completion(self.stop, sampled[index]) for index in range(share)]
        for index, divergence in enumerate(divergences):
            own_completions[index] = replace(own_completions[index], details={"kl": divergence})
        return gather_object(own_completions)[: len(prompts)]

    def _decoder(self, trainer: "RoundTrainer") -> "OwnDecoder":
        """The decoder of this package for the policy of *trainer*, None if an engine or ``generate`` completes."""
        policy, config = trainer.accelerator.unwrap_model(trainer.model), trainer.args
        plain = (
            not (config.generation_kwargs or config.cache_implementation)
            and config.repetition_penalty == 1.0
        )
        if trainer.use_vllm or not plain:
            return None
        if self._graphs is None or self._graphs.model is not policy:
            half = torch.float16 if config.fp16 else torch.float32
            decoder = decoder_of(policy, torch.bfloat16 if config.bf16 else half)
            if not isinstance(decoder, GraphDecoder):
                return decoder  # a CPU decoder holds a copy of the weights
            self._graphs = decoder
        return self._graphs

    def complete(
        self,
        prompt_ids: list[list[int]],
        trainer: "RoundTrainer",
        decoder: "OwnDecoder",
        temperature: float
        | None = None,  # of separate prompts; None for that of training, and prompts in groups
    ) -> tuple[list[list[int]], Sequence[list[float] | None]]:
        """Completions up to their ends, and the log-probabilities with which vLLM sampled them, else None for each."""
        config = trainer.args
        trainer.model.eval()  # no LoRA dropout while sampling
        logps: Sequence[list[float] | None] = [None] * len(prompt_ids)
        if trainer.use_vllm:
            completions, logps = self._by_vllm(prompt_ids, trainer, temperature)
        elif decoder is not None:
            temperature = config.temperature if temperature is None else temperature
            samplers = (temperature, config.top_p, config.top_k or 0, config.min_p or 0.0)
            completions = decoder.decode(
                prompt_ids, Decoding(config.max_completion_length, *samplers), self.stop
            )
        else:
            completions = self._by_transformers(prompt_ids, trainer, temperature)
        trainer.model.train()
        return completions, logps

    def _by_transformers(
        self, prompt_ids: list[list[int]], trainer: "RoundTrainer", temperature: float | None
    ) -> list[list[int]]:
        from transformers import GenerationConfig
        from trl.distributed import DistributedBackend
        from trl.models import unwrap_model_for_generation

        settings, args = dict(trainer.generation_kwargs), trainer.args
        if temperature:
            settings["temperature"] = temperature
        elif temperature is not None:
            settings |= dict.fromkeys(("temperature", "top_p", "top_k", "min_p")) | {
                "do_sample": False
            }
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=args.ds3_gather_for_generation,
                generation_kwargs=settings,  # and none of the checkpoint
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
            DistributedBackend(trainer.accelerator).summon_full_params(
                trainer.model_wrapped, recurse=False
            ),
        ):
            config = GenerationConfig(**settings, disable_compile=True)
            return generate(model, self.stop, prompt_ids, generation_config=config)

    def _by_vllm(
        self, prompt_ids: list[list[int]], trainer: "RoundTrainer", temperature: float | None
    ) -> tuple[list[list[int]], list[list[float]]]:
        trainer.sync_engine()
        engine = trainer.vllm_generation
        engine.temperature = trainer.temperature if temperature is None else temperature
        count = trainer.num_generations if temperature is None else 1
        _, sampled, logps, _ = engine.generate(
            prompts=prompt_ids, images=None, num_generations=count
        )
        completions = [self.stop.cut(ids) for ids in sampled]
        pairs = zip(logps, completions, strict=True)
        # Of each token only the log-probability of the sampled one is asked for.
        return completions, [[token[0] for token in row[: len(ids)]] for row, ids in pairs]


class DynamicRollouts(Rollouts):
    """Dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476): groups with equal rewards are resampled.

    The puzzles of an attempt depend on the seed, the step and the attempt alone, so a resumed run samples the same.
    """

    def __init__(self, *args: Any, seed: int) -> None:
        super().__init__(*args)
        self._seed = seed

    def rewarded(self, prompts: Sequence[Prompt], trainer: "RoundTrainer") -> Round:
        """Complete, grade and reward the rows of *prompts*, and others in place of zero-std groups."""
        sampled, size = super().rewarded(prompts, trainer), trainer.num_generations
        processes = trainer.accelerator.num_processes
        groups = sampled.groups(self.weights, size)
        sampled.attempts = len(groups) * processes
        for attempt in range(1, MAX_ATTEMPTS):
            missing = [index for index, (_, varies) in enumerate(groups) if not varies]
            most = max(
                gather_object([len(missing)])
            )  # all processes complete as many: with some engines they must
            if not most:
                break
            rng = np.random.default_rng((self._seed, trainer.state.global_step, attempt))
            new = rng.integers(len(self.rows), size=(processes, most))
            more = super().rewarded(
                new[trainer.accelerator.process_index].repeat(size).tolist(), trainer
            )
            varied = (group for group in more.groups(self.weights, size) if group[1])
            for index, group in zip(missing, varied, strict=False):
                groups[index] = group
            sampled.attempts += most * processes
            sampled.generation += more.generation
            sampled.reward += more.reward
            sampled.logged += more.logged
        sampled.graded = [graded for group, _ in groups for graded in group]
        return sampled

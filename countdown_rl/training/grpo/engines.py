"""Engines that complete prompts with the present policy of a trainer."""

from dataclasses import replace
from typing import Protocol

import torch
from trl import GRPOTrainer

from countdown_rl.inference.cpu_decoder import Decoder, supports
from countdown_rl.inference.generate import generate
from countdown_rl.inference.sampling import Stop

#: Completions, and the log-probabilities with which an engine other than the policy sampled them.
Completions = tuple[list[list[int]], list[list[float]] | None]


class RolloutEngine(Protocol):
    """Completes prompts up to their ends with the policy of *trainer*; temperature 0 is greedy.

    The other sampling parameters are those of the trainer's ``decoding``.
    """

    def __call__(
        self, trainer: GRPOTrainer, prompt_ids: list[list[int]], temperature: float
    ) -> Completions:
        """Return the completions of *prompt_ids*."""


class PolicyEngine:
    """The policy itself: by the decoder of this package, else by ``generate`` of transformers."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def __call__(
        self, trainer: GRPOTrainer, prompt_ids: list[list[int]], temperature: float
    ) -> Completions:
        config = trainer.args
        model = trainer.accelerator.unwrap_model(trainer.model)
        settings = config.generation_kwargs or config.cache_implementation
        if settings or config.repetition_penalty != 1.0 or not supports(model):
            return self._generate(trainer, prompt_ids, temperature), None
        dtype = torch.bfloat16 if config.bf16 else torch.float32
        decoding = replace(trainer.decoding, temperature=temperature)
        return Decoder(model, dtype).decode(prompt_ids, decoding, self.stop), None

    def _generate(
        self, trainer: GRPOTrainer, prompt_ids: list[list[int]], temperature: float
    ) -> list[list[int]]:
        from transformers import GenerationConfig
        from trl.distributed import DistributedBackend
        from trl.models import unwrap_model_for_generation

        settings = trainer.generation_kwargs | {"temperature": temperature}
        if not temperature:
            settings |= dict.fromkeys(("temperature", "top_p", "top_k", "min_p"))
            settings["do_sample"] = False
        args = trainer.args
        backend = DistributedBackend(trainer.accelerator)
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=args.ds3_gather_for_generation,
                generation_kwargs=settings,  # and none of the checkpoint
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
            backend.summon_full_params(trainer.model_wrapped, recurse=False),
        ):
            config = GenerationConfig(**settings, disable_compile=True)
            return generate(model, self.stop, prompt_ids, generation_config=config)

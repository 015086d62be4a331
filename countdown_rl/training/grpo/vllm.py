"""Rollouts by vLLM: the engine of ``eval`` with the present adapter, or TRL's for all weights."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from trl import GRPOTrainer

from countdown_rl.core import processes
from countdown_rl.core.errors import ModelError
from countdown_rl.inference import engines
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.inference.vllm import Vllm, unsupported_weights
from countdown_rl.inference.vllm_server import VllmServer
from countdown_rl.models import load, lora, reference
from countdown_rl.training import trl_fields
from countdown_rl.training.grpo.engines import Completions
from countdown_rl.training.options import TrainOptions

#: The field of TRL with the address of a server.
SERVER = "vllm_server_base_url"
#: Share of a GPU that vLLM gets, as in TRL; the rest is for the loss.
_SHARE = 0.3


def asked(options: TrainOptions) -> bool:
    """Return True if vLLM is chosen by name or by the address of a server."""
    return options.rollouts == "vllm" or SERVER in trl_fields.split(options.trl)


def chosen(options: TrainOptions, loaded: load.Loaded) -> str:
    """Return the engine of a run of the skeleton *loaded*, "transformers" or "vllm".

    "auto" is vLLM where a server is given, or where it is installed, there is a GPU, and it
    computes with the weights of training.
    """
    if options.rollouts == "transformers":
        return "transformers"
    asks_server = SERVER in trl_fields.split(options.trl) and options.tune == "lora"
    package = "openai" if asks_server else "vllm"
    reason = unsupported_weights(loaded.ref) or engines.missing_package(package)
    if options.tune == "lora" and processes.world_size() > 1:
        reason = "gets the adapter from one process, and this run has several"
    if reason and asked(options):
        raise ModelError(f"vllm {reason}; use --rollouts transformers.", option="rollouts")
    automatic = loaded.device == "cuda" and loaded.precision != "nf4" and options.tune == "lora"
    if asked(options) or (automatic and not reason):
        return "vllm"
    return "transformers"


class AdapterEngine:
    """vLLM over the base of the policy; the adapter is saved once a step and given by its path.

    Args:
        loaded: the policy.
        stop: end of a completion.
        options: of the run.
        length: tokens of the longest prompt and completion together.
        directory: that a server shares.
    """

    def __init__(
        self, loaded: load.Loaded, stop: Stop, options: TrainOptions, length: int, directory: Path
    ) -> None:
        fields = trl_fields.split(options.trl)
        directory.mkdir(parents=True, exist_ok=True)
        self.adapter = TemporaryDirectory(dir=directory, prefix="adapter-")
        self.step = -1  # of the saved adapter
        self.engine: Vllm | VllmServer
        if url := fields.get(SERVER):
            self.engine = VllmServer(url, stop)
            return
        ranks = [max(layer.r.values()) for layer in loaded.model.modules() if hasattr(layer, "r")]
        self.engine = Vllm(
            reference.local_path(loaded.ref.base or loaded.ref),
            stop,
            Decoding(options.max_completion_length, seed=options.seed),
            precision="bf16" if loaded.precision == "nf4" else loaded.precision,
            lora_rank=max([options.lora_r, *ranks]),
            sleeps=True,
            gpu_memory_utilization=float(fields.get("vllm_gpu_memory_utilization", _SHARE)),
            trust_remote_code=loaded.ref.trust_remote_code,
        )
        self.engine.prepare(length)

    def __call__(
        self, trainer: GRPOTrainer, prompt_ids: list[list[int]], temperature: float
    ) -> Completions:
        adapter = Path(self.adapter.name)
        if self.step != trainer.state.global_step:
            lora.save(trainer.accelerator.unwrap_model(trainer.model), adapter, base="")
            self.step = trainer.state.global_step
        seed = int(torch.randint(2**31, ()))  # of the step, by the callback
        decoding = replace(trainer.decoding, temperature=temperature, seed=seed)
        sampled = self.engine.sample(prompt_ids, decoding, adapter=adapter, logps=True)
        return [row.ids for row in sampled], [row.logps for row in sampled]


class TrlEngine:
    """TRL's own vLLM (``use_vllm``), which gets all weights."""

    def __init__(self) -> None:
        self.step = -1  # of the weights

    def __call__(
        self, trainer: GRPOTrainer, prompt_ids: list[list[int]], temperature: float
    ) -> Completions:
        engine = trainer.vllm_generation
        if self.step != trainer.state.global_step:
            engine.sync_weights()
            self.step = trainer.state.global_step
        engine.temperature = temperature
        # It completes each prompt so often, and takes equal ones for a group.
        count = trainer.num_generations if temperature else 1
        _, sampled, logps, _ = engine.generate(
            prompts=prompt_ids, images=None, num_generations=count
        )
        completions = []
        log_probabilities = []
        for ids, row in zip(sampled, logps, strict=True):
            completion = trainer.stop.cut(ids)
            completions.append(completion)
            # Of each token only the log-probability of the sampled one is asked for.
            log_probabilities.append([token[0] for token in row[: len(completion)]])
        return completions, log_probabilities

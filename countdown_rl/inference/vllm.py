"""The vLLM engine, through its offline ``LLM.generate`` (0.30)."""

import atexit
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from countdown_rl.core import processes
from countdown_rl.core.errors import ModelError
from countdown_rl.inference import generate
from countdown_rl.inference.engines import Engine
from countdown_rl.inference.generate import Completion
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import load, lora, model_files
from countdown_rl.models.reference import ModelRef, local_path, without_weights

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: Rows submitted at once. vLLM schedules them itself; finished ones are saved after each submission.
_ROWS = 1024
#: Tokens times parameters from which "auto" takes vLLM: its start takes about a minute.
_WORTH_ITS_START = 20_000 * 10**9
#: Values that vLLM accepts as the maximum rank of an adapter.
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def unsupported_weights(ref: ModelRef) -> str:
    """The reason why vLLM cannot run the weights of *ref* without its adapter, or ""."""
    base = ref.base or ref
    if base.kind == "gguf":
        return f"does not run GGUF files, and {base.source} is one"
    config = model_files.quantization_config(local_path(without_weights(base)))
    in_4_bits = config.get("quant_method") == "bitsandbytes"
    return f"does not run NF4 weights, and {base.source} has them" if in_4_bits else ""


class Vllm(Engine):
    """A full checkpoint in vLLM, or an adapter over one; it batches continuously and caches shared prompt prefixes."""

    name = package = "vllm"
    storage = "vllm"
    device = "cuda"
    libraries: tuple[str, ...] = ("torch", "vllm")

    def __init__(self, ref: ModelRef, decoding: Decoding, options: Any) -> None:
        self._ref, self._decoding, self._tensor_parallel = ref, decoding, options.tensor_parallel
        self._llm: Any = None
        self._lora_request: Any = None
        self.precision = load.trained_precision(ref, options.precision)
        self.tokenizer = load.load_tokenizer(ref)
        self._stop = Stop(self.tokenizer, None, generate.STOP)

    @classmethod
    def load(cls, ref: ModelRef, decoding: Decoding, options: Any) -> "Vllm":
        return cls(ref, decoding, options)

    @classmethod
    def is_automatic(cls, ref: ModelRef, tokens: float) -> bool:
        import torch

        light = without_weights(ref.base or ref)
        return (
            torch.cuda.is_available()
            and tokens * load.skeleton(light).num_parameters() >= _WORTH_ITS_START
        )

    @classmethod
    def unsupported(cls, ref: ModelRef, options: Any) -> str:
        if reason := unsupported_weights(ref):
            return f"{reason}; leave --engine out"
        if load.trained_precision(ref, options.precision) == "nf4":
            return (
                "does not run NF4 weights; leave --engine out, or merge an adapter over them first"
            )
        if ref.base is not None and not lora.is_uniform(
            model_files.adapter_config(local_path(ref))
        ):
            return f"supports LoRA of one rank and scale, without variants and biases; merge {ref.source} first"
        if processes.launched():
            return "starts its own processes; give --tensor-parallel in place of --processes"
        if options.device not in ("auto", "cuda"):
            return f"runs on a GPU; leave --device {options.device} out"
        return ""

    def prepare(self, length: int) -> int | None:
        options: dict[str, Any] = {}
        if self._ref.base is not None:
            options = lora_options(model_files.adapter_config(local_path(self._ref)).get("r", 8))
        path = local_path(self._ref.base or self._ref)
        model_files.check_files(path)
        if load.device_name("auto") == "cpu":
            # There vLLM starts a worker process, which outlives a command that a signal ends.
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        silence_exit()
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        try:
            self._llm = LLM(
                model=str(path),
                load_format="safetensors",
                max_model_len=length,
                seed=self._decoding.seed,
                enable_prefix_caching=True,
                tensor_parallel_size=self._tensor_parallel,
                trust_remote_code=self._ref.trust_remote_code,
                dtype=_DTYPES.get(self.precision, "auto"),
                **options,
            )
        except (
            ValueError,
            RuntimeError,
        ) as error:  # a longer context than the model's, or an unknown architecture
            raise ModelError(
                f"vLLM cannot load the model: {' '.join(str(error).split()):.300}"
            ) from error
        if self._ref.base is not None:
            self._lora_request = LoRARequest("adapter", 1, str(local_path(self._ref)))
            ids = self.tokenizer("3 7 50")["input_ids"]
            # vLLM ignores LoRA in some hybrid models (vllm-project/vllm issue 49354).
            if log_probabilities(self._llm, ids, None) == log_probabilities(
                self._llm, ids, self._lora_request
            ):
                advice = "merge it, or give --engine transformers"
                raise ModelError(f"vLLM ignores the adapter {self._ref.source}; {advice}.")
        return None

    def max_rows(self, prompt: int, completion: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        from vllm import SamplingParams

        decoding = self._decoding
        params = [
            SamplingParams(
                **decoding.samplers(),
                max_tokens=decoding.max_new_tokens,
                seed=generate.row_seed(decoding.seed, number, index),
                stop=[generate.STOP],
                include_stop_str_in_output=True,
            )
            for index in range(len(prompts))
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results = self._llm.generate(
            inputs, params, use_tqdm=False, lora_request=self._lora_request
        )
        completions = []
        for output in (result.outputs[0] for result in results):
            ids = self._stop.cut(list(output.token_ids))
            # The model's generation config may name end tokens that the tokenizer does not.
            ended = output.finish_reason == "stop"
            limits = self._decoding.shorter_limits
            completions.append(
                generate.to_completion(self._stop, ids, ended=ended, shorter_limits=limits)
            )
        return completions


def lora_options(rank: int) -> dict[str, Any]:
    """The options of an ``LLM`` for an adapter of *rank*."""
    return {
        "enable_lora": True,
        "max_lora_rank": min((size for size in LORA_RANKS if size >= rank), default=rank),
    }


def log_probabilities(llm: Any, ids: list[int], lora_request: Any) -> list[float]:
    """The log-probabilities (T - 1,) of *ids* (T,) after the first."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    inputs = [{"prompt_token_ids": ids}]
    (output,) = llm.generate(
        inputs, sampling_params=params, use_tqdm=False, lora_request=lora_request
    )
    return [
        step[token].logprob for token, step in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
    ]


@cache
def silence_exit() -> None:
    """Discard stderr at exit: triton reports 30 lines of what it did not free."""
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))

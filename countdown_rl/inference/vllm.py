"""The engine ``vllm``: vLLM's offline ``LLM`` (0.30), for evaluation and for rollouts.

An adapter is named by the digest of its weights: no cached prompt belongs to an earlier one.
"""

import atexit
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from countdown_rl.core import processes
from countdown_rl.core.errors import ModelError
from countdown_rl.core.types import JsonObject
from countdown_rl.inference.engine import STOP, Completion, Engine, row_seed, to_completion
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import load, lora, model_files
from countdown_rl.models.reference import ModelRef, local_path, without_weights

if TYPE_CHECKING:
    from vllm import LLM, CompletionOutput

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: Rows submitted at once; vLLM schedules them, and their completions are saved together.
_ROWS = 1024


class Continuation(NamedTuple):
    """Tokens of a completion, and the log-probability of each."""

    ids: list[int]
    logps: list[float]


class Vllm(Engine):
    """vLLM's offline ``LLM`` over a full checkpoint; it caches shared prompt prefixes.

    Args:
        path: directory of the checkpoint.
        stop: end of a completion.
        decoding: sampling parameters of :meth:`complete`; its seed is that of the engine.
        precision: "bf16", "fp16", "fp32", or that of the checkpoint.
        lora_rank: maximum rank of an adapter; 0 for none.
        adapter: directory of the adapter of :meth:`complete`.
        sleeps: frees the memory of a GPU between calls of :meth:`sample`.
        settings: further arguments of ``LLM``.
    """

    name = package = "vllm"
    storage = "vllm"
    device = "cuda"
    libraries: tuple[str, ...] = ("torch", "vllm")

    def __init__(
        self,
        path: Path,
        stop: Stop,
        decoding: Decoding,
        *,
        precision: str = "auto",
        lora_rank: int = 0,
        adapter: Path | None = None,
        sleeps: bool = False,
        **settings: object,
    ) -> None:
        self.stop = stop
        self.tokenizer = stop.tokenizer
        self.precision = precision
        self._path = path
        self._decoding = decoding
        self._adapter = adapter
        self._sleeps = sleeps and load.device_name("auto") != "cpu"  # a CPU has no sleep mode
        self._settings = settings
        if lora_rank:  # vLLM accepts powers of two from 8 as the maximum
            maximum = max(8, 1 << (lora_rank - 1).bit_length())
            self._settings |= {"enable_lora": True, "max_lora_rank": maximum}
        self._llm: LLM

    @classmethod
    def load(cls, ref: ModelRef, decoding: Decoding, options: Any) -> "Vllm":
        adapter = local_path(ref) if ref.base else None
        return cls(
            local_path(ref.base or ref),
            Stop(load.load_tokenizer(ref), load.skeleton(ref.base or ref), STOP),
            decoding,
            precision=load.trained_precision(ref, options.precision),
            lora_rank=model_files.adapter_config(adapter).get("r", 8) if adapter else 0,
            adapter=adapter,
            trust_remote_code=ref.trust_remote_code,
        )

    @classmethod
    def unsupported(cls, ref: ModelRef, options: Any) -> str:
        if reason := unsupported_weights(ref):
            return f"{reason}; leave --engine out"
        if load.trained_precision(ref, options.precision) == "nf4":
            advice = "leave --engine out, or merge an adapter over them first"
            return f"does not run NF4 weights; {advice}"
        if processes.launched():
            return "evaluates in one process; start it without a launcher"
        return ""

    def prepare(self, length: int) -> int | None:
        """Start the engine; raises ModelError if it cannot, or ignores the adapter."""
        model_files.check_files(self._path)
        # A worker process outlives a command that a signal ends.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        silence_exit()
        from vllm import LLM

        try:
            self._llm = LLM(
                model=str(self._path),
                load_format="safetensors",
                max_model_len=length,
                seed=self._decoding.seed,
                dtype=_DTYPES.get(self.precision, "auto"),
                enable_prefix_caching=True,
                enable_sleep_mode=self._sleeps,
                logprobs_mode="processed_logprobs",
                **self._settings,
            )
        except (ValueError, RuntimeError) as error:  # too long a context, an unknown architecture
            reason = " ".join(str(error).split())
            raise ModelError(f"vLLM cannot load the model: {reason:.300}") from error
        if self._adapter:
            # vLLM ignores LoRA in some hybrid models (vllm-project/vllm issue 49354).
            prompts = [self.tokenizer("3 7 50")["input_ids"]]
            decoding = Decoding(4, temperature=1.0)
            base = self.sample(prompts, decoding, logps=True)
            if self.sample(prompts, decoding, adapter=self._adapter, logps=True) == base:
                advice = "merge it, or give --engine transformers"
                raise ModelError(f"vLLM ignores the adapter {self._adapter}; {advice}.")
        if self._sleeps:
            self._llm.sleep(level=1)
        return None

    def max_rows(self, length: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        rows = self.sample(prompts, self._decoding, number, self._adapter)
        return [to_completion(self.stop, row.ids) for row in rows]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        number: int = 0,
        adapter: Path | None = None,
        *,
        logps: bool = False,
    ) -> list[Continuation]:
        """Complete each of *prompts* (token ids).

        Args:
            prompts: token ids, those of a group side by side.
            decoding: sampling parameters; the completions depend on its seed and *number* alone.
            number: number of the batch, with random numbers of its own.
            adapter: directory of the adapter over the base.
            logps: returns the log-probabilities in the distribution that was sampled from.
        """
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        params = []
        for index in range(len(prompts)):
            seed = row_seed(decoding.seed, number, index)
            params.append(SamplingParams(seed=seed, **sampling(self.stop, decoding, logps=logps)))
        request = None
        if adapter:
            name = adapter_name(adapter)
            request = LoRARequest(name, int(name[:7], 16) + 1, str(adapter))  # above 0
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        if self._sleeps:
            self._llm.wake_up()
        results = self._llm.generate(inputs, params, use_tqdm=False, lora_request=request)
        if self._sleeps:  # the weights go to main memory, and the cache is dropped
            self._llm.sleep(level=1)
        return [self._sampled(result.outputs[0]) for result in results]

    def _sampled(self, output: "CompletionOutput") -> Continuation:
        ids = self.stop.cut(list(output.token_ids))
        steps = output.logprobs or ()
        logps = [step[token].logprob for token, step in zip(ids, steps, strict=False)]
        return Continuation(ids, logps)


def unsupported_weights(ref: ModelRef) -> str:
    """The reason why vLLM cannot run the weights of *ref*, or ""."""
    base = ref.base or ref
    if base.kind == "gguf":
        return f"does not run GGUF files, and {base.source} is one"
    config = model_files.quantization_config(local_path(without_weights(base)))
    if config.get("quant_method") == "bitsandbytes":
        return f"does not run NF4 weights, and {base.source} has them"
    if ref.base and not lora.is_uniform(model_files.adapter_config(local_path(ref))):
        return "supports LoRA of one rank and scale, without variants and biases"
    return ""


def sampling(stop: Stop, decoding: Decoding, *, logps: bool) -> JsonObject:
    """The settings of ``SamplingParams`` for *decoding* up to *stop*."""
    return decoding.samplers() | {
        "max_tokens": decoding.max_new_tokens,
        "stop": [stop.text],
        "stop_token_ids": sorted(stop.ids),
        "include_stop_str_in_output": True,
        "logprobs": 0 if logps else None,  # 0: of the sampled token alone
    }


def adapter_name(adapter: Path) -> str:
    """The name of *adapter* in an engine: the digest of its weights."""
    with (adapter / lora.WEIGHTS).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def silence_exit() -> None:
    """Discard stderr at exit: triton reports 30 lines of what it did not free."""
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))

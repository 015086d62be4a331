"""vLLM as an engine, by its offline ``LLM.generate``."""

from collections.abc import Sequence
from typing import Any

from countdown_rl.errors import ModelError
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef, files

_TYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32"}

#: Rows that are handed over at once; vLLM schedules them itself, and what is finished is kept after each lot.
_ROWS = 1024


class Vllm:
    """A whole checkpoint in vLLM, which batches by itself and keeps the cache of prefixes that prompts share."""

    name = "vllm"
    path = "vllm"
    device = "cuda"
    note = ""
    libraries: tuple[str, ...] = ("torch", "vllm")

    def __init__(
        self, ref: ModelRef, decoding: Decoding, *, precision: str = "auto", trust_remote_code: bool = False
    ) -> None:
        from countdown_rl.inference.cpu_decoder import Stop

        self._model, self._decoding = str(files(ref)), decoding
        self._trust = trust_remote_code
        self._llm: Any = None
        self.precision = precision
        self.tokenizer = load.load_tokenizer(ref)
        self._stop = Stop(self.tokenizer, None, generate.STOP)

    def prepare(self, length: int) -> int | None:
        from vllm import LLM

        try:
            self._llm = LLM(
                model=self._model,
                dtype=_TYPES[self.precision],
                max_model_len=length,
                seed=self._decoding.seed % 2**32,
                enable_prefix_caching=True,
                trust_remote_code=self._trust,
            )
        except ValueError as error:  # a context that the model has not, an architecture that vLLM has not
            raise ModelError(f"vLLM cannot hold the model: {str(error).splitlines()[0]}") from error
        return None

    def rows(self, length: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        from vllm import SamplingParams

        decoding = self._decoding
        params = [
            SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=generate.row_seed(decoding.seed, number, at) % 2**63,
                stop=[generate.STOP],
                include_stop_str_in_output=True,
            )
            for at in range(len(prompts))
        ]
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return [
            self._completion(list(result.outputs[0].token_ids))
            for result in self._llm.generate(given, params, use_tqdm=False)
        ]

    def close(self) -> None:
        self._llm = None  # it holds most of the GPU as long as anything refers to it
        generate.release()

    def _completion(self, written: list[int]) -> Completion:
        ids = self._stop.cut(written)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(text, len(ids), bool(ids) and self._stop(ids))

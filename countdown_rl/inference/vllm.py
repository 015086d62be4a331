"""The vLLM engine, through its offline ``LLM.generate``."""

from collections.abc import Sequence
from typing import Any

from countdown_rl.errors import ModelError, first_line
from countdown_rl.inference import generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef, files

_DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32"}

#: Rows submitted at once. vLLM schedules them itself; finished ones are saved after each submission.
_ROWS = 1024


class Vllm:
    """A full checkpoint in vLLM, which batches continuously and caches shared prompt prefixes."""

    name = "vllm"
    storage = "vllm"
    device = "cuda"
    note = ""
    libraries: tuple[str, ...] = ("torch", "vllm")

    def __init__(
        self, ref: ModelRef, decoding: Decoding, *, precision: str = "auto", trust_remote_code: bool = False
    ) -> None:
        from countdown_rl.inference.cpu_decoder import Stop

        self._model, self._decoding = str(files(ref)), decoding
        self._trust_remote_code = trust_remote_code
        self._llm: Any = None
        self.precision = precision
        self.tokenizer = load.load_tokenizer(ref, trust_remote_code=trust_remote_code)
        self._stop = Stop(self.tokenizer, None, generate.STOP)

    def prepare(self, length: int) -> int | None:
        from vllm import LLM

        try:
            self._llm = LLM(
                model=self._model,
                dtype=_DTYPES[self.precision],
                max_model_len=length,
                seed=self._decoding.seed % 2**32,
                enable_prefix_caching=True,
                trust_remote_code=self._trust_remote_code,
            )
        except ValueError as error:  # a longer context than the model's, or an unknown architecture
            raise ModelError(f"vLLM cannot load the model: {first_line(error)}") from error
        return None

    def max_rows(self, length: int) -> int:
        return _ROWS

    def complete(self, prompts: Sequence[Sequence[int]], number: int = 0) -> list[Completion]:
        from vllm import SamplingParams

        decoding = self._decoding
        params = [
            SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=generate.row_seed(decoding.seed, number, index) % 2**63,
                stop=[generate.STOP],
                include_stop_str_in_output=True,
            )
            for index in range(len(prompts))
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results = self._llm.generate(inputs, params, use_tqdm=False)
        completions = (self._stop.cut(list(result.outputs[0].token_ids)) for result in results)
        return [generate.to_completion(self._stop, ids) for ids in completions]

    def close(self) -> None:
        self._llm = None  # the last reference to it, and it holds most of the GPU's memory
        generate.free_memory()

"""Rollouts by ``vllm serve``, which shares a file system with the training process.

The server is started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, ``--enable-lora`` and
``--logprobs-mode processed_logprobs``.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ModelError, first_line
from countdown_rl.inference.engine import row_seed
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.inference.vllm import Continuation, adapter_name, sampling

#: Settings of ``SamplingParams`` that OpenAI's own server does not have.
_FURTHER = ("top_k", "min_p", "stop_token_ids", "include_stop_str_in_output")


class VllmServer:
    """The server at *url*, such as ``http://127.0.0.1:8000``; *stop* ends a completion."""

    def __init__(self, url: str, stop: Stop) -> None:
        import openai

        key = os.environ.get("OPENAI_API_KEY") or "no-key-given"
        self._client = openai.OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=key)
        self.stop = stop
        try:
            self._base = self._models()[0]
        except openai.OpenAIError as error:
            raise ModelError(f"no vLLM server answers at {url}: {first_line(error)}.") from error

    def _models(self) -> list[str]:
        """The names of the base and of its adapters."""
        return [model.id for model in self._client.models.list().data]

    def _load(self, adapter: Path) -> str:
        """Load *adapter* unless the server has it, and return its name."""
        name = adapter_name(adapter)
        if name not in self._models():
            request = {"lora_name": name, "lora_path": str(adapter.absolute())}
            self._client.post("/load_lora_adapter", body=request, cast_to=str)
        return name

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        number: int = 0,
        adapter: Path | None = None,
        *,
        logps: bool = False,
    ) -> list[Continuation]:
        """As :meth:`Vllm.sample`."""
        import openai

        settings = sampling(self.stop, decoding, logps=logps)
        further = {name: settings.pop(name) for name in _FURTHER} | {"return_token_ids": True}

        def complete(index: int) -> Continuation:
            seed = row_seed(decoding.seed, number, index)
            prompt = list(prompts[index])
            response = self._client.completions.create(
                model=model, prompt=prompt, seed=seed, extra_body=further, **settings
            )
            return self._sampled(response.choices[0])

        try:
            model = self._load(adapter) if adapter else self._base
            with ThreadPoolExecutor(64) as pool:
                return list(pool.map(complete, range(len(prompts))))
        except openai.OpenAIError as error:
            reason = f"the vLLM server failed ({first_line(error)})"
            raise ModelError(f"{reason}; start it as docs/gpu.md says.") from error

    def _sampled(self, choice: Any) -> Continuation:
        ids = self.stop.cut(list(choice.token_ids))
        logps = choice.logprobs.token_logprobs[: len(ids)] if choice.logprobs else []
        return Continuation(ids, logps)

"""Rollouts by ``vllm serve``, which shares a file system with the training process.

The server is started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, ``--enable-lora`` and ``--logprobs-mode
processed_logprobs``.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ModelError, first_line
from countdown_rl.inference.engine import row_seed
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.inference.vllm import Sampled, adapter_name, sampling

#: Settings of ``SamplingParams`` that OpenAI's own server does not have.
_FURTHER = ("top_k", "min_p", "stop_token_ids", "include_stop_str_in_output")


class VllmServer:
    """The server at *url*, such as ``http://127.0.0.1:8000``; *stop* ends a completion."""

    def __init__(self, url: str, stop: Stop) -> None:
        import openai

        key = os.environ.get("OPENAI_API_KEY") or "no-key-given"
        self._client = openai.OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=key, timeout=600)
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
        import openai

        name = adapter_name(adapter)
        if name in self._models():
            return name
        request = {"lora_name": name, "lora_path": str(adapter.absolute())}
        try:
            self._client.post("/load_lora_adapter", body=request, cast_to=str)
        except openai.APIStatusError as error:
            if name not in self._models():  # by another process of this run
                advice = "start it as docs/gpu.md says"
                reason = first_line(error)
                raise ModelError(
                    f"the vLLM server cannot load an adapter ({reason}); {advice}."
                ) from error
        return name

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        number: int = 0,
        adapter: Path | None = None,
        *,
        logps: bool = False,
    ) -> list[Sampled]:
        """As :meth:`Vllm.sample`; neighbors that are equal are one request."""
        settings = sampling(self.stop, decoding)
        settings["model"] = self._base if adapter is None else self._load(adapter)
        settings["logprobs"] = 0 if logps else None
        further = {name: settings.pop(name) for name in _FURTHER} | {"return_token_ids": True}
        groups = [(list(prompt), len(list(rows))) for prompt, rows in groupby(prompts)]
        starts = [sum(size for _, size in groups[:index]) for index in range(len(groups))]

        def complete(start: int, prompt: list[int], size: int) -> list[Sampled]:
            seed = row_seed(decoding.seed, number, start)  # the server adds 1 for each
            response = self._client.completions.create(
                prompt=prompt, n=size, seed=seed, extra_body=further, **settings
            )
            choices = sorted(response.choices, key=lambda choice: choice.index)
            return [self._sampled(choice) for choice in choices]

        with ThreadPoolExecutor(min(64, len(groups))) as pool:
            results = pool.map(complete, starts, *zip(*groups, strict=True))
            return [sampled for group in results for sampled in group]

    def _sampled(self, choice: Any) -> Sampled:
        ids = self.stop.cut(list(choice.token_ids))
        logps = choice.logprobs.token_logprobs[: len(ids)] if choice.logprobs else []
        return Sampled(ids, logps, choice.finish_reason == "stop")

"""The engine ``openai``: completions from an OpenAI-compatible server.

The server holds the tokenizer and the chat template, so it gets the chat turns of a task. vLLM and
llama.cpp continue a prefilled assistant turn. Other servers get the row in the style
``model_opens``, in which the model writes the opening tag itself.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Generator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.core.types import JsonObject
from countdown_rl.inference.config import OPENAI
from countdown_rl.inference.engine import STOP, Completion, Engine, row_seed
from countdown_rl.inference.sampling import SAMPLERS, Decoding
from countdown_rl.models import chat_template
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Row

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat.chat_completion import Choice

CONCURRENCY = 16  # requests in flight
#: Of each request; the client waits up to 8 seconds before one, or as long as Retry-After says.
RETRIES = 10
#: Servers that continue a prefilled turn, by ``owned_by`` in their list of models.
PREFILLS = ("llamacpp", "vllm")
#: Parameters with which they return the text as the model wrote it, sampled by ``Decoding`` alone.
_AS_WRITTEN = {"reasoning_format": "none", "samplers": list(SAMPLERS), "repetition_penalty": 1.0}
#: Statuses of servers that show no list of their models.
_NO_LIST = (401, 403, 404, 405, 501)
_REFUSALS = ("content_filter", "content_policy_violation")


class OpenAI(Engine):
    """The model that an OpenAI-compatible server knows as *model*."""

    name = package = "openai"
    storage = "endpoint"
    precision = "unknown"
    device = "server"
    tokenizer: Any = None
    libraries: tuple[str, ...] = ("openai",)

    def __init__(self, model: str, options: Any) -> None:
        # A password would be written into the manifest.
        if not re.fullmatch(r"https?://[^\s@?]+", options.base_url):
            advice = "without a password or a query; its key is read from OPENAI_API_KEY"
            raise UsageError(
                f"should be like http://127.0.0.1:8000/v1, {advice}.", option="base_url"
            )
        self._url = options.base_url
        self._model = model
        self._concurrency = options.batch_size or CONCURRENCY
        self._decoding = Decoding.of(options)
        self._key = os.environ.get("OPENAI_API_KEY", "").strip() or "no-key-given"
        self.server = self._owner()
        self.prefills = self.server in PREFILLS
        self.endpoint = {
            "base_url": self._url,
            "server": self.server,
            "prefill": "continued" if self.prefills else "left out",
        }
        if not self.prefills and options.top_k:
            raise UsageError("is for vLLM and llama.cpp; leave it out.", option="top_k")

    def as_input(self) -> JsonObject:
        """The entry among the ``inputs`` of a manifest; its digest is of names, not of weights."""
        digest = hashlib.sha256(f"{self._url} {self._model}".encode()).hexdigest()
        return {"source": self._model, "kind": "endpoint", "base_url": self._url, "digest": digest}

    def _owner(self) -> str:
        """The ``owned_by`` of the model in the server's list of models; "" if it has no list."""
        import openai

        try:
            models = openai.OpenAI(base_url=self._url, api_key=self._key).models.list().data
        except openai.OpenAIError as error:
            if getattr(error, "status_code", None) in _NO_LIST:
                return ""
            # A server that is loading its model must not get another prompt than later.
            advice = f"start it, or give its --base-url: {first_line(error)}"
            raise ModelError(f"no server answers at {self._url}; {advice}.") from error
        models = sorted(models, key=lambda model: model.id != self._model)
        return str(models[0].owned_by) if models else ""

    def prompts(
        self, rows: Sequence[Row], max_new_tokens: int
    ) -> tuple[Sequence[Row], list[JsonObject]]:
        """As :meth:`Engine.prompts`; in a style without prefill if the server supports none."""
        if not self.prefills:
            rows = [row.without_prefill() for row in rows]
        prompts = []
        for row in rows:
            prompt = row.prompt()
            turns = prompt.messages() if self.prefills else prompt.turns()
            prompts.append({"messages": turns, "style": row.style_name})
        return rows, prompts

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]]
    ) -> Generator[tuple[int, list[Completion]]]:
        """As :meth:`Engine.complete_all`, of batches of one prompt, in the order of arrival.

        Requests in flight are canceled when the iteration ends, by a failure for example.
        """
        import openai
        from anyio.from_thread import start_blocking_portal

        client = openai.AsyncOpenAI(base_url=self._url, api_key=self._key, max_retries=RETRIES)
        limit = asyncio.Semaphore(self._concurrency)

        async def complete(
            position: int, prompt: JsonObject, number: int
        ) -> tuple[int, list[Completion]]:
            async with limit:
                return position, [await self._complete(client, prompt, number)]

        # An event loop in a thread: a notebook has one in this thread.
        with start_blocking_portal() as portal:
            pending = {
                portal.start_task_soon(complete, position, prompt, number)
                for position, (number, (prompt,)) in enumerate(batches)
            }
            while pending:
                done, pending = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
                for future in sorted(done, key=lambda future: future.exception() is not None):
                    yield future.result()

    async def _complete(self, client: Any, prompt: JsonObject, number: int) -> Completion:
        import openai

        cause: BaseException
        try:
            response = await client.chat.completions.create(**self._options(prompt, number))
            if not response.choices:  # some servers report an error with status 200
                raise ValueError(getattr(response, "error", None) or "no choices")
            return _completion(response.choices[0], response.usage, prompt)
        except openai.APIError as error:
            if error.code in _REFUSALS:
                return Completion("", 0, True, {"reason": "refused", "prompt_tokens": 0})
            cause = error.__cause__ or error
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            cause = ValueError(f"malformed response: {error}")
        reason = " ".join(str(cause).replace(self._key, "***").split()).rstrip(".")
        advice = "check --base-url, --model and OPENAI_API_KEY, or wait; run it again to resume"
        raise ModelError(f"{self._url} failed ({reason:.300}); {advice}.")

    def _options(self, prompt: JsonObject, number: int) -> JsonObject:
        """The parameters of a request."""
        decoding = self._decoding
        limit = "max_completion_tokens" if self._url == OPENAI else "max_tokens"
        options: JsonObject = {
            "model": self._model,
            "messages": prompt["messages"],
            "temperature": decoding.temperature,
            limit: decoding.max_new_tokens,
        }
        if decoding.top_p < 1 or self._url != OPENAI:  # whose reasoning models accept none
            options["top_p"] = decoding.top_p
        if decoding.temperature:
            options["seed"] = row_seed(decoding.seed, number, 0) % (2**32 - 1)
        if not self.prefills:
            return options
        further = _AS_WRITTEN | {
            "top_k": decoding.top_k,
            "min_p": decoding.min_p,
            "chat_template_kwargs": chat_template.TEMPLATE_ARGUMENTS,
        }
        if self.server == "vllm":
            prefilled = prompt["messages"][-1]["role"] == "assistant"
            further |= {
                "continue_final_message": prefilled,
                "add_generation_prompt": not prefilled,
                # It removes tags that are special tokens from the text, unless told not to.
                "skip_special_tokens": STYLES[prompt["style"]].direct,
            }
        return options | {"extra_body": further}


def _completion(
    choice: "Choice", usage: "CompletionUsage | None", prompt: JsonObject
) -> Completion:
    """The completion in *choice*: its reasoning as a thinking block, then its content."""
    message = choice.message
    if choice.finish_reason in (None, "error", "abort"):
        raise ValueError(f"finish_reason is {choice.finish_reason}")
    content = message.content or ""
    turn = prompt["messages"][-1]
    if turn["role"] == "assistant":
        content = content.removeprefix(turn["content"])
    head, end, _ = content.partition(STOP)
    text = head + end
    ended = bool(end) or choice.finish_reason != "length"
    style = STYLES[prompt["style"]]
    # Newer versions of vLLM, and OpenRouter, use the second name.
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    text = style.reopened(text)
    if reasoning:
        text = style.completion(head + end, reasoning, closed=bool(text) or ended)

    tokens = None
    details: JsonObject = {}
    if usage is not None:
        tokens = usage.completion_tokens
        details["prompt_tokens"] = usage.prompt_tokens
    if not end and (message.refusal or choice.finish_reason == "content_filter"):
        details["reason"] = "refused"
        text = text or message.refusal or ""
    return Completion(text, tokens, ended, details)

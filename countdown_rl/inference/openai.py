"""Completions from an OpenAI-compatible server, through the ``openai`` package, which retries failed requests.

The server holds the tokenizer and the chat template, so it gets the chat turns of a task. Servers that support prefill
receive a prefilled assistant turn. Others get the row in the style ``model_opens``, in which the model writes the
opening tag itself.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent import futures
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.inference import engines, generate
from countdown_rl.inference.config import OPENAI
from countdown_rl.inference.generate import Completion
from countdown_rl.inference.sampling import SAMPLERS, Decoding
from countdown_rl.models import chat_template
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Row

#: Retries of a request by the client, which waits up to 8 seconds before each, or as long as Retry-After says.
RETRIES = 10
#: Requests in flight at once, and seconds to wait for an answer, retries included.
CONCURRENCY, TIMEOUT = 16, 600.0
#: Servers that support prefill, by ``owned_by`` in their list of models, and what they need for that, for the text as
#: the model wrote it, and for sampling by the parameters of ``Decoding`` alone.
PREFILLS: dict[str, dict[str, Any]] = {
    "llamacpp": {"reasoning_format": "none", "samplers": list(SAMPLERS)},
    "vllm": {
        "stop": [generate.STOP],
        "include_stop_str_in_output": True,
        "repetition_penalty": 1.0,
    },
}
#: Parameters that some servers refuse, and statuses of servers that show no list of their models.
_OPTIONAL, _NO_LIST = ("max_tokens", "temperature", "top_p", "seed"), (401, 403, 404, 405, 501)
_REFUSALS = ("content_filter", "content_policy_violation")


class OpenAI(engines.Engine):
    """The model that an OpenAI-compatible server knows as *model*; *options* are of decoding, and of the server."""

    name = package = "openai"
    storage = "endpoint"
    precision = "unknown"
    device = "server"
    tokenizer = None
    libraries: tuple[str, ...] = ("openai",)

    def __init__(self, model: str, options: Any) -> None:
        if not re.fullmatch(
            r"https?://[^\s@?]+", options.base_url
        ):  # a password would be written into the manifest
            advice = "without a password or a query; its key is read from OPENAI_API_KEY"
            raise UsageError(
                f"should be like http://127.0.0.1:8000/v1, {advice}.", option="base_url"
            )
        engines.check_installed(self.name)
        self._url, self._model, self._decoding = options.base_url, model, Decoding.of(options)
        self._concurrency, self._timeout = options.batch_size or CONCURRENCY, TIMEOUT
        self._key = os.environ.get("OPENAI_API_KEY", "").strip() or "no-key-given"
        if not re.fullmatch(r"[!-~]+", self._key):
            raise UsageError(
                "OPENAI_API_KEY holds a line break, or a character that no key has; set it again."
            )
        self.server = self._owner()
        self.prefills = self.server in PREFILLS
        turn = "continued" if self.prefills else "left out"
        self.endpoint: dict[str, Any] = {
            "base_url": self._url,
            "server": self.server,
            "prefill": turn,
        }
        if not self.prefills and options.top_k:
            raise UsageError("is for vLLM and llama.cpp; leave it out.", option="top_k")

    def as_input(self) -> dict[str, Any]:
        """The entry for this model among the ``inputs`` of a manifest; its digest is of names, not of weights."""
        digest = hashlib.sha256(f"{self._url} {self._model}".encode()).hexdigest()
        return {"source": self._model, "kind": "endpoint", "base_url": self._url, "digest": digest}

    def prompts(
        self, rows: Sequence[Row], max_new_tokens: int
    ) -> tuple[Sequence[Row], list[dict[str, Any]]]:
        """As :meth:`Engine.prompts`; rows are in a style without prefill where the server does not support it."""
        rows = rows if self.prefills else [row.without_prefill() for row in rows]
        return rows, [
            {
                "messages": prompt.messages() if self.prefills else prompt.turns(),
                "style": row.style_name,
            }
            for row, prompt in ((row, row.prompt()) for row in rows)
        ]

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]]
    ) -> Generator[tuple[int, list[Completion]]]:
        """As :meth:`Engine.complete_all`, of batches of one prompt, in the order in which their completions arrive.
        Requests in flight are canceled when the iteration ends, by a failure for example."""
        from anyio.from_thread import start_blocking_portal
        from openai import AsyncOpenAI

        client = self._client(AsyncOpenAI, timeout=self._timeout, max_retries=RETRIES)
        limit = asyncio.Semaphore(self._concurrency)

        async def complete(
            position: int, prompt: Mapping[str, Any], number: int
        ) -> tuple[int, list[Completion]]:
            async with limit:
                return position, [await self._complete(client, prompt, number)]

        with (
            start_blocking_portal() as portal
        ):  # an event loop in a thread, as a notebook has one in this thread
            requests = (
                (index, prompt, number) for index, (number, (prompt,)) in enumerate(batches)
            )
            pending = {portal.start_task_soon(complete, *request) for request in requests}
            while pending:
                done, pending = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
                for future in sorted(done, key=lambda future: future.exception() is not None):
                    yield future.result()

    def _client(self, kind: Any, **settings: Any) -> Any:
        """Return a client of the ``openai`` package; hosts of NO_PROXY need no support for the proxy of others."""
        import openai

        host = urlsplit(self._url).hostname or ""
        if any(proxy.startswith("socks") for proxy in getproxies().values()) and proxy_bypass(host):
            clients = {openai.OpenAI: openai.DefaultHttpxClient}
            settings["http_client"] = clients.get(kind, openai.DefaultAsyncHttpxClient)(
                trust_env=False
            )
        try:
            return kind(base_url=self._url, api_key=self._key, **settings)
        except (ImportError, OSError, ValueError) as error:
            reason = first_line(error)
            advice = "check ALL_PROXY, HTTPS_PROXY and SSL_CERT_FILE, or name the host in NO_PROXY"
            raise ModelError(
                f"no client for {self._url} can be made ({reason}); {advice}."
            ) from error

    def _owner(self) -> str:
        """The ``owned_by`` of the model in the server's list of models; "" if the server has no such list."""
        import openai

        try:
            models = self._client(openai.OpenAI, timeout=60).models.list().data
        except openai.OpenAIError as error:
            if isinstance(error, openai.APIStatusError) and error.status_code in _NO_LIST:
                return ""
            # A server that is loading its model must not get another prompt than the one it gets later.
            reason = f"start it, or give its --base-url: {first_line(error)}."
            raise ModelError(f"no server answers at {self._url}; {reason}") from error
        owners = [
            str(model.owned_by)
            for model in sorted(models, key=lambda model: model.id != self._model)
        ]
        return owners[0] if owners else ""

    async def _complete(self, client: Any, prompt: Mapping[str, Any], number: int) -> Completion:
        import openai

        options = self._options(prompt, number)
        try:
            async with asyncio.timeout(self._timeout):
                response = await client.chat.completions.create(**options)
            if not response.choices:  # some servers report an error with status 200
                raise ValueError(getattr(response, "error", None) or "no choices")
            return _completion(response.choices[0], response.usage, prompt)
        except openai.APIStatusError as error:
            if error.code in _REFUSALS:
                return Completion("", 0, True, {"reason": "refused", "prompt_tokens": 0})
            if name := _refused(error, options):
                self.endpoint["left_out"] = sorted({*self.endpoint.get("left_out", ()), name})
                return await self._complete(client, prompt, number)
            cause: BaseException | str = error
        except TimeoutError:
            cause = f"no answer within {self._timeout:g} s"
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
        except (openai.APIError, LookupError, AttributeError, TypeError, ValueError) as error:
            cause = f"malformed response: {error}"
        reason = " ".join(str(cause).replace(self._key, "***").split()).rstrip(".")
        remedy = (
            "check --base-url, --model and OPENAI_API_KEY, or wait; then run it again to resume"
        )
        raise ModelError(f"{self._url} failed ({reason:.300}); {remedy}.")

    def _options(self, prompt: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The parameters of a request."""
        decoding = self._decoding
        left_out = self.endpoint.get("left_out", ())
        limit = (
            "max_completion_tokens"
            if self._url == OPENAI or "max_tokens" in left_out
            else "max_tokens"
        )
        options: dict[str, Any] = {"model": self._model, "messages": prompt["messages"]}
        options |= {
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            limit: decoding.max_new_tokens,
        }
        if decoding.temperature:
            options["seed"] = generate.row_seed(decoding.seed, number, 0) % (2**32 - 1)
        options = {name: value for name, value in options.items() if name not in left_out}
        if self.prefills:
            arguments = {"chat_template_kwargs": chat_template.TEMPLATE_ARGUMENTS}
            samplers = {"top_k": decoding.top_k, "min_p": decoding.min_p}
            options["extra_body"] = PREFILLS[self.server] | samplers | arguments
            if (
                self.server == "vllm"
            ):  # it removes tags that are special tokens from the text, unless told not to
                prefilled = prompt["messages"][-1]["role"] == "assistant"
                turn = {"continue_final_message": prefilled, "add_generation_prompt": not prefilled}
                options["extra_body"] |= turn | {
                    "skip_special_tokens": STYLES[prompt["style"]].direct
                }
        return options


def _refused(error: Any, options: Mapping[str, Any]) -> str | None:
    """Return the optional parameter among *options* that the server's *error* names; None if it names none."""
    if error.status_code not in (400, 422):
        return None
    body = error.body if isinstance(error.body, dict) else {}
    details = body["detail"] if isinstance(body.get("detail"), list) else []  # of FastAPI
    places = [
        str(part["loc"][-1]) for part in details if isinstance(part, dict) and part.get("loc")
    ]
    message = body.get("message") or body.get("detail") or error.body
    for text in (" ".join([str(body.get("param")), *places]), str(message)):
        for name in _OPTIONAL:
            if name in options and re.search(
                rf"\b{name.replace('_', '[-_ ]?')}\b", text, re.IGNORECASE
            ):
                return name
    return None


def _completion(choice: Any, usage: Any, prompt: Mapping[str, Any]) -> Completion:
    """The completion in *choice*: its reasoning as a thinking block, then its content, to the end of the answer."""
    message, reason = choice.message, choice.finish_reason
    if reason in (None, "error", "abort"):
        raise ValueError(f"finish_reason is {reason}")
    parts = message.content or ""
    if isinstance(parts, list):  # of which some are thinking, or images
        parts = "".join(part["text"] for part in parts if part["type"] == "text")
    turn, style = prompt["messages"][-1], STYLES[prompt["style"]]
    content = parts.removeprefix(turn["content"]) if turn["role"] == "assistant" else parts
    head, end, _ = content.partition(generate.STOP)
    text, cut = head + end, reason == "length"
    # Newer versions of vLLM, and OpenRouter, use the second name.
    if reasoning := getattr(message, "reasoning_content", None) or getattr(
        message, "reasoning", None
    ):
        text = style.completion(text, reasoning, closed=bool(text) or not cut)
    else:
        text = style.reopened(text)
    details: dict[str, Any] = {} if usage is None else {"prompt_tokens": usage.prompt_tokens}
    if (cost := getattr(usage, "cost", None)) is not None:
        details["cost"] = cost
    if not end and (message.refusal or reason == "content_filter"):
        details["reason"] = "refused"
        text = text or message.refusal or ""
    text.encode()  # half a surrogate pair cannot be written
    return Completion(
        text, None if usage is None else usage.completion_tokens, bool(end) or not cut, details
    )

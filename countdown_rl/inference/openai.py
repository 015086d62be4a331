"""Completions from an OpenAI-compatible server, through the ``openai`` package.

The server holds the tokenizer and the chat template, so it gets the chat turns of a task. Servers that support prefill
receive a prefilled assistant turn. Others get the row in the style ``model_opens``, in which the model writes the
opening tag itself. Rate limits, server errors and lost connections are retried by the client.
"""

import asyncio
import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, Field

from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.inference import engines, generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import chat_template
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Row

#: Retries of a request by the client, which waits up to 8 seconds before each, or as long as Retry-After says.
RETRIES = 10

#: Servers that support prefill, by ``owned_by`` in their list of models, and what they need for that, for the text as
#: the model wrote it, and for sampling by the parameters of ``Decoding`` alone.
PREFILLS: dict[str, dict[str, Any]] = {
    "llamacpp": {"reasoning_format": "none", "samplers": list(generate.SAMPLERS)},
    "vllm": {"stop": [generate.STOP], "include_stop_str_in_output": True, "repetition_penalty": 1.0},
}
_REFUSALS = ("content_filter", "content_policy_violation")
_AGAIN = "run the same command again (eval has saved the finished answers)"
#: Remedies of failures that would repeat, by status.
_REMEDIES = dict.fromkeys((400, 404, 422), "check --base-url, --model and the options")
_REMEDIES |= dict.fromkeys((401, 403), "check the key in OPENAI_API_KEY")
_REMEDIES |= dict.fromkeys((301, 302, 303, 307, 308), "give the --base-url that it redirects to")

AnyRow = TypeVar("AnyRow", bound=Row)


class _Answer(BaseModel):
    """The fields of a response that are used. The client checks no types."""

    content: str | None = None
    refusal: str | None = None
    # The second name is that of newer versions of vLLM, and of OpenRouter.
    reasoning: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    finish_reason: str
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    cost: float | None = Field(None, ge=0, allow_inf_nan=False)


class OpenAI:
    """The model that an OpenAI-compatible server knows as *model*.

    Args:
        options: decoding settings, and those of a server.
        concurrency: requests in flight at once.
    """

    name = "openai"
    storage = "endpoint"
    precision = "unknown"
    device = "server"
    tokenizer = None
    libraries: tuple[str, ...] = ("openai",)

    def __init__(self, model: str, options: Any, *, concurrency: int = 1) -> None:
        host = _host(options.base_url)
        engines.check_installed(self.name)
        self._url, self._model, self._decoding = options.base_url, model, Decoding.of(options)
        self._concurrency, self._timeout = concurrency, options.timeout
        self._limit = "max_completion_tokens" if host == "api.openai.com" else "max_tokens"
        self._key = os.environ.get("OPENAI_API_KEY", "").strip() or "no-key-given"
        self.server = self._owner()
        self.prefills = self.server in PREFILLS
        if not self.prefills and (options.top_k or options.min_p):
            raise UsageError("--top-k and --min-p are for servers of vLLM and llama.cpp; leave them out.")

    def as_input(self) -> dict[str, Any]:
        """The entry for this model among the ``inputs`` of a manifest; its digest is not of weights, but of names."""
        digest = hashlib.sha256(f"{self._url} {self._model}".encode()).hexdigest()
        return {"source": self._model, "kind": "endpoint", "base_url": self._url, "digest": digest}

    @property
    def endpoint(self) -> dict[str, Any]:
        """The server, and what it did with prefilled turns."""
        turn = "continued" if self.prefills else "left out"
        return {"base_url": self._url, "server": self.server, "prefill": turn}

    def row(self, row: AnyRow) -> AnyRow:
        """*row*, in a style without prefill where the server does not support it."""
        return row if self.prefills else row.without_prefill()

    def prompt(self, row: Row) -> dict[str, Any]:
        """The prompt for *row*."""
        prompt = row.prompt()
        return {"messages": prompt.messages() if self.prefills else prompt.turns(), "style": row.style_name}

    def max_rows(self, prompt: int, completion: int) -> int:
        return 1

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]]
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """Yield the position of each of *batches*, a number and one prompt, and its completion as soon as it is there.

        After a failure no further request is sent, and those in flight are waited for before it is raised.
        """
        limit, failures = asyncio.Semaphore(self._concurrency), list[ModelError]()

        async def complete(prompt: Mapping[str, Any], number: int) -> Completion | None:
            async with limit:
                try:
                    return None if failures else await self._complete(client, prompt, number)
                except ModelError as error:
                    failures.append(error)
                    return None

        with self._client(RETRIES) as (runner, client):
            create_task = runner.get_loop().create_task
            tasks = {create_task(complete(prompt, n)): index for index, (n, (prompt,)) in enumerate(batches)}
            while tasks:
                done, _ = runner.run(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
                for task in done:
                    position = tasks.pop(task)
                    if completion := task.result():
                        yield position, [completion]
        if failures:
            raise failures[0]

    @contextmanager
    def _client(self, retries: int) -> Iterator[tuple[asyncio.Runner, Any]]:
        """A client and its event loop; requests that are in flight at the end are canceled."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        with asyncio.Runner() as runner:
            # No redirect is followed, so that the server in a manifest is the one that answered.
            http = DefaultAsyncHttpxClient(follow_redirects=False)
            settings: dict[str, Any] = {"base_url": self._url, "api_key": self._key, "timeout": self._timeout}
            yield runner, AsyncOpenAI(**settings, max_retries=retries, http_client=http)

    def _owner(self) -> str:
        """The ``owned_by`` of the model in the server's list of models; "" where there is no such list."""
        import openai

        async def list_models(client: Any) -> Any:
            async with asyncio.timeout(60):
                return (await client.models.list()).data

        try:
            with self._client(2) as (runner, client):
                models = runner.run(list_models(client))
            return str(next((model for model in models if model.id == self._model), models[0]).owned_by)
        except (openai.APIConnectionError, TimeoutError) as error:
            raise ModelError(f"there is no server at {self._url}; start it, or give its --base-url.") from error
        except (openai.APIError, ValueError, LookupError, TypeError, AttributeError) as error:
            # A server that is loading its model must not get another prompt than the one it gets later.
            if getattr(error, "status_code", None) in (429, 502, 503, 504):
                raise ModelError(f"{self._url} is not ready ({first_line(error)[:-1]}); try again later.") from error
            return ""

    async def _complete(self, client: Any, prompt: Mapping[str, Any], number: int) -> Completion:
        import httpx2
        import openai

        try:
            async with asyncio.timeout(self._timeout):
                response = await client.chat.completions.create(**self._options(prompt, number))
            choice = response.choices[0]
            fields = dict(choice.message) | dict(response.usage) | {"finish_reason": choice.finish_reason}
            return _completion(_Answer.model_validate(fields), prompt)
        except openai.APIStatusError as error:
            if error.code in _REFUSALS:
                return Completion("", 0, True, {"reason": "refused", "prompt_tokens": 0})
            message = error.body.get("message") if isinstance(error.body, dict) else None
            raise self._error(f"HTTP {error.status_code}: {message or error}", error.status_code) from error
        except (TimeoutError, openai.APITimeoutError) as error:
            raise self._error(f"timeout: no answer within --timeout {self._timeout:g} s") from error
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            raise self._error(f"lost connection: {error.__cause__ or error}") from error
        except (openai.APIError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._error(f"malformed response: {error}") from error

    def _options(self, prompt: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The parameters of a request."""
        decoding = self._decoding
        options: dict[str, Any] = {"model": self._model, "messages": prompt["messages"]}
        options |= {"temperature": decoding.temperature, "top_p": decoding.top_p, self._limit: decoding.max_new_tokens}
        if decoding.temperature:
            options["seed"] = generate.row_seed(decoding.seed, number, 0) % (2**32 - 1)
        if self.prefills:
            arguments = {"chat_template_kwargs": chat_template.TEMPLATE_ARGUMENTS}
            samplers = {"top_k": decoding.top_k, "min_p": decoding.min_p}
            options["extra_body"] = PREFILLS[self.server] | samplers | arguments
            if self.server == "vllm":  # it removes tags that are special tokens from the text, unless told not to
                prefilled = bool(_prefill(prompt))
                turn = {"continue_final_message": prefilled, "add_generation_prompt": not prefilled}
                options["extra_body"] |= turn | {"skip_special_tokens": STYLES[prompt["style"]].direct}
        return options

    def _error(self, cause: str, status: int = 0) -> ModelError:
        cause = " ".join(cause.replace(self._key, "***").split()).rstrip(".")
        return ModelError(f"{self._url} failed ({cause:.300}); {_REMEDIES.get(status, _AGAIN)}.")


def _host(base_url: str) -> str | None:
    """The host of a server's address. Raises UsageError if that is malformed or has a password or a query."""
    try:
        url = urlsplit(base_url)
        if (
            url.scheme in ("http", "https")
            and url.port != 0
            and base_url.isprintable()
            and not {"@", "?"} & {*base_url}
        ):
            return url.hostname
    except ValueError:  # of the port, or an IPv6 address
        pass
    raise UsageError(
        "--base-url should be like http://127.0.0.1:8000/v1, without a password; the key of a server is read from "
        "OPENAI_API_KEY."
    )


def _prefill(prompt: Mapping[str, Any]) -> str:
    """The prefilled assistant turn of *prompt*, or ""."""
    turn = prompt["messages"][-1]
    return str(turn["content"]) if turn["role"] == "assistant" else ""


def _completion(answer: _Answer, prompt: Mapping[str, Any]) -> Completion:
    """The completion in *answer*: its reasoning as a thinking block, then its content, to the end of the answer."""
    if answer.finish_reason in ("error", "abort"):
        raise ValueError(f"finish_reason is {answer.finish_reason}")
    content, style = (answer.content or "").removeprefix(_prefill(prompt)), STYLES[prompt["style"]]
    head, end, _ = content.partition(generate.STOP)
    text = head + end
    if answer.reasoning:
        text = style.completion(text, answer.reasoning, closed=bool(text) or answer.finish_reason != "length")
    else:
        text = style.reopened(text)
    details: dict[str, Any] = {"prompt_tokens": answer.prompt_tokens}
    if answer.cost is not None:
        details["cost"] = answer.cost
    if not end and (answer.refusal or answer.finish_reason == "content_filter"):
        details["reason"] = "refused"
        text = text or answer.refusal or ""
    text.encode()  # half a surrogate pair cannot be written
    return Completion(text, answer.completion_tokens, bool(end) or answer.finish_reason != "length", details)

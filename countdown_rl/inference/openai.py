"""Completions from an OpenAI-compatible server, through the ``openai`` package's asynchronous client.

The server holds the tokenizer and the chat template, so it gets the chat turns of a task. Servers that support prefill
receive a prefilled assistant turn. Others get the row in the style ``model_opens``, in which the model writes the
opening tag itself. Rate limits, server errors and lost connections are retried by the client.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.inference import engines, generate
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.models import chat_template
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Row

#: Retries of a request by the client, which waits up to 8 seconds before each, or as long as Retry-After says.
RETRIES = 10
#: Seconds without a completion after which a wait is reported, and between two reports.
_TICK = 1.0

#: Servers that support prefill, by ``owned_by`` in their list of models, and what they need for that, for the text as
#: the model wrote it, and for sampling by the parameters of ``Decoding`` alone.
CONTINUES: dict[str, dict[str, Any]] = {
    "llamacpp": {"reasoning_format": "none", "samplers": list(generate.SAMPLERS)},
    "vllm": {
        "stop": [generate.STOP],
        "include_stop_str_in_output": True,
        "repetition_penalty": 1.0,
    },
}
_REFUSALS = ("content_filter", "content_policy_violation")

#: Errors from reading a response that breaks the protocol.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
#: Remedies of failures that would repeat.
_REMEDIES = dict.fromkeys((400, 422), "change what it refuses")
_REMEDIES |= dict.fromkeys((401, 403), "check the key in OPENAI_API_KEY")
_REMEDIES |= dict.fromkeys((301, 302, 303, 307, 308), "give the --base-url that it redirects to")
_REMEDIES |= {404: "check --base-url and --model"}

AnyRow = TypeVar("AnyRow", bound=Row)


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
        if host is None:
            raise UsageError(
                "--base-url should be like http://127.0.0.1:8000/v1, without a password; the key of a server is read "
                "from OPENAI_API_KEY."
            )
        engines.check_installed(self.name)
        self._url, self._model, self._decoding = options.base_url, model, Decoding.of(options)
        self._concurrency, self._timeout = concurrency, options.timeout
        self._limit = "max_completion_tokens" if host == "api.openai.com" else "max_tokens"
        self._key = os.environ.get("OPENAI_API_KEY", "").strip() or "no-key-given"
        self.server = asyncio.run(self._owner())
        self.continues = self.server in CONTINUES
        if not self.continues and (options.top_k or options.min_p):
            raise UsageError("--top-k and --min-p are for servers of vLLM and llama.cpp; leave them out.")

    def as_input(self) -> dict[str, Any]:
        """The entry for this model among the ``inputs`` of a manifest; its digest is not of weights, but of names."""
        digest = hashlib.sha256(f"{self._url} {self._model}".encode()).hexdigest()
        return {"source": self._model, "kind": "endpoint", "base_url": self._url, "digest": digest}

    def row(self, row: AnyRow) -> AnyRow:
        """*row*, without its begun assistant turn where the server does not continue it."""
        return row if self.continues else row.without_prefill()

    def prompt(self, row: Row) -> dict[str, Any]:
        """The prompt for *row*."""
        prompt = row.prompt()
        return {"messages": prompt.messages() if self.continues else prompt.turns(), "style": row.style_name}

    def max_rows(self, prompt: int, completion: int) -> int:
        return 1

    def stream(self, prompt: Any, on_text: Callable[[str], None]) -> Completion:
        """The completion of *prompt*; *on_text* gets its text so far, again and again, while it is generated."""
        texts: SimpleQueue[str | None] = SimpleQueue()
        with self._requests() as ask:
            future = ask(prompt, 0, texts.put)
            future.add_done_callback(lambda _: texts.put(None))
            for text in iter(texts.get, None):
                on_text(text)
            return future.result()

    def complete_all(
        self, batches: Sequence[tuple[int, Sequence[Any]]], on_wait: Callable[[str], None]
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yield the position of each of *batches*, a number and one prompt, and its completion as soon as it is there.

        After a failure no further one is asked, and those in flight are waited for before it is raised.

        Args:
            on_wait: called again and again while there is none, with what is waited for and until when.
        """
        waiting = enumerate(batches)
        in_flight: dict[Future[Completion], int] = {}
        failure: ModelError | None = None
        with self._requests() as ask:
            while True:
                for position, (number, (prompt,)) in islice(
                    waiting, 0 if failure else self._concurrency - len(in_flight)
                ):
                    in_flight[ask(prompt, number)] = position
                if not in_flight:
                    break
                done = wait(in_flight, timeout=_TICK, return_when=FIRST_COMPLETED).done
                if not done:
                    on_wait(f"waiting for {self._url}, up to --timeout {self._timeout:g} s")
                for future in done:
                    position = in_flight.pop(future)
                    try:
                        completion = future.result()
                    except ModelError as error:
                        failure = failure or error
                    else:
                        yield position, [completion]
        if failure:
            raise failure

    @property
    def endpoint(self) -> dict[str, Any]:
        """The server, and what it did with prefilled turns."""
        turn = "continued" if self.continues else "left out"
        return {"base_url": self._url, "server": self.server, "begun_turn": turn}

    def _client(self, retries: int) -> Any:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        settings: dict[str, Any] = {"base_url": self._url, "api_key": self._key, "timeout": self._timeout}
        # No redirect is followed, so that the server in a manifest is the one that answered.
        client = DefaultAsyncHttpxClient(follow_redirects=False)
        return AsyncOpenAI(**settings, max_retries=retries, http_client=client)

    @contextmanager
    def _requests(self) -> Iterator[Callable[..., Future[Completion]]]:
        """A function that sends a request as :meth:`_ask` does, and returns a future of its completion.

        It runs in another thread, because signals raise exceptions in the main one. After an exception the requests in
        flight are cancelled.
        """
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._client(RETRIES)) as client:
            yield partial(portal.start_task_soon, self._ask, client)

    async def _owner(self) -> str:
        """The ``owned_by`` of the model in the server's list of models; "" where there is no such list."""
        import openai

        try:
            async with asyncio.timeout(60), self._client(2) as client:
                models = (await client.models.list()).data
            return str(next((model for model in models if model.id == self._model), models[0]).owned_by)
        except (openai.APIConnectionError, TimeoutError) as error:
            raise ModelError(f"there is no server at {self._url}; start it, or give its --base-url.") from error
        except (openai.APIError, ValueError, LookupError, TypeError, AttributeError) as error:
            # A server that is loading its model must not get another prompt than the one it gets later.
            if getattr(error, "status_code", None) in (429, 502, 503, 504):
                raise ModelError(f"{self._url} is not ready ({first_line(error)[:-1]}); try again later.") from error
            return ""

    async def _ask(
        self, client: Any, prompt: Mapping[str, Any], number: int, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """The completion of *prompt*.

        Raises:
            ModelError: the request failed after all retries.
        """
        import httpx2
        import openai

        options = self._options(prompt, number)
        if on_text:
            options |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with asyncio.timeout(self._timeout):
                response = await client.chat.completions.create(**options)
                if on_text:
                    response = await _gathered(response, lambda message: on_text(_text(message, prompt)))
                return _completion(response, prompt)
        except openai.APIStatusError as error:
            if error.code in _REFUSALS:
                return Completion("", 0, True, {"reason": "refused", "prompt_tokens": 0})
            said = error.body.get("message") if isinstance(error.body, dict) else None
            raise self._error(f"HTTP {error.status_code}: {said or error}", error.status_code) from error
        except (TimeoutError, openai.APITimeoutError) as error:
            raise self._error(f"timeout: no answer within --timeout {self._timeout:g} s") from error
        except (openai.APIConnectionError, httpx2.TransportError) as error:
            raise self._error(f"lost connection: {error.__cause__ or error}") from error
        except openai.APIError as error:  # in the middle of a stream
            raise self._error(str(error)) from error
        except _MALFORMED as error:
            raise self._error(f"malformed response: {type(error).__name__}: {error}") from error

    def _options(self, prompt: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The parameters of a request."""
        decoding = self._decoding
        options: dict[str, Any] = {
            "model": self._model,
            "messages": prompt["messages"],
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            self._limit: decoding.max_new_tokens,
        }
        if decoding.temperature:
            options["seed"] = generate.row_seed(decoding.seed, number, 0) % (2**32 - 1)
        if self.continues:
            arguments = {"chat_template_kwargs": chat_template.TEMPLATE_ARGUMENTS}
            samplers = {"top_k": decoding.top_k, "min_p": decoding.min_p}
            options["extra_body"] = CONTINUES[self.server] | samplers | arguments
            if self.server == "vllm":  # which takes tags that are special tokens out of the text, unless it is told
                begun = prompt["messages"][-1]["role"] == "assistant"
                turn = {"continue_final_message": begun, "add_generation_prompt": not begun}
                options["extra_body"] |= turn | {"skip_special_tokens": STYLES[prompt["style"]].direct}
        return options

    def _error(self, said: str, status: int = 0) -> ModelError:
        said = " ".join(said.replace(self._key, "***").split()).rstrip(".")
        remedy = _REMEDIES.get(status, "run the same command again (eval has saved the finished answers)")
        return ModelError(f"{self._url} failed ({said:.300}); {remedy}.")


def _host(base_url: str) -> str | None:
    """The host of a server's address, or None where that is malformed or has a password or a query."""
    try:
        url = urlsplit(base_url)
        valid = url.scheme in ("http", "https") and base_url.isprintable() and url.port != 0  # also checks the port
    except ValueError:
        return None
    return url.hostname if valid and "@" not in url.netloc and not url.query else None


def _completion(response: Any, prompt: Mapping[str, Any]) -> Completion:
    """The completion in *response*."""
    choice, usage = response.choices[0], response.usage
    message, finish = choice.message, choice.finish_reason
    if finish in (None, "error", "abort"):
        raise ValueError(f"`finish_reason` is {finish}")
    text, end = _text(message, prompt, finish), generate.STOP in (message.content or "")
    details: dict[str, Any] = {"prompt_tokens": _figure(usage.prompt_tokens)}
    if (cost := getattr(usage, "cost", None)) is not None:
        details["cost"] = _figure(cost, float)
    if not end and (message.refusal or finish == "content_filter"):
        details["reason"] = "refused"
        text = text or message.refusal or ""
    text.encode()  # half a character cannot be written
    return Completion(text, _figure(usage.completion_tokens), end or finish != "length", details)


def _figure(value: Any, kind: Callable[[Any], Any] = int) -> Any:
    """The figure *value* of a response as *kind*. Raises ValueError if it is negative, NaN or beyond any use."""
    if not 0 <= (figure := kind(value)) <= 2**40:
        raise ValueError(f"`usage` has {value}")
    return figure


def _text(message: Any, prompt: Mapping[str, Any], finish: str | None = None) -> str:
    """The text of *message*: its reasoning as a thinking block, then its content, to the end of the answer.

    Args:
        finish: why the message ended; None in the middle of it.
    """
    content = message.content or ""
    begun = prompt["messages"][-1]["content"] if prompt["messages"][-1]["role"] == "assistant" else ""
    if finish is None and len(content) < len(begun) and begun.startswith(content):
        content = ""  # as llama.cpp repeats it
    head, end, _ = content.removeprefix(begun).partition(generate.STOP)
    text: str = head + end
    # The second name is that of newer versions of vLLM, and of OpenRouter.
    if reasoning := getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None):
        return STYLES[prompt["style"]].completion(text, reasoning, closed=bool(text) or finish not in (None, "length"))
    return text if finish is None else STYLES[prompt["style"]].reopened(text)


async def _gathered(chunks: AsyncIterable[Any], on_message: Callable[[Any], None]) -> Any:
    """The response that *chunks* make together; *on_message* gets its message so far after each of them."""
    choice, usage = SimpleNamespace(message=SimpleNamespace(content="", refusal=""), finish_reason=None), None
    async for chunk in chunks:
        usage = chunk.usage or usage
        for part in chunk.choices:  # none in the one with the usage
            for key, value in part.delta:
                if isinstance(value, str):
                    setattr(choice.message, key, getattr(choice.message, key, "") + value)
            choice.finish_reason = part.finish_reason or choice.finish_reason
            on_message(choice.message)
    return SimpleNamespace(choices=[choice], usage=usage)

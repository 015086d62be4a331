"""HTTP client whose responses are bounded, since a server may send without end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import openai

#: Bytes of one response; 100,000 tokens as a stream of events take half of it.
MAX_BYTES = 64 * 2**20


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_BYTES:
                raise httpx2.RemoteProtocolError(f"the response has more than {MAX_BYTES:,} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":  # a few bytes may become gigabytes
        raise httpx2.RemoteProtocolError("the response is compressed, which was not asked for")
    response.stream = _Body(response.stream)


def client(on_request: Callable[[httpx2.Request], Awaitable[None]]) -> openai.DefaultAsyncHttpxClient:
    """The client; it follows no redirect, so that the server in a manifest is the one that answered.

    Args:
        on_request: called with each request before it is sent.
    """
    return openai.DefaultAsyncHttpxClient(
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [on_request], "response": [_bound]},
        follow_redirects=False,
    )

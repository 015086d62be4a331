"""Talking with the Hub: patience with what passes by itself, and one sentence for what does not."""

import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from countdown_rl.errors import HubError, UsageError

T = TypeVar("T")
Tell = Callable[[str], None]

#: Seconds to wait before a step is tried again; huggingface_hub has retried most requests before that.
PATIENCE = (2.0, 8.0)
#: Longest that a request to wait is obeyed here, in seconds; beyond it the person is told instead. Where
#: huggingface_hub tries again by itself, in the midst of an upload, it waits as long as it is asked to.
LONGEST_WAIT = 120.0

#: What every token of the Hub looks like.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")


def patiently(act: Callable[[], T], patience: Sequence[float], tell: Tell, *, network: bool) -> T:
    """What *act* returns, after trying again where that may help.

    *patience* holds the seconds to wait before each new try, and *tell* is told of it. Without *network* a
    connection that cannot be made is not waited for.
    """
    for wait in patience:
        try:
            return act()
        except Exception as error:
            passing = _passing(_cause(error), network=network)
            if passing is None:
                raise
            why, asked = passing
            if asked > LONGEST_WAIT:
                raise
            pause = max(wait, asked)
            tell(f"{why}; trying again in {pause:.0f} s")
            time.sleep(pause)
    return act()


def _passing(error: BaseException, *, network: bool) -> tuple[str, float] | None:
    """Why *error* may pass by itself and how long the Hub asks to wait, in seconds; None when it will not."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (408, 429) or status >= 500:
            return f"the Hub answered {status}", _asked(error.response.headers)
        return None
    if isinstance(error, json.JSONDecodeError):  # a gateway's page of HTML instead of the Hub's answer
        return "the Hub's answer was cut short", 0.0
    return ("the connection broke", 0.0) if isinstance(error, HTTPError) and network else None


def _asked(headers: Mapping[str, str]) -> float:
    """How many seconds the Hub asks to wait: Retry-After as seconds or as a date, or its own RateLimit."""
    from huggingface_hub.utils import parse_ratelimit_headers

    wanted = headers.get("Retry-After", "")
    if wanted.isdigit():
        return float(wanted)
    try:
        return max(0.0, parsedate_to_datetime(wanted).timestamp() - time.time())
    except ValueError:
        limit = parse_ratelimit_headers(headers)
        return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else 0.0


def _cause(error: BaseException) -> BaseException:
    # huggingface_hub wraps what went wrong in an upload thread in a RuntimeError.
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def in_one_sentence(repo_id: str) -> Iterator[None]:
    """Turn what huggingface_hub raises inside the block into a :class:`HubError`."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    try:
        yield
    except (RuntimeError, OSError, ValueError, HTTPError) as wrapped:
        error = _cause(wrapped)
        if isinstance(error, UsageError):
            raise
        if isinstance(error, OfflineModeIsEnabled):
            raise HubError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it.") from error
        if isinstance(error, HfHubHTTPError):
            raise HubError(_refusal(repo_id, error)) from error
        if isinstance(error, HTTPError | json.JSONDecodeError):
            raise HubError(
                "the Hub cannot be reached, or the connection broke; check the network and run the same command "
                "again: only what is missing is uploaded."
            ) from error
        if isinstance(error, ValueError):
            raise HubError(f"the Hub does not accept {repo_id}: {_line(str(error))}") from error
        raise


def _refusal(repo_id: str, error: Any) -> str:
    status = error.response.status_code
    again = "run the same command again, and only what is missing is uploaded"
    if status == 401:
        return "the Hub does not accept the token (expired or revoked); run `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return f"the token may not write to {repo_id}; use one that may, or a --repo-id under your own name."
    if status == 404:
        return f"{repo_id} is not on the Hub any more, or the token may not see it; check both and {again}."
    if status in (409, 412):
        return f"{repo_id} was changed by someone else meanwhile; {again}."
    if status == 429:
        wait = _asked(error.response.headers)
        return f"the Hub asks to wait{f' {wait:.0f} s' if wait else ''} (too many requests); then {again}."
    if status >= 500:
        return f"the Hub answered {status} again and again; later {again}."
    return f"the Hub refused ({status}): {_line(error.server_message or 'no reason given')}"


def _line(text: str) -> str:
    return TOKEN.sub("hf_***", " ".join(text.split())).rstrip(".") + "."


@contextmanager
def calm(bars: bool) -> Iterator[None]:
    """huggingface_hub without its warnings, and without its bars unless *bars*."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    level, hidden = logger.level, are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if not bars:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if not bars and not hidden:
            enable_progress_bars()

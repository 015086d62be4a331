"""Downloads from the Hub, and the reason of a failed request in words, the same for everything that asks the Hub."""

import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from countdown_rl.core.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

AnyError = TypeVar("AnyError", bound=BaseException)

#: Format of every token of the Hub.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}", re.ASCII)

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_AGAIN = "run the same command again later"


def download(
    name: str, revision: str | None, *, allowed: list[str] | None, ignored: list[str] | None, repo_type: str = "model"
) -> Path:
    """Download the files of a repository that match *allowed* and not *ignored*.

    Returns a directory named by the commit. Where the Hub cannot be reached, it is taken from the local cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    patterns: Any = {"allow_patterns": allowed, "ignore_patterns": ignored}
    try:
        return Path(snapshot_download(name, repo_type=repo_type, revision=revision, **patterns))
    except Exception as error:  # an answer that makes no sense raises any
        raise ModelError(f"{name} cannot be read, as {reason(error, revision)}.") from error


def reason(error: BaseException, revision: str | None = None) -> str:
    """Return the reason for *error* as a clause to follow "as": what is wrong, what to do, the library's own words."""
    from huggingface_hub import constants, errors

    links = list(_chain(error))
    if refusal := _first(links, errors.HfHubHTTPError):
        return _refusal(refusal, revision)
    part = " or only in part" if _first(links, errors.IncompleteSnapshotError) else ""
    uncached = f", and it is not in the cache{part}" if _first(links, errors.LocalEntryNotFoundError) else ""
    if _first(links, errors.OfflineModeIsEnabled):
        return f"the Hub cannot be reached; HF_HUB_OFFLINE is set{uncached}: unset that variable"
    transport = _first(links, errors.HTTPError) or _first(links, ConnectionError) or _first(links, TimeoutError)
    if transport or uncached:
        cause = f"{urlsplit(constants.ENDPOINT).hostname}: {words(links[-1])}"
        if type(transport).__name__ in ("ReadError", "WriteError", "RemoteProtocolError"):
            return f"the connection broke ({cause}){uncached}; {_AGAIN}"
        return f"the Hub cannot be reached; check the network ({cause}){uncached}"
    if (system := _first(links, OSError)) and system.errno is not None:
        place = f" {system.filename}" if system.filename else ""
        if system.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"no space is left on the disk for{place or ' it'}; free some, or set HF_HOME to another disk"
        return f"the cache of the Hub{place} cannot be used ({system.strerror}); set HF_HOME to a directory of yours"
    if isinstance(error, errors.HFValidationError):
        return f"that is no name on the Hub: {words(error)}"
    return f"the Hub cannot be reached; an answer makes no sense ({type(links[-1]).__name__}: {words(links[-1])})"


def is_absent(error: BaseException) -> bool:
    """Return True if *error* says that there is no repository of that name, or none that this user may know of."""
    from huggingface_hub import errors, get_token

    if not isinstance(error, errors.RepositoryNotFoundError) or isinstance(error, errors.GatedRepoError):
        return False
    return error.response.status_code != 401 or get_token() is None  # else the token is not accepted


def words(error: BaseException) -> str:
    """Return the text of *error* in a line, without tokens and the period at its end; its type where it has none."""
    return _line(re.sub(r"\[Errno [^\]]*\]|\(Request ID: [^)]*\)", "", str(error))) or type(error).__name__


def _line(text: str) -> str:
    return TOKEN.sub("hf_***", " ".join(text.split()))[:240].rstrip(".:; ")


def _refusal(error: "HfHubHTTPError", revision: str | None) -> str:
    """Return the reason where the Hub answered with an error."""
    from huggingface_hub import errors

    status = error.response.status_code
    said = f" ({_line(error.server_message)})" if error.server_message else ""
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its terms on its page of the Hub, then {_LOG_IN}{said}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision or 'main'} on the Hub"
    if is_absent(error):
        return f"there is no such repository on the Hub; check the name, or {_LOG_IN} if it is private"
    if status == 401:
        return f"the Hub does not accept the token (expired or revoked); {_LOG_IN}"
    if status == 403:
        return f"the Hub does not allow it{said}; {_LOG_IN} of an account that may"
    if status == 429:
        return f"the Hub asks to wait (too many requests); {_AGAIN}"
    return f"the Hub answered {status}; {_AGAIN}{said}" if status >= 500 else f"the Hub refused ({status}){said}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and its causes, the last of which is what happened first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _first(links: list[BaseException], kind: type[AnyError]) -> AnyError | None:
    return next((link for link in links if isinstance(link, kind)), None)

"""Downloads from the Hub, and the reason of a failed request in words, the same for everything that asks the Hub."""

import errno
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from countdown_rl.core.errors import ModelError, causes

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

#: Format of every token of the Hub.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}", re.ASCII)
_LOG_IN = "log in with `hf auth login`, or set HFTOKEN"


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

    chain = list(causes(error))

    def first(*kinds: type[BaseException]) -> Any:
        return next((link for link in chain if isinstance(link, kinds)), None)

    if refusal := first(errors.HfHubHTTPError):
        return _refusal(refusal, revision)
    uncached = ", and it is not in the cache" if first(errors.LocalEntryNotFoundError) else ""
    if first(errors.OfflineModeIsEnabled):
        return f"the Hub cannot be reached; HF_HUB_OFFLINE is set{uncached}: unset that variable"
    cause = words(chain[-1])
    if uncached or first(errors.HTTPError, ConnectionError, TimeoutError):
        return (
            f"the Hub cannot be reached; check the network ({urlsplit(constants.ENDPOINT).hostname}: {cause}){uncached}"
        )
    if (system := first(OSError)) and system.errno is not None:
        full = system.errno in (errno.ENOSPC, errno.EDQUOT)
        fault = "no space is left for" if full else "there is no access to"
        return f"{fault} {system.filename or 'the cache'} ({system.strerror}); set HF_HOME to another directory"
    if isinstance(error, errors.HFValidationError):
        return f"that is no name on the Hub: {cause}"
    return f"the Hub gave an answer that makes no sense ({type(chain[-1]).__name__}: {cause})"


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
    message = f" ({_line(error.server_message)})" if error.server_message else ""
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its terms on its page of the Hub, then {_LOG_IN}{message}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision or 'main'} on the Hub"
    if is_absent(error):
        return f"there is no such repository on the Hub; check the name, or {_LOG_IN} if it is private"
    if status == 401:
        return f"the Hub does not accept the token (expired or revoked); {_LOG_IN}"
    if status == 403:
        return f"the Hub does not allow it{message}; {_LOG_IN} of an account that may"
    advice = "; run the same command again later" if status == 429 or status >= 500 else ""
    return f"the Hub refused ({status}{', too many requests' * (status == 429)}){message}{advice}"

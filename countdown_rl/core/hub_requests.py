"""Downloads from the Hub, and the reason of a failed request in words, the same for everything that asks the Hub."""

import os
import re
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from countdown_rl.core.errors import ModelError, causes

#: Format of every token of the Hub.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}", re.ASCII)
#: Fewest bytes of an answer in so many seconds.
SLOWEST, PATIENCE = 1_000, 60.0
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


def download(
    name: str,
    revision: str | None,
    *,
    allowed: list[str] | None,
    ignored: list[str] | None,
    repo_type: str = "model",
) -> Path:
    """Return the folder of a repository's files that match *allowed*, not *ignored*, downloaded or from the cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    patterns: Any = {"allow_patterns": allowed, "ignore_patterns": ignored}
    try:
        with paced():
            return Path(snapshot_download(name, repo_type=repo_type, revision=revision, **patterns))
    except Exception as error:  # an answer that makes no sense raises any
        raise ModelError(f"{name} cannot be read, as {reason(error, revision)}.") from error


@contextmanager
def paced() -> Iterator[None]:
    """Raise TimeoutError where the Hub sends fewer than SLOWEST bytes in PATIENCE seconds, which no timeout notices."""
    from huggingface_hub import get_session

    def pace(response: Any) -> None:
        chunks = response.iter_raw

        def iter_raw(*arguments: Any, **settings: Any) -> Iterator[bytes]:
            since, count = time.monotonic(), 0
            for chunk in chunks(*arguments, **settings):
                count += len(chunk)
                if time.monotonic() - since > PATIENCE:
                    if count < SLOWEST:
                        raise TimeoutError(f"fewer than {SLOWEST:,} bytes in {PATIENCE} s")
                    since, count = time.monotonic(), 0
                yield chunk

        response.iter_raw = iter_raw

    hooks = get_session().event_hooks["response"]
    hooks.append(pace)
    try:
        yield
    finally:
        hooks.remove(pace)


def reason(error: BaseException, revision: str | None = None) -> str:
    """Return the reason for *error* as a clause to follow "as": what is wrong, what to do, the library's own words."""
    from huggingface_hub import constants, errors

    chain = list(causes(error))

    def first(*kinds: type[BaseException]) -> Any:
        return next((link for link in chain if isinstance(link, kinds)), None)

    if refusal := first(errors.HfHubHTTPError):
        return _refusal(refusal, revision)
    cause = words(chain[-1])
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        certificates = os.environ.get(name)
        if certificates and (first(ssl.SSLError) or not Path(certificates).exists()):
            fault = (
                f"is no certificate of the Hub ({cause})"
                if Path(certificates).exists()
                else "does not exist"
            )
            return f"{name} names {certificates}, which {fault}: correct or unset that variable"
    if urlsplit(constants.ENDPOINT).hostname is None:
        return f"HF_ENDPOINT is {constants.ENDPOINT}, no address such as https://huggingface.co: correct or unset it"
    if type(chain[-1]) in (ImportError, ValueError) and (proxies := set(getproxies()) - {"no"}):
        names = " or ".join(f"{name}_proxy".upper() for name in sorted(proxies))
        return f"it cannot use the proxy of {names} ({cause}): correct or unset that variable"
    if isinstance(chain[-1], UnicodeEncodeError):
        return f"the token holds a character that no token has; {_LOG_IN}"
    uncached = ", and it is not in the cache" if first(errors.LocalEntryNotFoundError) else ""
    if first(errors.OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set{uncached}: unset that variable"
    if uncached or first(errors.HTTPError, ConnectionError, TimeoutError):
        host = urlsplit(constants.ENDPOINT).hostname
        return f"the Hub cannot be reached; check the network ({host}: {cause}){uncached}"
    if (system := first(OSError)) and system.errno is not None:
        return f"{system.filename or 'the cache'} cannot be written ({system.strerror}); set HF_HOME elsewhere"
    return f"the request to the Hub failed ({type(chain[-1]).__name__}: {cause})"


def is_absent(error: BaseException) -> bool:
    """Return True if *error* says that there is no repository of that name, or none that this user may know of."""
    from huggingface_hub import errors, get_token

    if not isinstance(error, errors.RepositoryNotFoundError) or isinstance(
        error, errors.GatedRepoError
    ):
        return False
    return (
        error.response.status_code != 401 or get_token() is None
    )  # else the token is not accepted


def words(error: BaseException) -> str:
    """Return the text of *error* in a line, without tokens and the period at its end; its type if it has none."""
    text = re.sub(r"\[Errno [^\]]*\]|\(Request ID: [^)]*\)", "", str(error))
    return TOKEN.sub("hf_***", " ".join(text.split()))[:240].rstrip(".:; ") or type(error).__name__


def _refusal(error: Any, revision: str | None) -> str:
    """Return the reason of an ``HfHubHTTPError``."""
    from huggingface_hub import errors

    status = error.response.status_code
    message = words(ValueError(error.server_message or f"status {status}"))
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated ({message}): accept its terms on its page of the Hub, then {_LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision or 'main'} on the Hub"
    if is_absent(error):
        return (
            f"there is no such repository on the Hub; check the name, or {_LOG_IN} if it is private"
        )
    if status == 401:
        return f"the Hub does not accept the token (expired or revoked); {_LOG_IN}"
    if status == 403:
        return f"the Hub does not allow it ({message}); {_LOG_IN} of an account that may"
    return f"the Hub refused ({status}: {message}); run the same command again later"

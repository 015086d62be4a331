"""Downloads from the Hub, and the words for a request that failed."""

import re
import sys
from pathlib import Path

from countdown_rl.core.errors import ModelError

#: Format of every token of the Hub.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}", re.ASCII)


def download(
    name: str,
    revision: str | None,
    *,
    allowed: list[str] | None = None,
    ignored: list[str] | None = None,
    repo_type: str = "model",
) -> Path:
    """Return the folder of a repository, downloaded or from the cache.

    Args:
        name: the id of the repository.
        revision: a branch, tag or commit; by default the main branch.
        allowed: patterns of the files to download; by default all.
        ignored: patterns of the files to leave out.
        repo_type: "model" or "dataset".

    Raises:
        ModelError: the repository cannot be read.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder = snapshot_download(
            name,
            repo_type=repo_type,
            revision=revision,
            allow_patterns=allowed,
            ignore_patterns=ignored,
        )
    except Exception as error:  # an answer that makes no sense raises any
        raise ModelError(f"{name} cannot be read from the Hub: {reason(error)}.") from error
    return Path(folder)


def reason(error: BaseException) -> str:
    """Return the library's words for a failed request, without tokens, and what to check."""
    text = re.sub(r"\(Request ID: [^)]*\)", "", str(error))
    text = TOKEN.sub("hf_***", " ".join(text.split()))[:240].rstrip(".:; ")
    words = text or type(error).__name__
    return f"{words}; check the name, the network and your login (`hf auth login`)"

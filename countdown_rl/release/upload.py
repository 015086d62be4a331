"""Upload of a release folder to the Hub: the repository, one commit of all files, and a tag.

A reader sees the repository before that commit or after it, never in between; a new one is private until then.
huggingface_hub retries transfers and skips stored content, so a failed upload can be repeated.
"""

import json
import logging
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl.core import artifacts, hub_requests
from countdown_rl.core.errors import ArtifactError, HubError
from countdown_rl.core.formatting import flag
from countdown_rl.core.manifest import MANIFEST, Manifest
from countdown_rl.core.packages import version
from countdown_rl.release.config import UploadOptions

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Type of the repository for each kind of artifact that can be uploaded.
REPO_TYPES: dict[str, Literal["model", "dataset"]] = {"release": "model", "data-release": "dataset"}
#: Bytes searched of a file of weights: its metadata come first.
_METADATA = 1 << 24


@dataclass(frozen=True)
class Upload:
    """Result of an upload."""

    url: str
    commit: str
    tag: str
    private: bool


def check_no_token(folder: Path, *, manifest: str = "", token: str | None = None) -> None:
    """Check that no file in *folder*, and no text in *manifest*, has *token* or anything in the format of a token."""
    texts = {"the manifest": manifest}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            data = stream.read(_METADATA if file.suffix in (".safetensors", ".gguf") else -1)
        texts[file.name] = data.decode("latin-1")
    for name, text in texts.items():
        if hub_requests.TOKEN.search(text) or (token and token in text):
            raise ArtifactError(f"{name} contains what looks like a token for the Hub; remove it before publishing.")


def push(folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    """Make the repository of *options* hold exactly the release at *folder*, whose manifest is *manifest*.

    Raises:
        HubError: no token, no write access, no network, or a repository that this package did not make.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    token = get_token()
    if token is None:
        raise HubError("there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise HubError("the token for the Hub contains invalid characters; log in again with `hf auth login`.")
    check_no_token(folder, token=token)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token, library_name="countdown-rl", library_version=version())
    try:
        with warnings.catch_warnings(action="ignore"):
            return _update(api, folder, manifest, options)
    except (RuntimeError, OSError, ValueError, HTTPError) as error:
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):  # of the card's metadata
            raise HubError(f"the Hub does not accept {options.repo_id}: {hub_requests.words(error)}.") from error
        cause = hub_requests.reason(error)
        raise HubError(f"{options.repo_id} cannot be uploaded, as {cause}; run the same command again.") from error


def _update(api: "HfApi", folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    repo_id, repo_type = str(options.repo_id), REPO_TYPES[manifest.kind]
    api.create_repo(repo_id, repo_type=repo_type, private=True, exist_ok=True)
    info: Any = api.repo_info(repo_id, repo_type=repo_type)
    if not info.private and not options.public:
        raise HubError(
            f"{repo_id} is public; give {flag('public')} to publish there, or choose another {flag('repo_id')}."
        )
    present = {sibling.rfilename for sibling in info.siblings or ()} - {".gitattributes"}  # the Hub's own file
    previous = None
    if MANIFEST in present:
        file = api.hf_hub_download(repo_id, MANIFEST, revision=info.sha, repo_type=repo_type)
        previous = artifacts.peek(Path(file).parent)
    if present and previous != manifest.kind:
        raise HubError(f"{repo_id} exists, and countdown-rl did not make it; choose another {flag('repo_id')}.")
    commit = api.upload_folder(
        repo_id=repo_id,
        repo_type=repo_type,
        folder_path=folder,
        allow_patterns=[*manifest.files, MANIFEST],
        delete_patterns="*",
        commit_message=f"Release {manifest.digest[:12]}",
        parent_commit=info.sha,
    ).oid
    tags = {ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id, repo_type=repo_type).tags}
    newest = max((int(name[1:]) for name in tags if re.fullmatch(r"v\d+", name)), default=0)
    tag = f"v{newest}"
    if tags.get(tag) != commit:
        tag = f"v{newest + 1}"
        api.create_tag(repo_id, tag=tag, revision=commit, repo_type=repo_type)
    if options.public and info.private:
        api.update_repo_settings(repo_id, repo_type=repo_type, visibility="public")
    url = f"{api.endpoint}/{'datasets/' if repo_type == 'dataset' else ''}{repo_id}"
    return Upload(url, commit, tag, not options.public)

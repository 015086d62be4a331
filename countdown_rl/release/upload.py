"""Upload of a release folder to the Hub, as one commit with a tag.

A reader sees the repository before that commit or after it, never in between; a new one is private
until then. huggingface_hub retries transfers and skips stored content, so a failed upload can be
repeated.
"""

import logging
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from countdown_rl.core import artifacts, hub
from countdown_rl.core.errors import ArtifactError, HubError
from countdown_rl.core.manifest import MANIFEST, Manifest
from countdown_rl.core.packages import version
from countdown_rl.release.config import UploadOptions

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: The Hub writes this file into each repository.
_OF_THE_HUB = ".gitattributes"
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
    """Check that nothing to be published contains a token of the Hub.

    Args:
        folder: all files below it are searched.
        manifest: text that will be in the manifest.
        token: searched for beside everything in the format of a token.
    """
    texts = {"the manifest": manifest}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        is_weights = file.suffix in (".safetensors", ".gguf")
        with file.open("rb") as stream:
            texts[str(file.relative_to(folder))] = stream.read(
                _METADATA if is_weights else -1
            ).decode("latin-1")
    for name, text in texts.items():
        if hub.TOKEN.search(text) or (token and token in text):
            raise ArtifactError(
                f"{name} contains what looks like a token for the Hub; remove it before publishing."
            )


def push(folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    """Make the repository of *options* hold exactly the release at *folder*.

    Args:
        folder: the release, which is uploaded as one commit.
        manifest: that of the release.
        options: name and visibility of the repository.

    Raises:
        HubError: no token, no write access, no network, or a repository of another tool.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    token = get_token()
    if token is None:
        raise HubError(
            "there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN."
        )
    check_no_token(folder, token=token)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token, library_name="countdown-rl", library_version=version())
    try:
        with warnings.catch_warnings(action="ignore"):
            return _update(api, folder, manifest, options)
    except (RuntimeError, OSError, ValueError, HTTPError) as error:
        cause = hub.reason(error)
        raise HubError(
            f"{options.repo_id} cannot be uploaded: {cause}, and run the same command again."
        ) from error


def _update(api: "HfApi", folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    repo_id = str(options.repo_id)
    api.create_repo(repo_id, private=True, exist_ok=True)
    info = api.repo_info(repo_id)
    if not info.private and not options.public:
        raise HubError(f"{repo_id} is public; give --public to publish there, or another --push.")

    files = getattr(info, "siblings", None) or ()
    present = {file.rfilename for file in files} - {_OF_THE_HUB}
    published = None
    if MANIFEST in present:
        file = api.hf_hub_download(repo_id, MANIFEST, revision=info.sha)
        published = artifacts.peek(Path(file).parent)
    if present and published != manifest.kind:
        raise HubError(
            f"{repo_id} exists, and countdown-rl did not make it; choose another --push."
        )

    commit = api.upload_folder(
        folder_path=folder,
        repo_id=repo_id,
        allow_patterns=[*manifest.files, MANIFEST],
        delete_patterns="*",
        commit_message=f"Release {manifest.digest[:12]}",
        parent_commit=info.sha,
    ).oid
    tag = _tag(api, repo_id, commit)
    if options.public and info.private:
        api.update_repo_settings(repo_id, visibility="public")
    return Upload(f"{api.endpoint}/{repo_id}", commit, tag, private=not options.public)


def _tag(api: "HfApi", repo_id: str, commit: str) -> str:
    """Return the newest tag if it is of *commit*, else create the next one: v1, v2, ..."""
    refs = api.list_repo_refs(repo_id).tags
    commits = {ref.name: ref.target_commit for ref in refs}
    numbers = [int(name[1:]) for name in commits if re.fullmatch(r"v\d+", name)]
    newest = max(numbers, default=0)
    if commits.get(f"v{newest}") == commit:
        return f"v{newest}"
    tag = f"v{newest + 1}"
    api.create_tag(repo_id, tag=tag, revision=commit)
    return tag

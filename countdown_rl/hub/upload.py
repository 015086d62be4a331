"""Upload of a release folder to the Hub: one tagged commit, every file compared there by size and hash.

``upload_folder`` may make several commits, and a reader in between would see half a model, so the commit is made
here. huggingface_hub retries transfers and listings itself; after an error of another call, above all the commit, the
upload as a whole is repeated: stored content is not sent again, and a commit whose response was lost is recognized.
The token is read by huggingface_hub; no message contains it.
"""

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl import __version__, artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.errors import ArtifactError, HubError
from countdown_rl.hub import secret_scan
from countdown_rl.hub.config import check_hub_id

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Created by the Hub in each repository; lists the files in large file storage.
ATTRIBUTES = ".gitattributes"
#: Type of the repository for each kind of artifact that can be uploaded.
REPO_TYPES: dict[str, Literal["model", "dataset"]] = {"release": "model", "data-release": "dataset"}
#: Seconds before each new attempt.
PAUSES = (2.0, 8.0)

_AGAIN = "run the same command again, only what is missing is uploaded."
#: Message by HTTP status.
_REFUSALS = {
    401: "the Hub does not accept the token (expired or revoked); run `hf auth login`, or set HF_TOKEN.",
    403: "the token may not write to {repo_id}; use one that may, or a --repo-id under your own name.",
    404: "{repo_id} is not on the Hub any more, or the token may not see it; check both, then " + _AGAIN,
    409: "{repo_id} was changed by someone else meanwhile; " + _AGAIN,
    412: "{repo_id} was changed by someone else meanwhile; " + _AGAIN,
    429: "the Hub asks to wait{wait} (too many requests); then " + _AGAIN,
}


@dataclass(frozen=True)
class Upload:
    """Result of an upload. ``uploaded`` and ``removed`` are names of files; ``verified`` counts files compared."""

    repo_id: str
    url: str
    commit: str
    tag: str
    private: bool
    uploaded: list[str]
    removed: list[str]
    unchanged: int
    verified: int


def push(
    folder: Path,
    repo_id: str,
    *,
    public: bool = False,
    force: bool = False,
    tag: str | None = None,
    manifest: Manifest | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Upload:
    """Make *repo_id* hold exactly the release at *folder*; files that are there already are not sent again.

    The repository, of models or of data sets, is created private if it does not exist, and becomes public after its
    files were verified, if *public*. *tag* None takes the next free v1, v2, ... Files that an earlier release put
    there and this one lacks are removed; files that a person added stay. *force* replaces the contents of a
    repository that this tool did not make. *manifest* is that of a folder whose files were just checked; None checks
    them.

    Raises:
        HubError: no token, no right to write, no network, or a repository that this tool did not make.
        ArtifactError: *folder* is not a complete release, or contains a token.
        UsageError: *repo_id* is not NAME/MODEL.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    check_hub_id("--repo-id", repo_id)
    manifest = manifest or artifacts.read(folder, REPO_TYPES)
    token = _token()
    secret_scan.check(folder, token=token)
    api = HfApi(token=token, library_name="countdown-rl", library_version=__version__)
    repository = Repository(api, repo_id, manifest, folder, log)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        disable_progress_bars()
    pauses = iter(PAUSES)
    with warnings.catch_warnings(action="ignore"):
        while True:
            try:
                return repository.update(public=public, force=force, tag=tag)
            except (RuntimeError, OSError, ValueError, HTTPError) as error:
                sentence, passing = _explained(error, repo_id)
                if sentence is None:
                    raise
                if passing is None or (pause := next(pauses, None)) is None:
                    raise HubError(sentence) from error
                log(f"{passing}; trying again in {pause:.0f} s")
                time.sleep(pause)


def _token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if token is None:
        raise HubError("there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise HubError("the token for the Hub contains invalid characters; log in again with `hf auth login`.")
    return token


@dataclass(frozen=True)
class State:
    """A repository at one commit: the Hub's entry of each file, and the manifest of the release if it is one."""

    commit: str
    private: bool
    entries: Mapping[str, Any]
    release: Manifest | None


class Repository:
    """Repository *id* on the Hub, which is to hold the release at *folder*."""

    def __init__(self, api: "HfApi", id: str, manifest: Manifest, folder: Path, log: Callable[[str], None]) -> None:
        self.api, self.id, self.manifest, self.folder, self.log = api, id, manifest, folder, log
        self.type = REPO_TYPES[manifest.kind]
        self.files = manifest.files | {MANIFEST: artifacts.entry(folder / MANIFEST)}
        self._before: State | None = None  # as the first attempt found it

    def update(self, *, public: bool, force: bool, tag: str | None) -> Upload:
        """Commit and tag the release, and compare what the repository holds then. May be repeated after a failure."""
        before = self._before = self._before or self._open()
        if before.release is None and before.entries.keys() - {ATTRIBUTES} and not force:
            raise HubError(
                f"{self.id} exists, and countdown-rl did not make it; choose another --repo-id, or give --force to "
                "replace its contents."
            )
        if not before.private and not public:
            raise HubError(f"{self.id} is public; give --public to publish there, or choose another --repo-id.")
        tag, exists = self._choose_tag(tag)
        outdated = self._outdated(before.entries)
        # Files of an earlier release, or after --force all those of another tool.
        owned = before.entries.keys() if before.release is None else before.release.files.keys() & before.entries.keys()
        surplus = sorted(owned - self.files.keys() - {ATTRIBUTES})
        if outdated:
            size = sum(self.files[name]["size"] for name in outdated) / 1e6
            names = f": {', '.join(outdated)}" if len(outdated) < len(self.files) else ""
            self.log(f"uploading {len(outdated)} of {len(self.files)} files ({size:,.1f} MB){names}")
        commit = self._commit(before, outdated, surplus)
        for name in self._outdated(self._entries(commit)):
            raise HubError(f"{name} in {self.id} is not what was sent; {_AGAIN}")
        if not exists:
            self.api.create_tag(self.id, tag=tag, revision=commit, exist_ok=True, repo_type=self.type)
        if public and before.private:
            self.api.update_repo_settings(self.id, repo_type=self.type, visibility="public")
        return Upload(
            repo_id=self.id,
            url=f"{self.api.endpoint}/{'datasets/' if self.type == 'dataset' else ''}{self.id}",
            commit=commit,
            tag=tag,
            private=not public,
            uploaded=outdated,
            removed=surplus,
            unchanged=len(self.files) - len(outdated),
            verified=len(self.files),
        )

    def _open(self) -> State:
        """Return the repository's state; a new one is private until its files were verified."""
        from huggingface_hub import RepoCard
        from huggingface_hub.errors import RepositoryNotFoundError

        with suppress(RepositoryNotFoundError):
            return self._state()
        if "README.md" in self.files:
            RepoCard.load(self.folder / "README.md").validate(self.type)
        self.log(f"creating {self.id} (private)")
        self.api.create_repo(self.id, repo_type=self.type, private=True, exist_ok=True)
        return self._state()

    def _state(self) -> State:
        info = self.api.repo_info(self.id, repo_type=self.type)
        entries = self._entries(str(info.sha))
        release = self._release(str(info.sha)) if MANIFEST in entries else None
        return State(str(info.sha), bool(info.private), entries, release)

    def _choose_tag(self, tag: str | None) -> tuple[str, bool]:
        """Return the tag for this release, and whether it is on the release already.

        Raises:
            HubError: *tag* is on other files.
        """
        tags = [ref.name for ref in self.api.list_repo_refs(self.id, repo_type=self.type).tags]
        newest = max((int(match[1]) for name in tags if (match := re.fullmatch(r"v(\d+)", name))), default=0)
        name = tag or f"v{newest or 1}"
        if name not in tags:
            return name, False
        entries = self.api.get_paths_info(self.id, [MANIFEST], revision=name, repo_type=self.type)
        if entries and self._matches(MANIFEST, entries[0]):
            return name, True
        if tag:
            raise HubError(f"{self.id} has a tag {tag} already, on other files; give --tag another name.")
        return f"v{newest + 1}", False

    def _commit(self, before: State, outdated: list[str], surplus: list[str]) -> str:
        """Return the commit that holds exactly the files, made unless an attempt whose response was lost made it."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        now = self._state()
        if not self._outdated(now.entries) and now.entries.keys().isdisjoint(surplus):
            return now.commit
        if now.commit != before.commit:
            raise HubError(_REFUSALS[412].format(repo_id=self.id))
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in surplus]
        for name in outdated:
            addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=self.folder / name)
            addition.upload_info.sha256 = bytes.fromhex(self.files[name]["sha256"])  # not hashed again
            operations.append(addition)
        message = f"Release {self.manifest.digest[:12]}"
        commit = self.api.create_commit(
            self.id, operations, commit_message=message, parent_commit=now.commit, repo_type=self.type
        )
        return commit.oid

    def _outdated(self, entries: Mapping[str, Any]) -> list[str]:
        """Return the files that *entries* lack or have with another size or hash."""
        return [name for name in self.files if not self._matches(name, entries.get(name))]

    def _matches(self, name: str, entry: Any) -> bool:
        from huggingface_hub.utils.sha import git_hash

        file = self.files[name]
        if entry is None or entry.size != file["size"]:
            return False
        if entry.lfs:
            return bool(entry.lfs.sha256 == file["sha256"])
        # Only small files are outside of large file storage.
        return bool(entry.blob_id == git_hash((self.folder / name).read_bytes()))

    def _entries(self, revision: str) -> dict[str, Any]:
        listing = self.api.list_repo_tree(self.id, recursive=True, revision=revision, repo_type=self.type)
        return {entry.path: entry for entry in listing if hasattr(entry, "size")}

    def _release(self, revision: str) -> Manifest | None:
        """Return the manifest of the release at *revision*, None if the file of that name is something else."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        url = hf_hub_url(self.id, MANIFEST, revision=revision, endpoint=self.api.endpoint, repo_type=self.type)
        response = http_backoff("GET", url, headers=build_hf_headers(token=self.api.token), follow_redirects=True)
        hf_raise_for_status(response)
        try:
            manifest = Manifest.parse(response.content, url)
        except ArtifactError:
            return None
        return manifest if manifest.kind == self.manifest.kind else None


def _explained(error: BaseException, repo_id: str) -> tuple[str | None, str | None]:
    """Return the sentence for an error, None if it is not of huggingface_hub, and if it may pass what went wrong."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    while isinstance(error, RuntimeError) and error.__cause__ is not None:  # around an error of an upload thread
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it.", None
    if isinstance(error, HfHubHTTPError):
        status, seconds = error.response.status_code, error.response.headers.get("Retry-After", "")
        passing = f"the Hub answered {status}" if status in (408, 429) or status >= 500 else None
        if status in _REFUSALS:
            wait = f" {seconds} s" if seconds.isdigit() else ""
            return _REFUSALS[status].format(repo_id=repo_id, wait=wait), passing
        if status >= 500:
            return f"the Hub answered {status} repeatedly; later {_AGAIN}", passing
        return f"the Hub refused ({status}): {_one_line(error.server_message or 'no reason given')}", passing
    if isinstance(error, HTTPError | json.JSONDecodeError):  # the latter: a gateway's HTML page, or half of a response
        sentence = f"the Hub cannot be reached, or the connection broke; check the network, then {_AGAIN}"
        return sentence, "the connection broke"
    if isinstance(error, ValueError):
        return f"the Hub does not accept {repo_id}: {_one_line(str(error))}", None
    return None, None


def _one_line(text: str) -> str:
    return secret_scan.TOKEN.sub("hf_***", " ".join(text.split())).rstrip(".") + "."

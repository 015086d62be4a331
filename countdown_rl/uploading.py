"""A release folder to a repository on the Hub: in one commit, tagged, and checked where it lies.

The upload is one atomic commit (``upload_folder`` makes several when it goes through Xet, and a reader in
between would see half a model). Every step may be taken again: content that is already stored is not
sent twice, a commit whose answer was lost is found and not repeated. The token is read where
huggingface_hub reads it, and no sentence made here can hold it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl import __version__, artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.hub import PATIENCE, TOKEN, T, Tell, calm, in_one_sentence, patiently

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Bytes from which an upload takes long enough for a bar.
_WORTH_A_BAR = 50_000_000
#: Made by the Hub in each repository; it says which files lie in large file storage.
_ATTRIBUTES = ".gitattributes"
_VERSION = re.compile(r"v(\d+)")


@dataclass(frozen=True)
class Upload:
    """What an upload came to. ``uploaded`` and ``removed`` name files; ``verified`` counts those compared."""

    repo_id: str
    url: str
    commit: str
    tag: str
    private: bool
    uploaded: list[str]
    removed: list[str]
    unchanged: int
    verified: int


@dataclass(frozen=True)
class _Local:
    path: Path
    size: int
    sha256: str

    @property
    def git(self) -> str:
        # Only ever asked for small text files: large ones are compared by their sha256.
        data = self.path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def lies_at(self, entry: Any) -> bool:
        """Whether *entry* of the Hub's tree is this file, by size and hash."""
        if entry is None or entry.size != self.size:
            return False
        return bool(entry.lfs.sha256 == self.sha256 if entry.lfs else entry.blob_id == self.git)


@dataclass(frozen=True)
class _Remote:
    head: str
    private: bool
    tree: dict[str, Any]
    manifest: Manifest | None


def push(
    folder: Path,
    repo_id: str,
    *,
    public: bool = False,
    force: bool = False,
    tag: str | None = None,
    tell: Tell = lambda text: None,
    bars: bool = False,
    patience: Sequence[float] = PATIENCE,
) -> Upload:
    """Make *repo_id* hold exactly the release at *folder*; what lies there already is not sent again.

    The repository is made when it is not there, private unless *public*. *tag* None takes the next free
    v1, v2, ... Files that an earlier release of this tool put there and this one lacks are removed; what
    a person added stays. With *force* a repository that this tool did not make is replaced as well.

    Raises:
        HubError: no token, no right to write, no network, a repository in the way.
        ArtifactError: *folder* is no whole release, or holds something that looks like a token.
        UsageError: *repo_id* is no NAME/MODEL.
    """
    from huggingface_hub import HfApi, get_token

    _check_name(repo_id)
    manifest = artifacts.read(folder, "release")
    token = get_token()
    if token is None:
        raise HubError("there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise HubError("the token for the Hub holds characters that no token has; log in again with `hf auth login`.")
    local = _local(Path(folder), manifest)
    _check_secrets(local, token)
    api = HfApi(token=token, library_name="countdown-rl", library_version=__version__)
    with in_one_sentence(repo_id), calm(bars and sum(file.size for file in local.values()) > _WORTH_A_BAR):

        def step(act: Callable[[], T], *, network: bool = True) -> T:
            return patiently(act, patience, tell, network=network)

        step(api.whoami, network=False)
        remote = step(lambda: _find(api, repo_id))
        if remote is None:
            tell(f"making {repo_id} ({'public' if public else 'private'})")
            step(lambda: api.create_repo(repo_id, private=not public, exist_ok=True))
            remote = step(lambda: _find(api, repo_id))
        if remote is None:
            raise HubError(f"{repo_id} was made, and cannot be seen; does the token allow reading it?")
        _check_rights(repo_id, remote, public=public, force=force)
        chosen = step(lambda: _free_tag(api, repo_id, tag, local[MANIFEST]))

        uploaded = [name for name, file in local.items() if not file.lies_at(remote.tree.get(name))]
        removed = _removals(remote, local)
        if uploaded or removed:
            size = sum(local[name].size for name in uploaded)
            tell(f"uploading {len(uploaded)} of {len(local)} files ({size / 1e6:,.1f} MB)")
        message = f"Release {manifest.digest[:12]}"
        commit = step(lambda: _commit(api, repo_id, local, remote, message))
        tree = step(lambda: _tree(api, repo_id, commit))
        for name, file in local.items():
            if not file.lies_at(tree.get(name)):
                raise HubError(f"{name} in {repo_id} is not what was sent; run the same command again.")
        if not chosen.taken:
            step(lambda: api.create_tag(repo_id, tag=chosen.name, revision=commit, exist_ok=True))
        if public and remote.private:
            step(lambda: api.update_repo_settings(repo_id, visibility="public"))
        return Upload(
            repo_id=repo_id,
            url=f"{api.endpoint}/{repo_id}",
            commit=commit,
            tag=chosen.name,
            private=not public,
            uploaded=uploaded,
            removed=removed,
            unchanged=len(local) - len(uploaded),
            verified=len(local),
        )


def _check_name(repo_id: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(f"--repo-id {repo_id} is no name for a repository; give NAME/MODEL.") from error
    if repo_id.count("/") != 1:
        raise UsageError(f"--repo-id {repo_id} does not say whose it is; give NAME/MODEL, NAME being you or a team.")


def _local(folder: Path, manifest: Manifest) -> dict[str, _Local]:
    files = {name: _Local(folder / name, entry["size"], entry["sha256"]) for name, entry in manifest.files.items()}
    own = folder / MANIFEST
    return files | {MANIFEST: _Local(own, own.stat().st_size, artifacts.file_sha256(own))}


def _check_secrets(local: Mapping[str, _Local], token: str) -> None:
    for name, file in local.items():
        if name.endswith((".json", ".md", ".jinja", ".txt", ".yaml")):
            text = file.path.read_text("utf-8", errors="replace")
            if token in text or TOKEN.search(text):
                raise ArtifactError(f"{name} holds what looks like a token for the Hub; take it out before publishing.")


def _find(api: "HfApi", repo_id: str) -> _Remote | None:
    """What is in *repo_id* now, or None where there is no such repository."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.model_info(repo_id)
    except RepositoryNotFoundError:
        return None
    head = str(info.sha)
    tree = _tree(api, repo_id, head)
    found = _manifest(api, repo_id, head) if MANIFEST in tree else None
    return _Remote(head, bool(info.private), tree, found)


def _tree(api: "HfApi", repo_id: str, revision: str) -> dict[str, Any]:
    found = api.list_repo_tree(repo_id, recursive=True, revision=revision)
    return {entry.path: entry for entry in found if hasattr(entry, "size")}


def _manifest(api: "HfApi", repo_id: str, revision: str) -> Manifest | None:
    """The release manifest in *repo_id*, or None where that file is something else."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(repo_id, MANIFEST, revision=revision, endpoint=api.endpoint)
    answer = get_session().get(url, headers=build_hf_headers(token=api.token))
    hf_raise_for_status(answer)
    try:
        manifest = Manifest(**json.loads(answer.content))
    except (ValueError, TypeError):
        return None
    return manifest if manifest.kind == "release" and isinstance(manifest.files, dict) else None


def _check_rights(repo_id: str, remote: _Remote, *, public: bool, force: bool) -> None:
    if remote.manifest is None and remote.tree.keys() - {_ATTRIBUTES} and not force:
        raise HubError(
            f"{repo_id} exists, and countdown-rl did not make it; choose another --repo-id, or give --force to "
            "replace what is in it."
        )
    if not remote.private and not public:
        raise HubError(f"{repo_id} is public; give --public to publish there, or choose another --repo-id.")


def _removals(remote: _Remote, local: Mapping[str, _Local]) -> list[str]:
    # Only what an earlier release put there is ours to remove. Without one, --force was given: replace all.
    ours = remote.tree.keys() if remote.manifest is None else remote.manifest.files.keys() & remote.tree.keys()
    return sorted(ours - local.keys() - {_ATTRIBUTES})


def _commit(api: "HfApi", repo_id: str, local: Mapping[str, _Local], seen: _Remote, message: str) -> str:
    """The commit that holds the release; made when it is not there yet.

    It looks again each time it is called, since an attempt whose answer was lost may have succeeded.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    head = str(api.model_info(repo_id).sha)
    tree = seen.tree if head == seen.head else _tree(api, repo_id, head)
    changed = [name for name, file in local.items() if not file.lies_at(tree.get(name))]
    removed = [name for name in _removals(seen, local) if name in tree]
    if not changed and not removed:
        return head
    if head != seen.head:
        raise HubError(f"{repo_id} was changed by someone else meanwhile; run the same command again.")
    operations: list[Any] = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in removed]
    for name in changed:
        addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=local[name].path)
        addition.upload_info.sha256 = bytes.fromhex(local[name].sha256)  # known, so the file is not read again for it
        operations.append(addition)
    made = api.create_commit(repo_id, operations, commit_message=message, parent_commit=head)
    return made.oid


@dataclass(frozen=True)
class _Tag:
    name: str
    taken: bool  # by this very release


def _free_tag(api: "HfApi", repo_id: str, wanted: str | None, manifest: _Local) -> _Tag:
    """The tag for this release: *wanted*, the one it carries already, or the next v1, v2, ..."""
    tags = [ref.name for ref in api.list_repo_refs(repo_id).tags]
    versions = sorted((int(match[1]) for name in tags if (match := _VERSION.fullmatch(name))), reverse=True)
    name = wanted or (f"v{versions[0]}" if versions else "v1")
    if name not in tags:
        return _Tag(name, taken=False)
    tagged = {entry.path: entry for entry in api.get_paths_info(repo_id, [MANIFEST], revision=name)}
    if manifest.lies_at(tagged.get(MANIFEST)):
        return _Tag(name, taken=True)
    if wanted:
        raise HubError(f"{repo_id} has a tag {wanted} already, on other files; give --tag another name.")
    return _Tag(f"v{versions[0] + 1}", taken=False)

"""A release folder to a repository on the Hub: in one commit, tagged, and checked where it lies.

The upload is one atomic commit (``upload_folder`` makes several when it goes through Xet, and a reader in
between would see half a model). Every step may be taken again: content that is already stored is not
sent twice, a commit whose answer was lost is found and not repeated. The token is read where
huggingface_hub reads it, and no sentence made here can hold it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from countdown_rl import __version__, artifacts
from countdown_rl.artifacts import MANIFEST
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.hub import secret_scan
from countdown_rl.hub.client import PATIENCE, TOKEN, T, Tell, calm, in_one_sentence, patiently
from countdown_rl.hub.repository import ATTRIBUTES, TYPES, Local, Repository, Seen, local_files, removals

#: Bytes from which an upload takes long enough for a bar.
_WORTH_A_BAR = 50_000_000
_CARD = "README.md"


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

    The repository, of models or of data sets as the release is, is made when it is not there, private unless
    *public*. *tag* None takes the next free v1, v2, ... Files that an earlier release of this tool put there
    and this one lacks are removed; what a person added stays. With *force* a repository that this tool did
    not make is replaced as well.

    Raises:
        HubError: no token, no right to write, no network, a repository in the way.
        ArtifactError: *folder* is no whole release, or holds something that looks like a token.
        UsageError: *repo_id* is no NAME/MODEL.
    """
    from huggingface_hub import HfApi, get_token

    _check_name(repo_id)
    manifest = artifacts.read(folder, TYPES)
    token = get_token()
    if token is None:
        raise HubError("there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise HubError("the token for the Hub holds characters that no token has; log in again with `hf auth login`.")
    local = local_files(Path(folder), manifest)
    _check_secrets(Path(folder), token)
    api = HfApi(token=token, library_name="countdown-rl", library_version=__version__)
    there = Repository(api, repo_id, manifest.kind)
    with in_one_sentence(repo_id), calm(bars and sum(file.size for file in local.values()) > _WORTH_A_BAR):

        def step(act: Callable[[], T], *, network: bool = True) -> T:
            return patiently(act, patience, tell, network=network)

        step(api.whoami, network=False)
        if _CARD in local:
            step(lambda: _validate(local[_CARD].path, there.type))
        seen = step(there.look)
        if seen is None:
            tell(f"making {repo_id} ({'public' if public else 'private'})")
            step(lambda: there.make(private=not public))
            seen = step(there.look)
        if seen is None:
            raise HubError(f"{repo_id} was made, and cannot be seen; does the token allow reading it?")
        _check_rights(repo_id, seen, public=public, force=force)
        chosen = step(lambda: there.free_tag(tag, local[MANIFEST]))

        uploaded = [name for name, file in local.items() if not file.lies_at(seen.tree.get(name))]
        removed = removals(seen, local)
        _announce(uploaded, local, tell)
        commit = step(lambda: there.commit(local, seen, f"Release {manifest.digest[:12]}"))
        tree = step(lambda: there.tree(commit))
        for name, file in local.items():
            if not file.lies_at(tree.get(name)):
                raise HubError(f"{name} in {repo_id} is not what was sent; run the same command again.")
        step(lambda: there.put(chosen, commit))
        if public and seen.private:
            step(there.publish)
        return Upload(
            repo_id=repo_id,
            url=there.url,
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


def _check_secrets(folder: Path, token: str) -> None:
    for path in secret_scan.texts(folder):
        text = path.read_text("utf-8", errors="replace")
        if token in text or TOKEN.search(text):
            raise ArtifactError(
                f"{path.name} holds what looks like a token for the Hub; take it out before publishing."
            )


def _validate(card: Path, repo_type: str) -> None:
    """Have the Hub say whether it can read the card, before anything is made or sent."""
    from huggingface_hub import RepoCard

    RepoCard(card.read_text("utf-8")).validate(repo_type)


def _announce(uploaded: Sequence[str], local: Mapping[str, Local], tell: Tell) -> None:
    if uploaded:
        size = sum(local[name].size for name in uploaded)
        named = f": {', '.join(uploaded)}" if len(uploaded) < len(local) else ""
        tell(f"uploading {len(uploaded)} of {len(local)} files ({size / 1e6:,.1f} MB){named}")


def _check_rights(repo_id: str, seen: Seen, *, public: bool, force: bool) -> None:
    if seen.manifest is None and seen.tree.keys() - {ATTRIBUTES} and not force:
        raise HubError(
            f"{repo_id} exists, and countdown-rl did not make it; choose another --repo-id, or give --force to "
            "replace what is in it."
        )
    if not seen.private and not public:
        raise HubError(f"{repo_id} is public; give --public to publish there, or choose another --repo-id.")

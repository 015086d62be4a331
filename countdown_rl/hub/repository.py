"""A repository on the Hub as an upload sees it: what lies there now, what is missing, and the one commit.

Nothing here waits or tries again; each function may be called again after a failure (see
:mod:`countdown_rl.hub.upload`).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl import artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.errors import HubError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Made by the Hub in each repository; it says which files lie in large file storage.
ATTRIBUTES = ".gitattributes"
#: What each kind of artifact that can be uploaded is on the Hub.
TYPES: dict[str, Literal["model", "dataset"]] = {"release": "model", "data-release": "dataset"}

_VERSION = re.compile(r"v(\d+)")


@dataclass(frozen=True)
class Local:
    """A file of the release, as its manifest has it."""

    path: Path
    size: int
    sha256: str

    @property
    def git(self) -> str:
        # Read whole, which is right for what is not in large file storage: the Hub keeps only small files so.
        data = self.path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def lies_at(self, entry: Any) -> bool:
        """Whether *entry* of the Hub's tree is this file, by size and hash."""
        if entry is None or entry.size != self.size:
            return False
        return bool(entry.lfs.sha256 == self.sha256 if entry.lfs else entry.blob_id == self.git)


def local_files(folder: Path, manifest: Manifest) -> dict[str, Local]:
    """All files of the release at *folder*, by name, its manifest among them."""
    files = {name: Local(folder / name, entry["size"], entry["sha256"]) for name, entry in manifest.files.items()}
    own = folder / MANIFEST
    return files | {MANIFEST: Local(own, own.stat().st_size, artifacts.file_sha256(own))}


@dataclass(frozen=True)
class Seen:
    """What lay in a repository at one moment; ``manifest`` is that of the release there, where there is one."""

    head: str
    private: bool
    tree: dict[str, Any]
    manifest: Manifest | None


@dataclass(frozen=True)
class Tag:
    """The name of a version; ``taken`` when it stands on this very release already."""

    name: str
    taken: bool


@dataclass(frozen=True)
class Repository:
    """*id* on the Hub that *api* talks to, holding releases of *kind* ("release" or "data-release")."""

    api: "HfApi"
    id: str
    kind: str

    @property
    def type(self) -> Literal["model", "dataset"]:
        return TYPES[self.kind]

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{'datasets/' if self.type == 'dataset' else ''}{self.id}"

    def look(self) -> Seen | None:
        """What is there now, or None where there is no such repository."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            info = self.api.repo_info(self.id, repo_type=self.type)
        except RepositoryNotFoundError:
            return None
        head = str(info.sha)
        tree = self.tree(head)
        return Seen(head, bool(info.private), tree, self._manifest(head) if MANIFEST in tree else None)

    def make(self, *, private: bool) -> None:
        self.api.create_repo(self.id, repo_type=self.type, private=private, exist_ok=True)

    def publish(self) -> None:
        """Let everybody see it."""
        self.api.update_repo_settings(self.id, repo_type=self.type, visibility="public")

    def tree(self, revision: str) -> dict[str, Any]:
        """The Hub's entry of each file at *revision*, by name."""
        found = self.api.list_repo_tree(self.id, recursive=True, revision=revision, repo_type=self.type)
        return {entry.path: entry for entry in found if hasattr(entry, "size")}

    def commit(self, local: Mapping[str, Local], seen: Seen, message: str) -> str:
        """The commit that holds exactly *local*; made when it is not there yet.

        It looks again each time it is called, since an attempt whose answer was lost may have succeeded.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        head = str(self.api.repo_info(self.id, repo_type=self.type).sha)
        tree = seen.tree if head == seen.head else self.tree(head)
        changed = [name for name, file in local.items() if not file.lies_at(tree.get(name))]
        gone = [name for name in removals(seen, local) if name in tree]
        if not changed and not gone:
            return head
        if head != seen.head:
            raise HubError(f"{self.id} was changed by someone else meanwhile; run the same command again.")
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in gone]
        for name in changed:
            addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=local[name].path)
            addition.upload_info.sha256 = bytes.fromhex(local[name].sha256)  # known, so it is not read again for it
            operations.append(addition)
        made = self.api.create_commit(
            self.id, operations, commit_message=message, parent_commit=head, repo_type=self.type
        )
        return made.oid

    def free_tag(self, wanted: str | None, manifest: Local) -> Tag:
        """The tag for the release with that *manifest*: *wanted*, the one it carries already, or the next v1, v2, ...

        Raises:
            HubError: *wanted* stands on something else.
        """
        tags = [ref.name for ref in self.api.list_repo_refs(self.id, repo_type=self.type).tags]
        versions = sorted((int(match[1]) for name in tags if (match := _VERSION.fullmatch(name))), reverse=True)
        name = wanted or (f"v{versions[0]}" if versions else "v1")
        if name not in tags:
            return Tag(name, taken=False)
        found = self.api.get_paths_info(self.id, [MANIFEST], revision=name, repo_type=self.type)
        if manifest.lies_at({entry.path: entry for entry in found}.get(MANIFEST)):
            return Tag(name, taken=True)
        if wanted:
            raise HubError(f"{self.id} has a tag {wanted} already, on other files; give --tag another name.")
        return Tag(f"v{versions[0] + 1}", taken=False)

    def put(self, tag: Tag, commit: str) -> None:
        """Put *tag* on *commit*, unless it stands there."""
        if not tag.taken:
            self.api.create_tag(self.id, tag=tag.name, revision=commit, exist_ok=True, repo_type=self.type)

    def _manifest(self, revision: str) -> Manifest | None:
        """The manifest of the release there, or None where that file is something else."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(self.id, MANIFEST, revision=revision, endpoint=self.api.endpoint, repo_type=self.type)
        answer = get_session().get(url, headers=build_hf_headers(token=self.api.token))
        hf_raise_for_status(answer)
        try:
            manifest = Manifest(**json.loads(answer.content))
        except (ValueError, TypeError):
            return None
        return manifest if manifest.kind == self.kind and isinstance(manifest.files, dict) else None


def removals(seen: Seen, local: Mapping[str, Local]) -> list[str]:
    """What has to go so that the repository holds *local* alone, and what a person added to a release of ours."""
    # Only what an earlier release put there is ours to remove. Without one, --force was given: replace all.
    ours = seen.tree.keys() if seen.manifest is None else seen.manifest.files.keys() & seen.tree.keys()
    return sorted(ours - local.keys() - {ATTRIBUTES})

"""A Hub on this machine, in memory: the requests that huggingface_hub 2.4 sends to huggingface.co without Xet.

Repositories with commits, tags and privacy; LFS storage on another origin, as the real one has it; tokens that may
write, only read, or have expired; and faults on demand. ``hub.env`` points a child process at it; the ``hub`` fixture
points this process at it.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from countdown_rl.core import artifacts
from countdown_rl.release import upload
from countdown_rl.release.config import UploadOptions
from tests.support.runs import files

WRITE, READ, EXPIRED = "hf_testwrite" + "w" * 24, "hf_testread" + "r" * 24, "hf_old" + "x" * 30
STRANGER = "hf_other" + "s" * 26
LFS = re.compile(r".*\.(safetensors|bin|gguf|pt|parquet|png|zip)$")


def push(folder: Path, repo_id: str, **options: Any) -> Any:
    """Upload the release at *folder* after a check of its files, as the command does."""
    manifest = artifacts.read(folder, "release")
    return upload.push(folder, manifest, UploadOptions(repo_id=repo_id, **options))


@dataclass(frozen=True)
class Blob:
    """A file of a commit. ``oid`` is its ETag on the Hub: sha256 for LFS, Git's sha1 otherwise."""

    data: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.lfs else git_sha1(self.data)

    def entry(self, path: str) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(self.data), "oid": self.oid}
        lfs = {"oid": self.oid, "size": len(self.data), "pointerSize": 130}
        return entry | ({"oid": git_sha1(self.data), "lfs": lfs} if self.lfs else {})


@dataclass
class Repo:
    """A repository: the tree of each commit, and the refs."""

    owner: str
    private: bool
    trees: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, tree: dict[str, Blob], branch: str = "main") -> str:
        oids = {path: blob.oid for path, blob in sorted(tree.items())}
        sha = git_sha1(f"{len(self.trees)} {oids}".encode())
        self.trees[sha] = dict(tree)
        self.branches[branch] = sha
        return sha

    def find(self, revision: str) -> str:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.trees:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha

    @property
    def files(self) -> dict[str, bytes]:
        """What is on main now."""
        return {path: blob.data for path, blob in self.trees[self.branches["main"]].items()}


@dataclass
class Fault:
    """What goes wrong the next *times* that "METHOD /path" matches: an answer, or a cut connection.

    ``cut`` is "before" (half the request is read, nothing is done) or "after" (it is done, and the answer is
    lost).
    """

    match: str
    status: int = 500
    times: int = 1
    cut: str | None = None


class Hub:
    """The server. ``log`` holds "METHOD /path" of each request; ``leaks`` tokens that reached the storage."""

    def __init__(self) -> None:
        self.users = {WRITE: ("me", "write"), READ: ("me", "read"), STRANGER: ("other", "write")}
        self.token = WRITE
        self.repos: dict[tuple[str, str], Repo] = {}
        self.storage: dict[str, bytes] = {}
        self.log: list[str] = []
        self.leaks: list[str] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.store_url = f"http://localhost:{port}/.store"  # another name is another origin

    def add_model(
        self, repo_id: str, folder: Path, *, private: bool = False, repo_type: str = "model"
    ) -> str:
        """Put the files under *folder* into *repo_id*, which is created if new. Returns the commit."""
        repo = self.repos.setdefault((repo_type, repo_id), Repo(repo_id.split("/")[0], private))
        contents = files(folder).items()
        return repo.commit({name: Blob(data, bool(LFS.match(name))) for name, data in contents})

    def model(self, repo_id: str) -> Repo:
        return self.repos["model", repo_id]

    def fail(self, match: str, **fault: Any) -> None:
        """Let something go wrong; see :class:`Fault`. *match* is a pattern over "METHOD /path"."""
        self.faults.append(Fault(match, **fault))

    def env(self, home: Path, token: str = WRITE) -> dict[str, str]:
        """The environment of a child process that should take this for the Hub."""
        settings = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
        settings |= {"NO_PROXY": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1", "HF_TOKEN": token}
        return os.environ | settings


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub for the length of a block."""
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def card_data(page: str) -> dict[str, Any]:
    """The metadata of a card."""
    match = re.match(r"---\n(.*?)\n---\n", page, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


class RefusalError(Exception):
    """A refusal, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str | None = None, **content: str) -> None:
        super().__init__(message)
        self.status, self.content = status, {"error": message, **content}
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


#: Status, content and headers of a response.
Answer = tuple[int, Any, dict[str, str]]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
    body: bytes

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):  # the other side went away, or we cut it off
            self.close_connection = True

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        line, length = f"{self.command} {path}", int(self.headers.get("Content-Length") or 0)
        with hub.lock:
            hub.log.append(line)
            faults = [fault for fault in hub.faults if fault.times and re.search(fault.match, line)]
            for fault in faults[:1]:
                fault.times -= 1
        cut = faults[0].cut if faults else None
        if cut == "before":
            self.rfile.read(length // 2)
            return self.hang_up()
        self.body = self.rfile.read(length)
        if faults and not cut:
            return self.send(faults[0].status, {"error": "a fault was put in"}, {})
        try:
            with hub.lock:
                answer = self.answer(path)
        except RefusalError as refusal:
            answer = refusal.status, refusal.content, refusal.headers
        return self.hang_up() if cut == "after" else self.send(*answer)

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

    def answer(self, path: str) -> Answer:
        for method, pattern, handle in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split():
                content = handle(self, **match.groupdict())
                content, headers = content if isinstance(content, tuple) else (content, {})
                return 302 if "Location" in headers else 200, content, headers
        raise RefusalError(404, f"{self.command} {path} is nothing that this Hub knows")

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)

    def send(self, status: int, content: Any, headers: dict[str, str]) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(data))} | headers
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def user(self) -> tuple[str, str] | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.users:
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return self.hub.users.get(token)

    def repo(self, kind: str | None, id: str, *, write: bool = False) -> Repo:
        user = self.user()
        repo = self.hub.repos.get(((kind or "models").removesuffix("s"), id))
        if repo is None or (repo.private and (user is None or user[0] != repo.owner)):
            raise RefusalError(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and user != (repo.owner, "write"):
            raise RefusalError(403, "you need write access to this repository")
        return repo

    # One method per request of the API, which returns the content of the response, or a pair of it and headers.
    def create(self) -> Any:
        user, request = self.user() or ("", ""), json.loads(self.body)
        owner, kind = request.get("organization") or user[0], request.get("type", "model")
        if user != (owner, "write"):
            raise RefusalError(403, f"You don't have the rights to create a {kind} for {owner}.")
        id = f"{owner}/{request['name']}"
        created = {"url": f"{self.hub.url}/{id}", "name": id, "id": id}
        if (kind, id) in self.hub.repos:
            raise RefusalError(409, f"You already created this {kind} repo", **created)
        repo = self.hub.repos[kind, id] = Repo(owner, request.get("visibility") == "private")
        repo.commit({".gitattributes": Blob(b"*.safetensors filter=lfs", False)})
        return created

    def settings(self, kind: str, id: str) -> Any:
        self.repo(kind, id, write=True).private = json.loads(self.body)["visibility"] == "private"
        return {}

    def validate(self) -> Any:
        return {"errors": [], "warnings": []}

    def preupload(self, kind: str, id: str, rev: str) -> Any:
        repo = self.repo(kind, id, write=True)
        tree = repo.trees[repo.find(rev)]
        answers = []
        for path in (file["path"] for file in json.loads(self.body)["files"]):
            mode = "lfs" if LFS.match(path) else "regular"
            oid = tree[path].oid if path in tree else None
            answers.append({"path": path, "shouldIgnore": False, "uploadMode": mode, "oid": oid})
        return {"files": answers}

    def batch(self, kind: str | None, id: str) -> Any:
        self.repo(kind, id, write=True)
        objects = json.loads(self.body)["objects"]
        for file in objects:
            if file["oid"] not in self.hub.storage:
                url = f"{self.hub.store_url}/{file['oid']}?X-Amz-Signature=secret"
                file["actions"] = {"upload": {"href": url}}
        return {"transfer": "basic", "objects": objects}

    def store(self, oid: str) -> Any:
        if "Authorization" in self.headers:
            self.hub.leaks.append(self.headers["Authorization"])
        if self.command != "PUT":
            return self.hub.storage[oid]
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusalError(400, "the content does not have this hash")
        self.hub.storage[oid] = self.body
        return b"", {"ETag": f'"{oid}"'}

    def commit(self, kind: str, id: str, rev: str) -> Any:
        repo = self.repo(kind, id, write=True)
        head = repo.branches[rev]
        tree = dict(repo.trees[head])
        for item in map(json.loads, self.body.splitlines()):
            value = item["value"]
            if item["key"] == "header" and value.get("parentCommit", head) != head:
                raise RefusalError(412, "A commit has happened since.")
            if item["key"] == "file":
                tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                tree[value["path"]] = Blob(self.hub.storage[value["oid"]], True)
            elif item["key"] == "deletedFile":
                del tree[value["path"]]
        sha = repo.commit(tree, rev)
        return {"commitOid": sha, "commitUrl": f"{self.hub.url}/{id}/commit/{sha}"}

    def tag(self, kind: str, id: str, rev: str) -> Any:
        repo, name = self.repo(kind, id, write=True), json.loads(self.body)["tag"]
        if name in repo.tags:
            raise RefusalError(409, f"Reference already exists: {name}")
        repo.tags[name] = repo.find(rev)
        return {}

    def refs(self, kind: str, id: str) -> Any:
        repo = self.repo(kind, id)
        refs: dict[str, list[dict[str, str]]] = {"converts": [], "branches": [], "tags": []}
        for title in ("branches", "tags"):
            for name, sha in getattr(repo, title).items():
                refs[title].append({"name": name, "ref": name, "targetCommit": sha})
        return refs

    def info(self, kind: str, id: str, rev: str | None = None) -> Any:
        repo = self.repo(kind, id)
        sha = repo.find(rev or "main")
        siblings = [{"rfilename": path} for path in sorted(repo.trees[sha])]
        info = {"id": id, "sha": sha, "private": repo.private, "siblings": siblings}
        if "README.md" in repo.trees[sha]:
            info["cardData"] = card_data(repo.trees[sha]["README.md"].data.decode())
        return info

    def tree(self, kind: str, id: str, rev: str, under: str | None) -> Any:
        repo = self.repo(kind, id)
        tree, prefix = repo.trees[repo.find(rev)], f"{under}/" if under else ""
        entries = {}
        for path in sorted(tree):
            if path.startswith(prefix):
                entries[path] = tree[path].entry(path)
                for parent in map(str, PurePosixPath(path).parents[:-1]):
                    entries[parent] = {"type": "directory", "path": parent, "oid": git_sha1(b"")}
        if not entries and under:
            raise RefusalError(404, f"{under} does not exist on {rev}", "EntryNotFound")
        entries.pop(under, None)
        if "recursive=true" not in self.path.lower():
            entries = {
                path: entries[path] for path in entries if "/" not in path.removeprefix(prefix)
            }
        return list(entries.values())

    def resolve(self, kind: str | None, id: str, rev: str, path: str) -> Any:
        repo = self.repo(kind, id)
        sha = repo.find(rev)
        if path not in repo.trees[sha]:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        blob = repo.trees[sha][path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.oid}"', "X-Linked-Etag": f'"{blob.oid}"'}
        if not blob.lfs:
            return blob.data, headers
        self.hub.storage[blob.oid] = blob.data
        headers["X-Linked-Size"] = str(len(blob.data))
        return b"", headers | {"Location": f"{self.hub.store_url}/{blob.oid}"}


_API = r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
_GIT = r"/(?:(?P<kind>datasets)/)?(?P<id>[^/]+/[^/]+)"
ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("PUT", f"{_API}/settings", _Handler.settings),
    ("POST", f"{_API}/preupload/(?P<rev>.+)", _Handler.preupload),
    ("POST", f"{_API}/commit/(?P<rev>.+)", _Handler.commit),
    ("POST", f"{_API}/tag/(?P<rev>.+)", _Handler.tag),
    ("GET", f"{_API}/refs", _Handler.refs),
    ("GET", f"{_API}/tree/(?P<rev>[^/]+)(?:/(?P<under>.+))?", _Handler.tree),
    ("GET", f"{_API}(?:/revision/(?P<rev>.+))?", _Handler.info),
    ("POST", rf"{_GIT}\.git/info/lfs/objects/batch", _Handler.batch),
    ("GET HEAD", f"{_GIT}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("GET HEAD PUT", "/.store/(?P<oid>[0-9a-f]{64})", _Handler.store),
]

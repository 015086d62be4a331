"""A Hub on this machine, in memory: the requests that huggingface_hub 2.4 sends to huggingface.co without Xet.

Repositories with commits, tags and privacy; LFS storage on another origin, as the real one has it, with
single and multi-part uploads; tokens that may write, only read, or have expired; and faults on demand.
``hub.env`` points a child process at it; the ``hub`` fixture points this process at it.
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
from urllib.parse import parse_qs, unquote, urlsplit

from countdown_rl.core import artifacts
from countdown_rl.release import upload
from countdown_rl.release.config import UploadOptions

WRITE, READ, EXPIRED, STRANGER = (
    "hf_testwrite" + "w" * 24,
    "hf_testread" + "r" * 24,
    "hf_old" + "x" * 30,
    "hf_other" + "s" * 26,
)
LFS = re.compile(r".*\.(safetensors|bin|gguf|pt|parquet|png|zip)$")


def push(folder: Path, repo_id: str, **options: Any) -> Any:
    """Upload the release at *folder* after a check of its files, as the command does."""
    manifest = artifacts.read(folder, upload.REPO_TYPES)
    return upload.push(folder, manifest, UploadOptions(push=True, repo_id=repo_id, **options))


@dataclass(frozen=True)
class Blob:
    """A file of a commit. ``oid`` is its ETag on the Hub: sha256 for LFS, Git's sha1 otherwise."""

    data: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        return hashlib.sha256(self.data).hexdigest() if self.lfs else git_sha1(self.data)

    def entry(self, path: str) -> dict[str, Any]:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.oid}\nsize {len(self.data)}\n".encode()
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(self.data), "oid": self.oid}
        if self.lfs:
            entry |= {
                "oid": git_sha1(pointer),
                "lfs": {"oid": self.oid, "size": len(self.data), "pointerSize": len(pointer)},
            }
        return entry


@dataclass
class Repo:
    """A repository: the tree of each commit, and the refs."""

    owner: str
    private: bool
    trees: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, tree: dict[str, Blob], branch: str = "main") -> str:
        text = f"{len(self.trees)} " + " ".join(f"{path}:{blob.oid}" for path, blob in sorted(tree.items()))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.trees[sha] = dict(tree)
        self.branches[branch] = sha
        return sha

    def find(self, revision: str) -> str | None:
        return self.branches.get(revision) or self.tags.get(revision) or (revision if revision in self.trees else None)

    @property
    def files(self) -> dict[str, bytes]:
        """What is on main now."""
        return {path: blob.data for path, blob in self.trees[self.branches["main"]].items()}


@dataclass
class Fault:
    """What goes wrong the next *times* that "METHOD /path" matches: an answer, or a cut connection.

    ``cut`` is "before" (half the request is read, nothing is done), "after" (it is done, and the answer is
    lost) or "body" (half of the answer's body is sent).
    """

    match: str
    status: int = 500
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    cut: str | None = None


class Hub:
    """The server. ``log`` holds "METHOD /path" of each request; ``leaks`` tokens that reached the storage."""

    def __init__(self) -> None:
        self.users = {WRITE: ("me", "write"), READ: ("me", "read"), STRANGER: ("other", "write")}
        self.token = WRITE
        self.repos: dict[tuple[str, str], Repo] = {}
        self.storage: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.part_size: int | None = None  # files larger than this go up in parts
        self.log: list[str] = []
        self.leaks: list[str] = []
        self.faults: list[Fault] = []
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.store_url = f"http://localhost:{self.port}/.store"  # another name is another origin

    def add_model(self, repo_id: str, folder: Path, *, private: bool = False, repo_type: str = "model") -> str:
        """Put the files under *folder* into *repo_id*, which is created if new. Returns the commit."""
        repo = self.repos.setdefault((repo_type, repo_id), Repo(repo_id.split("/")[0], private))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return repo.commit({name: Blob(data, bool(LFS.match(name))) for name, data in names.items()})

    def model(self, repo_id: str) -> Repo:
        return self.repos["model", repo_id]

    def fail(self, match: str, **what: Any) -> None:
        """Let something go wrong; see :class:`Fault`. *match* is a pattern over "METHOD /path"."""
        self.faults.append(Fault(match, **what))

    def env(self, home: Path, token: str | None = WRITE) -> dict[str, str]:
        """The environment of a child process that should take this for the Hub."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        clean |= {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
        clean |= {"NO_PROXY": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1"}
        return clean | ({"HF_TOKEN": token} if token else {})

    def serving(self) -> None:
        self.server.serve_forever(poll_interval=0.02)


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub for the length of a block."""
    hub = Hub()
    thread = threading.Thread(target=hub.serving, daemon=True)
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
    import yaml

    match = re.match(r"---\n(.*?)\n---\n", page, re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


class RefusalError(Exception):
    """A refusal, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
    body: bytes
    cut: str | None

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):  # the other side went away, or we cut it off
            self.close_connection = True

    def do_GET(self) -> None:
        self.route()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def route(self) -> None:
        split = urlsplit(self.path)
        self.query = parse_qs(split.query)
        path = unquote(split.path)
        line = f"{self.command} {path}"
        hub = self.hub
        length = int(self.headers.get("Content-Length") or 0)
        with hub.lock:
            hub.log.append(line)
            fault = next((fault for fault in hub.faults if fault.times > 0 and re.search(fault.match, line)), None)
            if fault:
                fault.times -= 1
        self.cut = fault.cut if fault else None
        if self.cut == "before":
            self.rfile.read(length // 2)
            return self.hang_up()
        self.body = (
            self.chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else self.rfile.read(length)
        )
        if fault and not self.cut:
            return self.send(fault.status, {"error": "a fault was put in"}, **fault.headers)
        try:
            for method, pattern, handle in ROUTES:
                match = re.fullmatch(pattern, path)
                if match and self.command in method.split():
                    with hub.lock:
                        answer = handle(self, **match.groupdict())
                    if self.cut == "after":
                        return self.hang_up()
                    return answer()
            raise RefusalError(404, f"{line} is nothing that this Hub knows")
        except RefusalError as refusal:
            extra = {"X-Error-Message": refusal.message} | ({"X-Error-Code": refusal.code} if refusal.code else {})
            self.send(refusal.status, {"error": refusal.message}, **extra)
        return None

    def chunked(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)

    def send(self, status: int, content: Any = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for key, value in ({"Content-Type": kind, "Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if self.cut == "body" else data)
            if self.cut == "body":
                self.hang_up()

    def reply(self, status: int, content: Any = b"", **headers: str) -> Callable[[], None]:
        return lambda: self.send(status, content, **headers)

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
        if write and (user is None or user[0] != repo.owner or user[1] != "write"):
            raise RefusalError(403, "you need write access to this repository")
        return repo

    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    # One method per request of the API. Each returns a function that sends the response, so that it can be lost.

    def whoami(self) -> Callable[[], None]:
        user = self.user()
        if user is None:
            raise RefusalError(401, "Invalid username or password.")
        return self.reply(200, {"type": "user", "name": user[0], "auth": {"accessToken": {"role": user[1]}}})

    def create(self) -> Callable[[], None]:
        user, request = self.user(), self.json()
        if user is None:
            raise RefusalError(401, "Invalid username or password.")
        owner = request.get("organization") or user[0]
        id, kind = f"{owner}/{request['name']}", request.get("type", "model")
        if user != (owner, "write"):
            raise RefusalError(403, f"You don't have the rights to create a {kind} under the namespace {owner}.")
        created = {"url": f"{self.hub.url}/{id}", "name": id, "id": id}
        if (kind, id) in self.hub.repos:
            return self.reply(409, {"error": "You already created this model repo", **created})
        repo = self.hub.repos[kind, id] = Repo(owner, request.get("visibility") == "private")
        repo.commit({".gitattributes": Blob(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", False)})
        return self.reply(200, created)

    def settings(self, kind: str, id: str) -> Callable[[], None]:
        self.repo(kind, id, write=True).private = self.json()["visibility"] == "private"
        return self.reply(200, {})

    def validate(self) -> Callable[[], None]:
        import yaml

        try:
            data = card_data(self.json()["content"])
        except yaml.YAMLError as error:
            return self.reply(400, {"errors": [{"message": str(error)}], "warnings": []})
        errors = [] if isinstance(data.get("tags", []), list) else [{"message": '"tags" must be an array'}]
        return self.reply(400 if errors else 200, {"errors": errors, "warnings": []})

    def preupload(self, kind: str, id: str, rev: str) -> Callable[[], None]:
        repo = self.repo(kind, id, write=True)
        tree = repo.trees[repo.find(rev) or repo.branches["main"]]
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if LFS.match(file["path"]) else "regular",
                "shouldIgnore": False,
                "oid": tree[file["path"]].oid if file["path"] in tree else None,
            }
            for file in self.json()["files"]
        ]
        return self.reply(200, {"files": files})

    def batch(self, kind: str | None, id: str) -> Callable[[], None]:
        self.repo(kind, id, write=True)
        objects = []
        for wanted in self.json()["objects"]:
            oid, size = wanted["oid"], wanted["size"]
            entry: dict[str, Any] = {"oid": oid, "size": size}
            if oid not in self.hub.storage:
                prefix = f"{kind}/" if kind else ""
                upload: dict[str, Any] = {"href": f"{self.hub.store_url}/{oid}?X-Amz-Signature=secret"}
                if self.hub.part_size and size > self.hub.part_size:
                    count = -(-size // self.hub.part_size)
                    urls = {f"{n:05d}": f"{self.hub.store_url}/{oid}/{n}" for n in range(1, count + 1)}
                    href = f"{self.hub.url}/{prefix}{id}.git/info/lfs/complete"
                    upload = {"href": href, "header": {"chunk_size": str(self.hub.part_size), **urls}}
                verify = {"href": f"{self.hub.url}/{prefix}{id}.git/info/lfs/verify", "header": {}}
                entry["actions"] = {"upload": upload, "verify": verify}
            objects.append(entry)
        return self.reply(200, {"transfer": "basic", "objects": objects})

    def store(self, oid: str, part: str | None) -> Callable[[], None]:
        if "Authorization" in self.headers:
            self.hub.leaks.append(self.headers["Authorization"])
        if self.command != "PUT":
            data, status, extra = self.ranged(self.hub.storage[oid])
            return self.reply(status, data, **extra)
        if part:
            self.hub.parts.setdefault(oid, {})[int(part)] = self.body
        elif hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusalError(400, "the content does not have this hash")
        else:
            self.hub.storage[oid] = self.body
        return self.reply(200, ETag=f'"{hashlib.md5(self.body).hexdigest()}"')

    def complete(self, kind: str | None, id: str) -> Callable[[], None]:
        request = self.json()
        data = b"".join(self.hub.parts[request["oid"]][part["partNumber"]] for part in request["parts"])
        if hashlib.sha256(data).hexdigest() != request["oid"]:
            raise RefusalError(400, "the parts do not have this hash")
        self.hub.storage[request["oid"]] = data
        return self.reply(200, {"success": True})

    def verify(self, kind: str | None, id: str) -> Callable[[], None]:
        self.repo(kind, id, write=True)
        data = self.hub.storage.get(self.json()["oid"])
        if data is None or len(data) != self.json()["size"]:
            raise RefusalError(404, "the object is not in the storage")
        return self.reply(200, {})

    def commit(self, kind: str, id: str, rev: str) -> Callable[[], None]:
        repo = self.repo(kind, id, write=True)
        head = repo.branches[rev]
        tree = dict(repo.trees[head])
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header" and value.get("parentCommit", head) != head:
                raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
            if item["key"] == "file":
                tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.hub.storage:
                    raise RefusalError(400, "LFS pointer pointed to a file that does not exist")
                tree[value["path"]] = Blob(self.hub.storage[value["oid"]], True)
            elif item["key"] == "deletedFile" and tree.pop(value["path"], None) is None:
                raise RefusalError(404, "A file with this name doesn't exist", "EntryNotFound")
        sha = repo.commit(tree, rev)
        return self.reply(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{id}/commit/{sha}"})

    def tag(self, kind: str, id: str, rev: str) -> Callable[[], None]:
        repo, name = self.repo(kind, id, write=True), self.json()["tag"]
        if name in repo.tags:
            raise RefusalError(409, f"Reference already exists: {name}")
        repo.tags[name] = self.revision(repo, rev)
        return self.reply(200, {})

    def refs(self, kind: str, id: str) -> Callable[[], None]:
        repo = self.repo(kind, id)

        def listing(names: dict[str, str], place: str) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{place}/{name}", "targetCommit": sha} for name, sha in names.items()]

        refs = {"branches": listing(repo.branches, "heads"), "tags": listing(repo.tags, "tags"), "converts": []}
        return self.reply(200, refs)

    def info(self, kind: str, id: str, rev: str | None = None) -> Callable[[], None]:
        repo = self.repo(kind, id)
        sha = self.revision(repo, rev or "main")
        names = [{"rfilename": path} for path in sorted(repo.trees[sha])]
        info = {"id": id, "modelId": id, "sha": sha, "private": repo.private, "tags": [], "siblings": names}
        if "README.md" in repo.trees[sha]:
            info["cardData"] = card_data(repo.trees[sha]["README.md"].data.decode())
        return self.reply(200, info | {"downloads": 0, "likes": 0, "gated": False, "disabled": False})

    def tree(self, kind: str, id: str, rev: str, under: str | None) -> Callable[[], None]:
        repo = self.repo(kind, id)
        tree, prefix = repo.trees[self.revision(repo, rev)], f"{under}/" if under else ""
        entries = [blob.entry(path) for path, blob in sorted(tree.items()) if path.startswith(prefix)]
        folders = {parent.as_posix() for entry in entries for parent in PurePosixPath(entry["path"]).parents[:-1]}
        within = sorted(folder for folder in folders if folder.startswith(prefix))
        entries += [{"type": "directory", "path": path, "oid": git_sha1(path.encode()), "size": 0} for path in within]
        if not entries and under:
            raise RefusalError(404, f"{under} does not exist on {rev}", "EntryNotFound")
        if self.query.get("recursive", ["false"])[0].lower() != "true":
            entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
        return self.reply(200, entries)

    def paths(self, kind: str, id: str, rev: str) -> Callable[[], None]:
        repo = self.repo(kind, id)
        tree = repo.trees[self.revision(repo, rev)]
        paths = parse_qs(self.body.decode())["paths"]
        return self.reply(200, [tree[path].entry(path) for path in paths if path in tree])

    def resolve(self, kind: str | None, id: str, rev: str, path: str) -> Callable[[], None]:
        repo = self.repo(kind, id)
        sha = self.revision(repo, rev)
        blob = repo.trees[sha].get(path)
        if blob is None:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.lfs:
            self.hub.storage[blob.oid] = blob.data
            headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.data))}
            return self.reply(302, Location=f"{self.hub.store_url}/{blob.oid}", **headers)
        data, status, extra = self.ranged(blob.data)
        return self.reply(status, data, **headers, **extra)

    def ranged(self, data: bytes) -> tuple[bytes, int, dict[str, str]]:
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not requested:
            return data, 200, {}
        first, last = int(requested[1]), int(requested[2] or len(data) - 1)
        return data[first : last + 1], 206, {"Content-Range": f"bytes {first}-{last}/{len(data)}"}

    def revision(self, repo: Repo, rev: str) -> str:
        sha = repo.find(rev)
        if sha is None:
            raise RefusalError(404, f"Invalid rev id: {rev}", "RevisionNotFound")
        return sha


_API = r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
_GIT = r"/(?:(?P<kind>datasets)/)?(?P<id>[^/]+/[^/]+)"
ROUTES: list[tuple[str, str, Callable[..., Callable[[], None]]]] = [
    ("GET", "/api/whoami-v2", _Handler.whoami),
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("PUT", f"{_API}/settings", _Handler.settings),
    ("POST", f"{_API}/preupload/(?P<rev>.+)", _Handler.preupload),
    ("POST", f"{_API}/commit/(?P<rev>.+)", _Handler.commit),
    ("POST", f"{_API}/tag/(?P<rev>.+)", _Handler.tag),
    ("POST", f"{_API}/paths-info/(?P<rev>.+)", _Handler.paths),
    ("GET", f"{_API}/refs", _Handler.refs),
    ("GET", f"{_API}/tree/(?P<rev>[^/]+)(?:/(?P<under>.+))?", _Handler.tree),
    ("GET", f"{_API}(?:/revision/(?P<rev>.+))?", _Handler.info),
    ("POST", rf"{_GIT}\.git/info/lfs/objects/batch", _Handler.batch),
    ("POST", rf"{_GIT}\.git/info/lfs/complete", _Handler.complete),
    ("POST", rf"{_GIT}\.git/info/lfs/verify", _Handler.verify),
    ("GET HEAD", f"{_GIT}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("GET HEAD PUT", "/.store/(?P<oid>[0-9a-f]{64})(?:/(?P<part>[0-9]+))?", _Handler.store),
]

"""A stand-in for the Hub on localhost: the endpoints that uploads and downloads use, and failures at chosen requests.

It keeps repositories in memory and checks what the Hub checks: tokens, hashes and sizes of large files, that a commit names
only large files that were uploaded. Failures are queued by endpoint: ``hub.failures["commit"] += [503, "drop"]`` makes the
next two commits fail, and lets those after them through.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standInSecretToken0123456789"
USER = "me"
LARGE = (".safetensors", ".bin", ".pt", ".pth", ".png", ".model")

REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES = [
    ("whoami", "GET", r"/api/whoami-v2"),
    ("create", "POST", r"/api/repos/create"),
    ("validate", "POST", r"/api/validate-yaml"),
    ("preupload", "POST", rf"/api/models/{REPO}/preupload/(?P<revision>[^/]+)"),
    ("branch", "POST", rf"/api/models/{REPO}/branch/(?P<revision>[^/]+)"),
    ("commit", "POST", rf"/api/models/{REPO}/commit/(?P<revision>[^/]+)"),
    ("tree", "GET", rf"/api/models/{REPO}/tree/(?P<revision>[^/]+)(?P<path>.*)"),
    ("info", "GET", rf"/api/models/{REPO}(/revision/(?P<revision>[^/]+))?"),
    ("batch", "POST", rf"/{REPO}\.git/info/lfs/objects/batch"),
    ("put", "PUT", r"/objects/(?P<oid>[0-9a-f]{64})"),
    ("verify", "POST", r"/verify"),
    ("resolve", "GET|HEAD", rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
]


@dataclass
class Repository:
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    large: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)


class Answer(Exception):
    """What a request is answered with."""

    def __init__(self, status: int, body=None, **headers: str):
        super().__init__(status)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()


class StandIn:
    """The server; use it as a context manager.

    Attributes:
        endpoint: what HF_ENDPOINT must be.
        token: the only one that is let in.
        repositories: by name.
        objects: large files, by hash.
        requests: names of the endpoints that were asked, in order.
        failures: by endpoint, what its next requests meet: a status, ``drop`` (the connection is cut while the request is
            sent), ``truncate`` (while it is answered), ``stall`` (no answer until the server ends), or None for nothing.
    """

    def __init__(self, token: str = TOKEN):
        self.token = token
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.failures: dict[str, list] = defaultdict(list)
        self.ending = threading.Event()
        self.stalled = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> "StandIn":
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()  # it ends within so long
        return self

    def __exit__(self, *error) -> None:
        self.ending.set()
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home) -> dict[str, str]:
        """Variables with which clients talk to this server alone; ``home`` is a folder for their files."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HOME": str(home),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        return self.repositories[repo].branches[revision]

    # Endpoints ---------------------------------------------------------------------------------------------------------

    def whoami(self, request) -> Answer:
        request.need_token()
        return Answer(200, {"name": USER, "type": "user", "orgs": []})

    def create(self, request) -> Answer:
        request.need_token()
        asked = request.json()
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if not name.startswith(f"{USER}/"):
            raise Answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        url = {"url": f"{self.endpoint}/{name}"}
        if name in self.repositories:
            raise Answer(409, {"error": "You already created this model repo"} | url)
        self.repositories[name] = Repository(asked.get("visibility") == "private")
        return Answer(200, url)

    def validate(self, request) -> Answer:
        return Answer(200, {"errors": [], "warnings": []})

    def preupload(self, request, repo: str, revision: str) -> Answer:
        request.need_token()
        held, kept = request.branch(repo, revision), self._repository(repo)
        files = []
        for file in request.json()["files"]:
            path, large = file["path"], file["path"].endswith(LARGE) or file["size"] > 10_000_000
            oid = None
            if path in held:
                oid = _sha256(held[path]) if path in kept.large else _git_hash(held[path])
            files.append({"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid})
        return Answer(200, {"files": files})

    def branch(self, request, repo: str, revision: str) -> Answer:
        request.need_token()
        branches = self._repository(repo).branches
        if revision in branches:
            raise Answer(409, {"error": f"Reference already exists: {revision}"})
        branches[revision] = dict(branches["main"])
        return Answer(200)

    def batch(self, request, repo: str) -> Answer:
        request.need_token()
        self._repository(repo)
        objects = []
        for asked in request.json()["objects"]:
            actions = {
                "upload": {"href": f"{self.endpoint}/objects/{asked['oid']}"},
                "verify": {"href": f"{self.endpoint}/verify"},
            }
            objects.append(asked if asked["oid"] in self.objects else asked | {"actions": actions})
        return Answer(200, {"transfer": "basic", "objects": objects})

    def put(self, request, oid: str) -> Answer:
        if request.headers.get("Authorization"):
            raise Answer(400, b"a token must not be sent to the storage")
        if _sha256(request.body) != oid:
            raise Answer(400, b"BadDigest")
        self.objects[oid] = request.body
        return Answer(200, b"", ETag=f'"{oid}"')

    def verify(self, request) -> Answer:
        request.need_token()
        asked = request.json()
        if len(self.objects.get(asked["oid"], b"")) != asked["size"]:
            raise Answer(404, {"error": "Object does not exist"})
        return Answer(200)

    def commit(self, request, repo: str, revision: str) -> Answer:
        request.need_token()
        held, kept = request.branch(repo, revision), self._repository(repo)
        header, *operations = [json.loads(line) for line in request.body.splitlines()]
        new, large = {}, set()
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Answer(400, {"error": f"LFS object {value['oid']} was not uploaded"})
                new[value["path"]] = self.objects[value["oid"]]
                large.add(value["path"])
        held.update(new)
        kept.large |= large
        kept.messages.append(header["value"]["summary"])
        oid = self._commit_id(repo, revision)
        return Answer(200, {"commitUrl": f"{self.endpoint}/{repo}/commit/{oid}", "commitOid": oid, "hookOutput": ""})

    def info(self, request, repo: str, revision: str | None) -> Answer:
        request.need_to_read(repo)
        held = request.branch(repo, revision or "main")
        files = [{"rfilename": path} for path in held]
        sha = self._commit_id(repo, revision or "main")
        return Answer(200, {"id": repo, "modelId": repo, "sha": sha, "siblings": files, "private": False, "tags": []})

    def tree(self, request, repo: str, revision: str, path: str) -> Answer:
        request.need_to_read(repo)
        held, prefix = request.branch(repo, revision), path.strip("/")
        files = [
            {"type": "file", "oid": _git_hash(content), "size": len(content), "path": name}
            for name, content in held.items()
            if name.startswith(prefix)
        ]
        if prefix and not files:
            raise Answer(404, {"error": "not found"}, X_Error_Code="EntryNotFound")
        return Answer(200, files)

    def resolve(self, request, repo: str, revision: str, path: str) -> Answer:
        request.need_to_read(repo)
        held = request.branch(repo, revision)
        headers = {"X_Repo_Commit": self._commit_id(repo, revision)}
        if path not in held:
            raise Answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", **headers)
        content, digest = held[path], _sha256(held[path])
        headers |= {"ETag": f'"{digest}"', "X_Linked_ETag": f'"{digest}"', "X_Linked_Size": str(len(content))}
        return Answer(200, content, Content_Type="application/octet-stream", **headers)

    def unknown(self, request) -> Answer:
        return Answer(404, {"error": f"{request.command} {request.path} is not part of the stand-in"})

    def _repository(self, repo: str) -> Repository:
        if repo not in self.repositories:
            raise Answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return self.repositories[repo]

    def _commit_id(self, repo: str, revision: str) -> str:
        held = self.repositories[repo].branches.get(revision)
        if held is None:
            return revision
        listing = repr([(path, _sha256(content)) for path, content in sorted(held.items())])
        return hashlib.sha1(listing.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        name, arguments = self._route()
        with self.hub.lock:
            self.hub.requests.append(name)
            failure = self.hub.failures[name].pop(0) if self.hub.failures[name] else None
        if failure == "drop":
            self.close_connection = True
            return
        self.body = self._read_body()
        if failure == "stall":
            self.hub.stalled.set()
            self.hub.ending.wait()
            self.close_connection = True
            return
        try:
            if isinstance(failure, int):
                raise Answer(failure, {"error": f"failing on purpose with {failure}"})
            with self.hub.lock:
                answer = getattr(self.hub, name)(self, **arguments)
        except Answer as refused:
            answer = refused
        self._send(answer, truncated=failure == "truncate")

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def json(self):
        return json.loads(self.body)

    def need_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            raise Answer(401, {"error": "Invalid username or password."})

    def need_to_read(self, repo: str) -> None:
        if self.hub._repository(repo).private:
            self.need_token()

    def branch(self, repo: str, revision: str) -> dict[str, bytes]:
        branches = self.hub._repository(repo).branches
        for name, held in branches.items():
            if revision in (name, self.hub._commit_id(repo, name)):
                return held
        raise Answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")

    def _route(self) -> tuple[str, dict[str, str | None]]:
        path = urlsplit(self.path).path
        for name, methods, pattern in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in methods.split("|"):
                return name, {key: value and unquote(value) for key, value in match.groupdict().items()}
        return "unknown", {}

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, answer: Answer, truncated: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if truncated else answer.body)
        self.close_connection = truncated

    def log_message(self, *args) -> None:
        """Say nothing."""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def clean_environment() -> dict[str, str]:
    """This process's variables without proxies, which would stand between a client and localhost."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def messages(caplog) -> str:
    """What the package has said."""
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("headless_trainer"))

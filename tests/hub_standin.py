"""A stand-in for the Hub on localhost: the endpoints that uploads use, with repositories in
memory.
"""

import base64
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standInSecretToken0123456789"
USER = "me"
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES = {
    "create": r"/api/repos/create",
    "validate": r"/api/validate-yaml",
    "preupload": rf"/api/models/{REPO}/preupload/(?P<revision>[^/]+)",
    "branch": rf"/api/models/{REPO}/branch/(?P<revision>[^/]+)",
    "commit": rf"/api/models/{REPO}/commit/(?P<revision>[^/]+)",
}


@dataclass
class Repository:
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    messages: list[str] = field(default_factory=list)


class StandIn:
    """The server, as a context manager, with its ``repositories`` by name.

    ``token`` is the only one that is let in. So many uploads as ``stalls`` says get no answer
    until the server ends, which sets ``stalled``.
    """

    def __init__(self, token: str = TOKEN):
        self.token = token
        self.repositories: dict[str, Repository] = {}
        self.stalls = 0
        self.ending, self.stalled, self.lock = (
            threading.Event(),
            threading.Event(),
            threading.Lock(),
        )

    def __enter__(self) -> "StandIn":
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self})
        )
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(
            target=self.server.serve_forever, args=(0.01,), daemon=True
        ).start()  # it ends within so long
        return self

    def __exit__(self, *error) -> None:
        self.ending.set()
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home) -> dict[str, str]:
        """Variables with which clients talk to this server alone; ``home`` is a folder for their
        files.
        """
        on = dict.fromkeys(
            ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK"), "1"
        )
        here = {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(home),
        }
        return on | here | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        return self.repositories[repo].branches[revision]

    # Endpoints: status and body of the answer
    # ----------------------------------------------------------------------------

    def create(self, asked: bytes):
        named = json.loads(asked)
        name = f"{named.get('organization') or USER}/{named['name']}"
        known = name in self.repositories
        self.repositories.setdefault(name, Repository(named.get("visibility") == "private"))
        return 409 if known else 200, {"url": f"{self.endpoint}/{name}"}

    def validate(self, asked: bytes):
        return 200, {"errors": [], "warnings": []}

    def preupload(self, asked: bytes, repo: str, revision: str):
        # All in the commit, no large files.
        regular = {
            "uploadMode": "regular",
            "shouldIgnore": False,
            "oid": None,
        }
        return 200, {
            "files": [{"path": file["path"], **regular} for file in json.loads(asked)["files"]]
        }

    def branch(self, asked: bytes, repo: str, revision: str):
        branches = self.repositories[repo].branches
        known = revision in branches
        branches.setdefault(revision, dict(branches["main"]))
        return 409 if known else 200, {
            "error": f"Reference already exists: {revision}"
        } if known else {}

    def commit(self, asked: bytes, repo: str, revision: str):
        header, *operations = [json.loads(line)["value"] for line in asked.splitlines()]
        for file in operations:
            self.files(repo, revision)[file["path"]] = base64.b64decode(file["content"])
        self.repositories[repo].messages.append(header["summary"])
        oid = f"{len(self.repositories[repo].messages):040x}"
        return 200, {
            "commitUrl": f"{self.endpoint}/{repo}/commit/{oid}",
            "commitOid": oid,
            "hookOutput": "",
        }


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        path, asked = urlsplit(self.path).path, self._read_body()
        matches = ((name, re.fullmatch(pattern, path)) for name, pattern in ROUTES.items())
        name, match = next(filter(lambda found: found[1], matches), ("unknown", None))
        with self.hub.lock:
            stalls = name == "preupload" and self.hub.stalls > 0
            self.hub.stalls -= stalls
        if stalls:
            self.hub.stalled.set()
            self.hub.ending.wait()
            self.close_connection = True
            return
        status, body = 404, {"error": f"{self.command} {self.path} is not part of the stand-in"}
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            status, body = 401, {"error": "Invalid username or password."}
        elif match is not None:
            named = {key: value and unquote(value) for key, value in match.groupdict().items()}
            with self.hub.lock:
                status, body = getattr(self.hub, name)(asked, **named)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = answer

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        return body

    def log_message(self, *args) -> None:
        """Say nothing."""


def messages(caplog) -> str:
    """What the package has said."""
    return "\n".join(
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("headless_trainer")
    )

"""A stand-in for the Hugging Face hub on the loopback interface, with its faults on demand.

It answers what huggingface_hub asks for in a download: the list of a repository's files, and the
files themselves, the large ones through a redirect to another host that must not see the token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Repo:
    """A repository: its files at one commit, and who may read them.

    gated    everyone sees the list, and only a token reads the files
    private  without a token it does not exist
    plain    paths that are ordinary git files, named by their sha1, and not in LFS
    """

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    licence: str = "apache-2.0"
    plain: frozenset[str] = frozenset()
    revisions: tuple[str, ...] = ("main",)
    commit: str = ""

    def __post_init__(self) -> None:
        """Name the commit after the contents."""
        if not self.commit:
            text = repr(sorted((path, sha256(data)) for path, data in self.files.items()))
            self.commit = hashlib.sha1(text.encode()).hexdigest()

    def sibling(self, path: str) -> dict[str, object]:
        """Return what the list says of a file."""
        data = self.files[path]
        entry: dict[str, object] = {
            "rfilename": path,
            "size": len(data),
            "blobId": git_sha1(data),
        }
        if path not in self.plain:
            entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
        return entry


@dataclass
class Seen:
    """A request that came in."""

    method: str
    path: str
    host: str
    headers: dict[str, str]


@dataclass
class Hub:
    """The hub's contents, its faults, and what it was asked.

    drop_after    close the connection after so many bytes of a file, so many times (`n_drops`)
    status        answer everything with this status
    portal        answer everything with a web page, as the login page of a network does
    hang          accept a request and never answer
    delay_s       wait before each piece of a file
    ignore_range  always send whole files
    corrupt       send other bytes of the same length
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    drop_after: int = 0
    n_drops: int = 0
    status: int = 0
    portal: bool = False
    hang: bool = False
    delay_s: float = 0.0
    ignore_range: bool = False
    corrupt: bool = False
    seen: list[Seen] = field(default_factory=list)
    n_sent: int = 0
    endpoint: str = ""
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, part: str) -> list[Seen]:
        """Return the requests whose path has a part."""
        return [request for request in self.seen if part in request.path]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Run the hub until the block ends; `hub.endpoint` is its address."""

    class BoundHandler(Handler):
        """Answers for this hub."""

    BoundHandler.hub = hub
    server = QuietServer(("127.0.0.1", 0), BoundHandler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class QuietServer(ThreadingHTTPServer):
    """Serves in threads that end with the process; a client that hangs up is no news."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a body."""
        self.answer()

    def do_HEAD(self) -> None:
        """Answer without one."""
        self.answer()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def answer(self) -> None:
        """Record the request and answer it, faults first."""
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.seen.append(Seen(self.command, path, headers.get("host", ""), headers))
        if hub.hang:
            hub.released.wait(30)
            self.close_connection = True
        elif hub.portal:
            self.reply(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        elif hub.status:
            self.reply(hub.status, b"{}")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.list_files(found[1], found[2])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/elsewhere/([0-9a-f]+)", path):
            self.send_file(found[1])
        else:
            self.reply(404, b"{}")

    @property
    def has_token(self) -> bool:
        """Whether the request bears the token."""
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def list_files(self, name: str, revision: str) -> None:
        """Answer with a repository's files."""
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self.has_token):
            self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        if revision not in (*repo.revisions, repo.commit):
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        document = {
            "_id": "0",
            "id": name,
            "sha": repo.commit,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "tags": ["gguf", f"license:{repo.licence}"],
            "siblings": [repo.sibling(path) for path in repo.files],
        }
        self.reply(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def resolve(self, name: str, revision: str, path: str) -> None:
        """Answer with a file, or with where a large one lies."""
        repo = self.hub.repos.get(name)
        if repo is None or revision not in (*repo.revisions, repo.commit):
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (repo.gated or repo.private) and not self.has_token:
            self.reply(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path not in repo.files:
            self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        elif path in repo.plain:
            self.send_body(repo.files[path])
        else:
            digest = sha256(repo.files[path])
            port = self.server.server_address[1]
            # Another origin, as the storage behind the hub is.
            location = f"http://localhost:{port}/elsewhere/{digest}"
            headers = {
                "Location": location,
                "X-Repo-Commit": repo.commit,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(repo.files[path])),
            }
            self.reply(302, b"", headers)

    def send_file(self, digest: str) -> None:
        """Answer with the file that has a sha256."""
        for repo in self.hub.repos.values():
            for data in repo.files.values():
                if sha256(data) == digest:
                    self.send_body(data)
                    return
        self.reply(404, b"")

    def send_body(self, data: bytes) -> None:
        """Send a file or the rest of it, with the faults that are asked for."""
        hub = self.hub
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and not hub.ignore_range:
            start = int(asked[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if hub.corrupt:
            data = bytes(byte ^ 1 for byte in data)
        with hub.lock:
            dropping = hub.n_drops > 0
            hub.n_drops -= dropping
        stop = min(len(data), start + hub.drop_after) if dropping else len(data)
        for offset in range(start, stop, 1 << 16):
            piece = data[offset : min(stop, offset + (1 << 16))]
            if hub.delay_s:
                hub.released.wait(hub.delay_s)
            try:
                self.wfile.write(piece)
            except OSError:  # the client has gone
                break
            with hub.lock:
                hub.n_sent += len(piece)
        self.close_connection = dropping or self.close_connection

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a short answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def sha256(data: bytes) -> str:
    """Return the sha256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    """Return what git calls a file with these contents."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

"""A small hub on loopback, for tests: the few routes and headers that huggingface_hub needs, and ways to misbehave.

Use it as ``with HubServer() as hub: hub.add("org/model", {"config.json": b"{}"})`` and set HF_ENDPOINT to
``hub.endpoint``; ``hub.requests`` says what was asked.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


def hub_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str, home: Path) -> None:
    """Point everything that reads the hub's variables at ``endpoint`` and at an empty home."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # huggingface_hub reads these when it is imported, which another test may have caused before
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hf/hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(home / "hf/token"))


class HubServer:
    """Repositories held in memory, served from a thread on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, str] = {}
        self.gated: set[str] = set()
        self.delay_s = 0.0  #: before every answer
        self.status: int | None = None  #: answer everything with this status
        #: Answer with this instead; it gets the handler, which has ``command``, ``path``, ``send_header``, ``wfile``.
        self.misbehave: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.plain = False  #: answer like any web server: a login page, without the hub's headers
        self.requests: list[tuple[str, str]] = []  #: (method, path) in order
        self.tokens: set[str | None] = set()  #: Authorization headers seen
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, repo: str, files: dict[str, bytes]) -> None:
        """Add a repository, whose revisions are ``main`` and ``COMMIT``; or a new commit to one that is there."""
        self.commits[repo] = hashlib.sha1(repr(files).encode()).hexdigest() if repo in self.repos else COMMIT
        self.repos[repo] = files

    def gate(self, repo: str) -> None:
        """Add a repository that nobody was let into."""
        self.gated.add(repo)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: HubServer, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has seen enough hangs up
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.hub
        hub.requests.append((self.command, self.path))
        hub.tokens.add(self.headers.get("Authorization"))
        time.sleep(hub.delay_s)
        if hub.status is not None:
            self.reply(hub.status, b"")
        elif hub.misbehave is not None:
            self.close_connection = True
            with suppress(ConnectionError):
                hub.misbehave(self)
        elif hub.plain:
            self.reply(200, b"<html>please log in</html>")
        else:
            self.resolve()

    def resolve(self) -> None:
        """``/{repo}/resolve/{revision}/{file}``, or the error that the hub would give."""
        route, repos = _RESOLVE.fullmatch(self.path), self.hub.repos
        if not route:
            self.refuse(404, "EntryNotFound")
        elif route["repo"] in self.hub.gated:
            self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        elif route["repo"] not in repos:
            self.refuse(404, "RepoNotFound")
        elif route["revision"] not in ("main", self.hub.commits[route["repo"]]):
            self.refuse(404, "RevisionNotFound")
        elif route["file"] not in repos[route["repo"]]:
            self.refuse(404, "EntryNotFound", self.hub.commits[route["repo"]])
        else:
            self.send_file(repos[route["repo"]][route["file"]], self.hub.commits[route["repo"]])

    def refuse(self, status: int, code: str, commit: str | None = None) -> None:
        """An error of the hub: the code is in a header."""
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self.reply(status, b"", headers | ({"X-Repo-Commit": commit} if commit else {}))

    def send_file(self, content: bytes, commit: str) -> None:
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
        self.reply(200, content, headers)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

"""A hub that drips, lies about sizes, leads elsewhere, or hangs up."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any

import published_models
from hub_server import COMMIT, HubServer
from mutations import HOSTILE, json_text

Fault = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def faulty(random: Random) -> Iterator[HubServer]:
    """A server with one fault, or with broken files."""
    with HubServer() as server:
        config = json_text(random, published_models.LLAMA_8B).encode("utf-8", "surrogatepass")
        server.add("org/model", {"config.json": config})
        kind = random.randrange(4)
        if kind:
            server.misbehave = random.choice((dripping, dripping_headers, lying, elsewhere, rude, odd))(random)
        yield server


def _headers(handler: BaseHTTPRequestHandler, *more: str) -> None:
    known = (f'ETag: "{"0" * 40}"', f"X-Repo-Commit: {COMMIT}", *more, "", "")
    handler.wfile.write(("HTTP/1.1 200 OK\r\n" + "\r\n".join(known)).encode("utf-8", "replace"))


def _is_head(handler: BaseHTTPRequestHandler) -> bool:
    if handler.command == "HEAD":
        _headers(handler, "Content-Length: 10")
    return handler.command == "HEAD"


def dripping(random: Random) -> Fault:
    def fault(handler: BaseHTTPRequestHandler) -> None:
        if not _is_head(handler):
            _headers(handler, "Content-Length: 100000")
            for _ in range(100):
                handler.wfile.write(b"{")
                time.sleep(0.1)

    return fault


def dripping_headers(random: Random) -> Fault:
    only = random.choice(("GET", "HEAD"))

    def fault(handler: BaseHTTPRequestHandler) -> None:
        if handler.command != only and _is_head(handler):
            return
        for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"a" * 100:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.1)

    return fault


def lying(random: Random) -> Fault:
    line = random.choice((
        "Content-Length: 999999999999", "Content-Length: -1", "Content-Length: ten", "Content-Encoding: gzip",
        "Transfer-Encoding: chunked", "Content-Range: bytes 5-1/0", "X-Linked-Size: 99999999999999999999",
        "Set-Cookie: " + "a" * 60_000,
    ))  # fmt: skip

    def fault(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "HEAD" and random.random() < 0.7:
            _headers(handler, "Content-Length: 10")
            return
        _headers(handler, line)
        handler.wfile.write(gzip.compress(bytes(10_000_000)) if "gzip" in line else b"zz\r\n{}")

    return fault


def elsewhere(random: Random) -> Fault:
    to = random.choice((
        "file:///etc/passwd", "http://127.0.0.1:9/x", "https://127.0.0.1:9/x", "ftp://127.0.0.1/x", "//127.0.0.1:9",
        "javascript:alert(1)", "/org/model/resolve/main/config.json", "", "http://[::1", "data:,{}", "\u00e9",
    ))  # fmt: skip
    status = random.choice((301, 302, 303, 307, 308))

    def fault(handler: BaseHTTPRequestHandler) -> None:
        text = f'HTTP/1.1 {status} Found\r\nLocation: {to}\r\nETag: "0"\r\nX-Repo-Commit: {COMMIT}\r\n\r\n'
        handler.wfile.write(text.encode("utf-8"))

    return fault


def rude(random: Random) -> Fault:
    raw = random.choice(
        (b"", b"\0" * 1000, b"HTTP/1.1 \r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 200")
    )

    def fault(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(raw)

    return fault


def odd(random: Random) -> Fault:
    commit = random.choice(("../../../evil", "a/b", "x" * 5000, "main", "..", "-", "\u00e9"))
    etag = random.choice(('"../../evil"', '"/etc/passwd"', "W/x", '""', '"' + "a" * 300 + '"', '"a b"'))
    body: Any = random.choice((b"{}", b"[]", b"null", json.dumps(random.choice(HOSTILE)).encode()))

    def fault(handler: BaseHTTPRequestHandler) -> None:
        text = f"HTTP/1.1 200 OK\r\nETag: {etag}\r\nX-Repo-Commit: {commit}\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write(text.encode("utf-8"))
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return fault

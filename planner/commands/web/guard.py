"""Access to ``planner ui``: the token, refusals of foreign pages, and time limits of connections.

Browsers visit other pages too. A request has to be a GET that brings the token. It comes from this page or from an
address bar. On a loopback address it has to name this machine, so that DNS rebinding is refused. The page may load only
its own script, style sheet and answers, and cannot be framed.
"""

from __future__ import annotations

import re
import secrets
from ipaddress import ip_address
from socket import gethostname
from typing import Any
from urllib.parse import parse_qsl, urlencode

from anyio import move_on_after
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr "
    "'unsafe-inline'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
MOST_FIELDS = 200  #: of a query
HEADERS_S = 5.0  #: for the headers of a request
SENDING_S = 10.0  #: for a client to take its answer
EMBEDDED = ("iframe", "frame", "embed", "object", "fencedframe")


class Guard:
    """Refuse requests by the rules above, set the headers of every answer and bound its time."""

    def __init__(self, app: ASGIApp, *, token: str, loopback: bool, seconds: float) -> None:
        self.app, self.token, self.loopback, self.seconds = app, token, loopback, seconds + SENDING_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        with move_on_after(self.seconds):  # uvicorn then closes the connection
            await (self._refusal(Request(scope)) or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if request.method not in ("GET", "HEAD"):
            return _told("only GET is answered", 405, allow="GET, HEAD")
        if request.scope["query_string"].count(b"&") >= MOST_FIELDS:
            return _told(f"a query has at most {MOST_FIELDS} fields", 400)
        if self.loopback and not _names_this_machine(host):
            return _told("this server has another name", 421)
        if _is_foreign(request, host):
            return _told("asked by another site", 403)
        return self._without_token(request)

    def _without_token(self, request: Request) -> Response | None:
        """Check the token: in the address, then in a cookie, or ``Authorization: Bearer`` of a program."""
        cookie = f"planner-token-{request.scope['server'][1]}"  # browsers send cookies to all ports of a machine
        path, fields = request.scope["path"], parse_qsl(query_of(request), keep_blank_values=True)
        if self._is_token(dict(fields).get("token", "")):
            if path.startswith("//") or "\\" in path:  # browsers read another host in it
                return _told("this path leads elsewhere", 400)
            rest = urlencode([(name, value) for name, value in fields if name != "token"])
            answer = RedirectResponse(f"{path}?{rest}".rstrip("?"), 303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="strict")
            return answer
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if self._is_token(given.strip() if scheme.lower() == "bearer" else request.cookies.get(cookie, "")):
            return None
        return _told("open the address that planner ui printed: it has the token", 401)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())


def query_of(request: Request) -> str:
    """The query as it was sent. ``request.url`` cannot be had with some Host headers."""
    return request.scope["query_string"].decode("latin-1")  # type: ignore[no-any-return]


def _told(text: str, status: int, **headers: str) -> Response:
    return Response(f"{text}\n", status, headers, "text/plain")


def _is_foreign(request: Request, host: str) -> bool:
    """True for a request that another site's page made, except a link to the page."""
    headers: Any = request.headers
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    if headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}"):
        return True
    if headers.get("sec-fetch-dest", "") in EMBEDDED:
        return True
    if mode == "navigate" and request.scope["path"].startswith("/api/"):
        return bool(site != "none")
    return site not in ("none", "same-origin") and not (mode == "navigate" and request.scope["path"] == "/")


def _names_this_machine(host: str) -> bool:
    """True if a Host header is an address or this machine's own name, with any port: a tunnel has another one."""
    name = re.sub(r":\d*$", "", host)
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in ("localhost", gethostname().lower())
    return True


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection when the headers of a request take too long."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEADERS_S, self._close_if_silent, None)

    def _close_if_silent(self, before: Any) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.transport.is_closing():
            self.transport.abort()  # its client takes nothing
        elif not answering and self.cycle is before:  # no request since the last look
            self.transport.close()
        else:
            self.loop.call_later(HEADERS_S, self._close_if_silent, self.cycle)

"""The server of ``planner ui``: the page, its two answers, the scripts, and the API.

It listens on 127.0.0.1 and is asked by browsers, which visit other pages too. So every request has to come from this
page or from an address bar, to be a GET, and to name this machine (a page that points its own name here is refused) or,
bound elsewhere, to bring the token. The page may load nothing from elsewhere, run no script but its own, and be framed
by nobody.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from socket import gethostname
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.commands.web.api import Operation, openapi, operations
from planner.commands.web.play import Memory, address, moved, read_asked, replayed, zipped
from planner.errors import HubError, PlannerError

COOKIE = "planner-token"
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
SEARCHES = 2  #: at the same time; more wait


class Guard:
    """Lets through what the module's first lines allow, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with the headers of every answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return Response("only GET is answered\n", 405, {"allow": "GET, HEAD"}, "text/plain")
        if not self.token and not _names_this_machine(request.headers.get("host", "")):
            return Response("this server has another name\n", 421, media_type="text/plain")
        site, mode = request.headers.get("sec-fetch-site", "none"), request.headers.get("sec-fetch-mode", "")
        if site not in ("none", "same-origin") and mode != "navigate":
            return Response("asked by another site\n", 403, media_type="text/plain")
        return self._without_token(request) if self.token else None

    def _without_token(self, request: Request) -> Response | None:
        """Once in the address, then in a cookie; programs send it as ``Authorization: Bearer``."""
        token = request.query_params.get("token")
        if token and secrets.compare_digest(token.encode(), self.token.encode()):
            rest = [(name, value) for name, value in parse_qsl(request.url.query) if name != "token"]
            answer = RedirectResponse(f"{request.url.path}?{urlencode(rest)}".rstrip("?"), 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        token = request.cookies.get(COOKIE) or request.headers.get("authorization", "").removeprefix("Bearer ")
        if secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        return Response("open the address that planner ui printed: it has the token\n", 401, media_type="text/plain")


def _names_this_machine(host: str) -> bool:
    """True if a Host header is an address or this machine's own name, with any port: a tunnel has another one."""
    name = re.sub(r":\d*$", "", host)
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in ("localhost", gethostname().lower())
    return True


def make_app(*, token: str = "") -> Starlette:
    """The application. Without a ``token`` none is asked for: only for a server that this machine alone reaches."""
    pages, api = Pages(), operations()
    routes = [
        Route("/", pages.front),
        Route("/answer", pages.answer),
        Route("/live", pages.live),
        Route("/ladder", pages.ladder),
        Route("/scripts.zip", pages.scripts),
        Route("/style.css", pages.style),
        Route("/ui.js", pages.script),
        Route("/api/openapi.json", partial(_described, api=api)),
        *(Route(f"/api/{path}", partial(_called, operation=one, places=pages.places)) for path, one in api.items()),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(Guard, token=token)
    return app


class Pages:
    """Handlers of the page and of what it loads."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.places, self.aside = asyncio.Semaphore(SEARCHES), asyncio.Semaphore(1)

    async def front(self, request: Request) -> Response:
        """Send the page with its answer."""
        return await self._html(request, self._front)

    async def answer(self, request: Request) -> Response:
        """Send the answer of a search."""
        async with self.places:
            if await request.is_disconnected():  # another one follows already
                return Response(status_code=204)
            return await self._html(request, self._answer)

    async def live(self, request: Request) -> Response:
        """The plan of an earlier search, at the load that is asked for now; 404 where a search has to find another."""
        return await self._html(request, self._live)

    async def ladder(self, request: Request) -> Response:
        """Send the cost of other confidences: several searches, behind all others."""
        async with self.aside:
            if await request.is_disconnected():
                return Response(status_code=204)
            return await self._html(request, self._ladder)

    async def scripts(self, request: Request) -> Response:
        """Send the scripts of a search as a zip file."""

        def made() -> Response:
            content = zipped(self.memory.search(read_asked(_query(request))))
            named = {"content-disposition": 'attachment; filename="plan.zip"'}
            return Response(content, headers=named, media_type="application/zip")

        return await _answered(made)

    def style(self, request: Request) -> Response:
        """Send the style sheet of the page."""
        from planner.output import style

        del request
        return Response(style(), media_type="text/css")

    def script(self, request: Request) -> Response:
        """Send the script of the page."""
        from planner.output import script

        del request
        return Response(script(), media_type="text/javascript")

    async def _html(self, request: Request, made: Callable[[dict[str, list[str]]], Response]) -> Response:
        return await run_in_threadpool(made, _query(request))

    def _front(self, query: dict[str, list[str]]) -> Response:
        from planner.hardware import load_all
        from planner.model import catalog_ids
        from planner.output import front_page

        try:
            asked = read_asked(query)
        except PlannerError:  # the answer says so; the form stands at its defaults
            asked = read_asked({})
        answer = bytes(self._answer(query).body).decode()
        gpus = [(profile.id, profile.name) for profile in load_all()]
        return HTMLResponse(front_page(asked, answer, models=catalog_ids(), gpus=gpus))

    def _answer(self, query: dict[str, list[str]]) -> Response:
        from planner.output import refused, whole_answer

        try:
            asked = read_asked(query)
            return HTMLResponse(whole_answer(self.memory.search(asked), address(asked)))
        except PlannerError as error:
            return HTMLResponse(refused(error.cause, error.hint))

    def _ladder(self, query: dict[str, list[str]]) -> Response:
        from planner.output import ladder, refused

        try:
            return HTMLResponse(ladder(self.memory.ladder(read_asked(query))))
        except PlannerError as error:
            return HTMLResponse(refused(error.cause, error.hint))

    def _live(self, query: dict[str, list[str]]) -> Response:
        from planner.output import live_answer

        before = self.memory.remembered(query.get("of", [""])[-1])
        try:
            played = moved(before, read_asked(query)) if before else None
            probed = replayed(played) if played else None
        except PlannerError:
            return Response(status_code=404)
        return HTMLResponse(live_answer(played, probed)) if played and probed else Response(status_code=404)


def _query(request: Request) -> dict[str, list[str]]:
    return parse_qs(request.url.query, keep_blank_values=True, max_num_fields=200)


async def _answered(made: Callable[[], Response]) -> Response:
    """The response of ``made``, or its error as JSON."""
    try:
        return await run_in_threadpool(made)
    except PlannerError as error:
        content = {"error": error.cause, "hint": error.hint, "exit_status": error.exit_status}
        return _json(json.dumps(content), 502 if isinstance(error, HubError) else 400)


async def _called(request: Request, operation: Operation, places: asyncio.Semaphore) -> Response:
    def made() -> Response:
        answer = operation.answer(parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=200))
        return _json(answer.to_json(), headers={"planner-exit-status": "0" if answer.ok else "1"})

    async with places:
        return await _answered(made)


def _described(request: Request, api: dict[str, Operation]) -> Response:
    del request
    return _json(json.dumps(openapi(api)))


def _json(text: str, status: int = 200, **more: Any) -> Response:
    return Response(text, status, media_type="application/json", **more)

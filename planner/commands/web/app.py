"""The application of ``planner ui``: the page, its answers, the scripts, and the API.

Only cheap work is done in the server itself; every computation has a place in a worker process (``places``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl

from anyio import move_on_after
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from planner.commands.web import play
from planner.commands.web.api import call, openapi, operations
from planner.commands.web.guard import Guard, query_of
from planner.commands.web.places import BUG, RETRY_S, Places, Refused, too_late
from planner.errors import HubError, InputError, PlannerError
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.output import Asked

SEARCHES = 2  #: at the same time
REMEMBERED = 24  #: searches


def make_app(*, token: str, loopback: bool = True, seconds: float = 10.0) -> Guard:
    """The application, which asks for ``token``; one answer takes ``seconds`` at most.

    A server on a ``loopback`` address answers requests that name this machine.
    """
    pages = Pages(seconds)
    routes = [
        Route("/", pages.front),
        Route("/answer", pages.answer),
        Route("/live", pages.live),
        Route("/ladder", pages.ladder),
        Route("/scripts.zip", pages.scripts),
        Route("/style.css", _style),
        Route("/ui.js", _script),
        Route("/api/openapi.json", _described),
        *(Route(f"/api/{path}", partial(_called, path=path, places=pages.searches)) for path in operations()),
    ]
    app = Starlette(routes=routes, exception_handlers={PlannerError: _refused, Exception: _refused})
    return Guard(app, token=token, loopback=loopback, seconds=seconds)


class Pages:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.searches, self.replays = Places(SEARCHES, seconds), Places(1, seconds)
        self.ladders = asyncio.Semaphore(1)  # one takes several searches
        self.remembered: OrderedDict[str, play.Search] = OrderedDict()

    async def front(self, request: Request) -> Response:
        asked, status, headers = None, 200, None
        try:
            asked = _asked(request)
            answer = (await self._searched(request, asked)).html
        except PlannerError as error:
            answer, status, headers = _on_page(error)
        page = await run_in_threadpool(_front, asked or play.read_asked({}), answer)
        return HTMLResponse(page, status, headers)

    async def answer(self, request: Request) -> Response:
        return HTMLResponse((await self._searched(request, _asked(request))).html)

    async def live(self, request: Request) -> Response:
        """Send the plan of an earlier search at this load; 404 if another plan has to be searched."""
        before, text = self.remembered.get(_query(request).get("of", [""])[-1]), None
        if before:
            with suppress(InputError, HubError):
                text = await self.replays.run(request, play.move, before.played, _asked(request))
        return HTMLResponse(text) if text else Response(status_code=404)

    async def ladder(self, request: Request) -> Response:
        asked = _asked(request)
        with move_on_after(self.seconds):
            async with self.ladders:
                levels = [replace(asked, confidence=level) for level in defaults.LADDER]
                searches = [await self._searched(request, one) for one in levels]  # those that end are remembered
                return HTMLResponse(await self.replays.run(request, play.rungs, [one.played for one in searches]))
        raise too_late(self.seconds)

    async def scripts(self, request: Request) -> Response:
        content = await self.searches.run(request, play.zipped, _asked(request))
        named = {"content-disposition": 'attachment; filename="plan.zip"'}
        return Response(content, headers=named, media_type="application/zip")

    async def _searched(self, request: Request, asked: Asked) -> play.Search:
        key = play.key_of(asked)
        search = self.remembered.get(key)
        if search is None:
            search = await self.searches.run(request, play.search, asked)
        self.remembered[key] = search
        self.remembered.move_to_end(key)
        if len(self.remembered) > REMEMBERED:
            self.remembered.popitem(last=False)
        return search


def _query(request: Request) -> dict[str, list[str]]:
    return parse_qs(query_of(request), keep_blank_values=True)


def _asked(request: Request) -> Asked:
    return play.read_asked(_query(request))


def _front(asked: Asked, answer: str) -> str:
    from planner.hardware import load_all
    from planner.model import catalog_ids
    from planner.output import front_page

    gpus = [(profile.id, profile.name) for profile in load_all()]
    return front_page(asked, answer, models=catalog_ids(), gpus=gpus)


def _style(request: Request) -> Response:
    from planner.output import style

    del request
    return Response(style(), media_type="text/css")


def _script(request: Request) -> Response:
    from planner.output import script

    del request
    return Response(script(), media_type="text/javascript")


def _described(request: Request) -> Response:
    del request
    return JSONResponse(openapi(operations()))


async def _called(request: Request, path: str, places: Places) -> Response:
    pairs = parse_qsl(query_of(request), keep_blank_values=True)
    text, ok = await places.run(request, call, path, pairs)
    return Response(text, headers={"planner-exit-status": "0" if ok else "1"}, media_type="application/json")


def _refused(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, PlannerError) else BUG
    if not request.scope["path"].startswith(("/api/", "/scripts.zip")):
        return HTMLResponse(*_on_page(known))
    content = {"error": known.cause, "hint": known.hint, "exit_status": known.exit_status}
    return JSONResponse(content, *_status(known))


def _on_page(error: PlannerError) -> tuple[str, int, dict[str, str]]:
    """An error in place of an answer, with its status and headers. A bad question is answered like any other."""
    from planner.output import refused

    status, headers = _status(error)
    return refused(error.cause, error.hint), status if isinstance(error, Refused) else 200, headers


def _status(error: PlannerError) -> tuple[int, dict[str, str]]:
    status = error.status if isinstance(error, Refused) else 502 if isinstance(error, HubError) else 400
    return status, {"retry-after": str(RETRY_S)} if status == 503 else {}

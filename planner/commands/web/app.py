"""The application of ``planner ui``. Every computation has a place in a worker process.

A request has to be a GET with the token, from this page or an address bar. On a loopback address it has to name this
machine (DNS rebinding). The page loads only its own files and cannot be framed.

The commands are an HTTP API: ``GET /api/fit?model=...&gpu=...`` calls the function of ``planner fit``. Nothing names a
file: parameters that are paths are not offered, and neither are other servers."""

import asyncio
import inspect
import logging
import os
import re
import secrets
import signal
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from ipaddress import ip_address
from os import PathLike
from socket import gethostname
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qs, parse_qsl, urlencode

from annotated_types import Interval
from anyio import BrokenWorkerProcess, CapacityLimiter, create_task_group, move_on_after, to_process
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import planner
from planner import hardware, model, output, resources
from planner.commands.declare import COMMANDS, REQUIRED, Argument, Command, Option, Parameter
from planner.commands.web import play
from planner.errors import HubError, InputError, PlannerError, UnknownNameError
from planner.planning import defaults, typed
from planner.resources import package_dir, tables_of

ANSWERED: Mapping[str, list[str]] = tables_of(package_dir("commands") / "web" / "answered.toml")
#: Closed over HTTP: another server, variables of a shell, a second model, the cache of the hub, what is written.
CLOSED = frozenset((
    "refresh", "variables", "speculative_config", "speculative_acceptance_rate", "output",
    "force", "sweep",
))  # fmt: skip
LINE = "line"  #: of check: a text, or its words
MOST_PROMPTS = 10_000  #: requests of one question


@dataclass(frozen=True)
class Operation:
    """One function of the library, as a path."""

    path: str
    command: Command
    function: "Callable[..., planner.Answer]"

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        every = dict(self.command.parameters)
        if prompts := every.get("num_prompts"):
            every["num_prompts"] = replace(prompts, bounds=(Interval(ge=1, le=MOST_PROMPTS),))
        if self.path == "fit":  # one GPU; the path fits is for several
            every["gpu"] = replace(every["gpu"], option=Option(kind=str, help="Profile id or alias; or 'local'."))
            del every["partitions"]
        return {name: one for name, one in every.items() if name not in CLOSED and not _names_a_file(one)}

    def answer(self, query: Iterable[tuple[str, str]]) -> "planner.Answer":
        """Call the function. Raises what it raises, and InputError for a parameter that it does not have."""
        given: dict[str, list[str]] = {}
        for name, text in query:
            if name not in self.parameters:
                raise UnknownNameError("parameter", name[:80], self.parameters, see="/api/openapi.json")
            given.setdefault(name, []).append(text)
        for name, one in self.parameters.items():
            if one.default is REQUIRED and name not in given:
                raise InputError(f"the parameter {name} is missing", hint="/api/openapi.json lists all parameters")
        return self.function(**{name: _value(self.parameters[name], texts) for name, texts in given.items()})


@cache
def operations() -> dict[str, Operation]:
    functions = {path: getattr(planner, name) for path, (_, name) in ANSWERED.items()}  # declares their commands
    return {path: Operation(path, COMMANDS[ANSWERED[path][0]], function) for path, function in functions.items()}


def call(path: str, query: Iterable[tuple[str, str]]) -> tuple[str, bool]:
    """The answer of an operation as JSON, and whether it is positive."""
    answer = operations()[path].answer(query)
    return answer.to_json(), answer.ok


def _kind(parameter: Parameter) -> Any:
    """The type of the words that are typed, without None."""
    kind = parameter.kind
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else str
    return kind


def _names_a_file(parameter: Parameter) -> bool:
    if isinstance(parameter.type, str) or parameter.name == LINE:
        return False
    kinds = {parameter.type, *get_args(parameter.type), parameter.option.kind}
    return any(get_origin(one) is PathLike or (isinstance(one, type) and issubclass(one, PathLike)) for one in kinds)


def _value(parameter: Parameter, texts: list[str]) -> Any:
    kind, option, name = _kind(parameter), parameter.option, parameter.name
    if name == LINE:
        return texts[0] if len(texts) == 1 else texts
    value: Any = texts if get_origin(kind) is list else texts[0]
    if value is not texts and len(texts) > 1:
        raise InputError(f"{name} is given {len(texts)} times", hint="give it once")
    if kind in (int, float, bool):
        bounds = parameter.bounds if name == "num_prompts" else ()  # the function checks the others
        value = typed(name, value, Annotated[kind, *bounds] if bounds else kind, flag=name, strict=False)
    return value if option.read is None else option.read(value)


def openapi(offered: Mapping[str, Operation]) -> dict[str, Any]:
    document = tables_of(package_dir("commands") / "web" / "openapi.toml")
    paths = {f"/api/{path}": {"get": {**_described(one), **document["operation"]}} for path, one in offered.items()}
    info = {"title": "planner", "version": planner.__version__, "description": document["description"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": document["components"]}


def _described(one: Operation) -> dict[str, Any]:
    return {
        "operationId": one.path.replace("/", "_"),
        "summary": one.command.help,
        "description": inspect.getdoc(one.function) or "",
        "parameters": [_parameter(parameter) for parameter in one.parameters.values()],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    kind, default = _kind(parameter), parameter.default
    bounds = {"least": "minimum", "most": "maximum"}
    schema = TypeAdapter(kind).json_schema() | {bounds[key]: value for key, value in parameter.limits.items()}
    if isinstance(default, bool | int | str) or (isinstance(default, float) and default < float("inf")):
        schema["default"] = default
    described = {
        "name": parameter.name,
        "in": "query",
        "required": default is REQUIRED and parameter.name != LINE,
        "schema": schema,
        "description": parameter.option.settings.get("help", ""),
    }
    repeated = get_origin(kind) is list or isinstance(parameter.option, Argument)
    return described | ({"style": "form", "explode": True} if repeated else {})


SEARCHES = 2  #: at the same time
REMEMBERED = 24  #: searches


def make_app(*, token: str, loopback: bool = True, seconds: float = 60.0) -> "Guard":
    """The application, which asks for ``token``; one answer takes ``seconds`` at most."""
    pages = Pages(seconds)
    routes = [
        Route("/", pages.front),
        Route("/answer", pages.answer),
        Route("/live", pages.live),
        Route("/ladder", pages.ladder),
        Route("/scripts.zip", pages.scripts),
        Route("/style.css", partial(_asset, kind="css")),
        Route("/ui.js", partial(_asset, kind="javascript")),
        Route("/api/openapi.json", lambda _: JSONResponse(openapi(operations()))),
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
        page = await run_in_threadpool(_front, asked or play.readable(_query(request)), answer)
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

    async def _searched(self, request: Request, asked: "output.Asked") -> play.Search:
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


def _asked(request: Request) -> "output.Asked":
    return play.read_asked({name: texts for name, texts in _query(request).items() if name != "of"})


def _front(asked: "output.Asked", answer: str) -> str:
    return output.front_page(asked, answer, models=model.catalog_ids(), gpus=hardware.load_all(partitions=True))


async def _asset(_: Request, kind: str) -> Response:
    return Response({"css": output.style, "javascript": output.script}[kind](), media_type=f"text/{kind}")


async def _called(request: Request, path: str, places: "Places") -> Response:
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
    status, headers = _status(error)
    return output.refused(error.cause, error.hint), status if isinstance(error, Refused) else 200, headers


def _status(error: PlannerError) -> tuple[int, dict[str, str]]:
    status = error.status if isinstance(error, Refused) else 502 if isinstance(error, HubError) else 400
    return status, {"retry-after": str(RETRY_S)} if status == 503 else {}


HEADERS: Mapping[str, str] = resources.tables_of(resources.package_dir("commands") / "web" / "headers.toml")
MOST_FIELDS = 200  #: of a query
SENDING_S = 10.0  #: for a client to take its answer
EMBEDDED = ("iframe", "frame", "embed", "object", "fencedframe")


class Guard:
    """Refuse requests by the rules above, set the headers of every answer and bound its time."""

    def __init__(self, app: ASGIApp, *, token: str, loopback: bool, seconds: float) -> None:
        self.app, self.token, self.loopback, self.seconds = app, token, loopback, seconds + SENDING_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, started = [(name.encode(), value.encode()) for name, value in HEADERS.items()], False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        with move_on_after(self.seconds) as limit:  # uvicorn then closes the connection
            await (self._refusal(Request(scope)) or self.app)(scope, receive, send_guarded)
        if limit.cancelled_caught and not started:
            await _told(f"no answer within {self.seconds:g} s", 504)(scope, receive, send_guarded)

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


Result = TypeVar("Result")

MOST_WAITING = 16  #: for a place; others are refused at once
WAIT_S = 4.0  #: for a place
RETRY_S = 5  #: after which a client that was refused may ask again
MOST_BYTES = 4 * 2**30  #: address space of a worker


class Refused(PlannerError):
    """No answer, for a reason that has an HTTP status."""

    def __init__(self, cause: str, *, hint: str, status: int, exit_status: int = 2) -> None:
        super().__init__(cause, hint=hint)
        self.status, self.exit_status = status, exit_status


BUSY = Refused("the server is busy", hint=f"ask again in {RETRY_S} seconds", status=503)
GONE = Refused("the client has gone", hint="ask again", status=503)
ENDED = Refused("the system ended the computation", hint="ask for less", status=503)
BUG = Refused("this is a bug in planner", hint="report it with the server's trace", status=500, exit_status=70)


def too_late(seconds: float) -> Refused:
    hint = "ask for less, or ask the command line, which has no limit; planner ui --timeout changes it"
    return Refused(f"no answer within {seconds:g} s", hint=hint, status=504)


class Trace(str):
    """The Python traceback of a bug in a worker process."""


class Places:
    """Places for ``at_once`` computations, each of at most ``seconds``."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self._free, self._seconds, self._waiting = asyncio.Semaphore(at_once), seconds, 0

    async def run(self, request: Request, function: Callable[..., Result], *args: Any) -> Result:
        """Return what ``function`` returns in a worker process. Raises Refused for errors and lost time."""
        outcome: Any = GONE
        async with create_task_group() as group:

            async def until_gone() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(until_gone)
            outcome = await self._outcome(function, *args)
            group.cancel_scope.cancel()
        if isinstance(outcome, Trace):
            logging.getLogger("uvicorn.error").error(outcome)
            raise BUG
        if isinstance(outcome, PlannerError):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    async def _outcome(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._waiting >= MOST_WAITING:
            return BUSY
        self._waiting += 1
        try:
            with move_on_after(WAIT_S) as waited:
                await self._free.acquire()
        finally:
            self._waiting -= 1
        if waited.cancelled_caught:
            return BUSY
        try:
            with move_on_after(self._seconds):
                return await to_process.run_sync(
                    _work, function, args, cancellable=True, limiter=CapacityLimiter(1)
                )  # the semaphore counts
            return too_late(self._seconds)
        except BrokenWorkerProcess:
            return ENDED
        finally:
            self._free.release()


def _work(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    _bound()
    try:
        with resources.names_only():
            return function(*args)
    except PlannerError as error:
        return error
    except Exception:
        return Trace(traceback.format_exc())


@cache
def _bound() -> None:
    """Bound this process. Ctrl-C is for the server, which kills its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError, OSError, ValueError):  # Windows and macOS have no such bounds
        import resource

        os.nice(5)  # the server answers what is cheap while its workers compute
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

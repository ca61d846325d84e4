"""Work in processes that can be killed, with bounds on their number, time and memory, and on those that wait.

A search takes seconds of CPU in code that cannot be interrupted. A worker process is killed when its time is over, when
its client has gone, and when the server ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

from anyio import BrokenWorkerProcess, CapacityLimiter, create_task_group, move_on_after, to_process
from starlette.requests import Request

from planner import resources
from planner.errors import HubError, InputError, PlannerError

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
BUG = Refused(
    "this is a bug in planner", hint="report it with the trace on the server's terminal", status=500, exit_status=70
)


def too_late(seconds: float) -> Refused:
    hint = "ask for less, or ask the command line, which has no limit; planner ui --timeout changes it"
    return Refused(f"no answer within {seconds:g} s", hint=hint, status=504)


class Failure(NamedTuple):
    """An error that crosses the border between processes."""

    cause: str
    hint: str
    hub: bool = False
    trace: str = ""  #: of a bug


class Places:
    """Places for ``at_once`` computations, each of at most ``seconds``."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self._free, self._seconds, self._waiting = asyncio.Semaphore(at_once), seconds, 0

    async def run(self, request: Request, function: Callable[..., Result], *args: Any) -> Result:
        """Return what ``function`` returns in a worker process, which names of files cannot reach.

        Raises Refused for an error, for a full queue, and when the time is over or the client has gone.
        """
        outcome: Any = GONE
        async with create_task_group() as group:

            async def until_gone() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(until_gone)
            outcome = await self._outcome(function, *args)
            group.cancel_scope.cancel()
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, Failure):
            if outcome.trace:
                logging.getLogger("uvicorn.error").error(outcome.trace)
                raise BUG
            raise (HubError if outcome.hub else InputError)(outcome.cause, hint=outcome.hint)
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
    """Call ``function`` in a worker process; gives a ``Failure`` for what it raises."""
    _bound()
    try:
        with resources.names_only():
            return function(*args)
    except PlannerError as error:
        return Failure(error.cause, error.hint, hub=isinstance(error, HubError))
    except Exception:
        return Failure("", "", trace=traceback.format_exc())


@cache
def _bound() -> None:
    """Bound this process. Ctrl-C is for the server, which kills its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError, OSError, ValueError):  # Windows and macOS have no such bounds
        import resource

        os.nice(5)  # the server answers what is cheap while its workers compute
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

"""Interactive web page, and the commands as an HTTP API: ``planner ui``. Only GET is answered; it changes nothing."""

import os
import secrets
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated

from annotated_types import Interval

from planner import progress
from planner.commands.declare import Option, command
from planner.errors import InputError, os_errors

HERE = "127.0.0.1"
LOOPBACK = (HERE, "localhost", "::1")
TOKEN = "PLANNER_TOKEN"  # noqa: S105 - the variable's name
PLAIN = "warning: this is plain HTTP: who reads the traffic has the token and the answers; put TLS or ssh in front"

Host = Annotated[
    str, Option(metavar="ADDRESS", help="Address to listen on. Any address other than localhost is plain HTTP.")
]
Port = Annotated[int, Interval(ge=0, le=65535), Option(help="Port to listen on; 0 takes a free one.")]
Open = Annotated[bool, Option("--open", help="Open the page in a browser.")]
Seconds = Annotated[float, Interval(gt=0, le=3600), Option("--timeout", metavar="S", help="Seconds for one answer.")]


@command("ui", help="Interactive web page and HTTP API. Needs llm-serving-planner[ui].")
def ui(*, host: Host = HERE, port: Port = 8321, open_page: Open = False, seconds: Seconds = 60.0) -> None:
    """Serve the page until Ctrl-C. Every request needs the token: ``PLANNER_TOKEN``, else a random one."""
    try:
        import uvicorn

        from planner.commands.web.app import make_app
    except ImportError as error:
        cause = f"planner ui needs a package that is not installed: {error.name}"
        hint = "pip install 'llm-serving-planner[ui]', or in a checkout pip install '.[ui]'"
        raise InputError(cause, hint=hint) from error
    listening = _listening(host, port)
    port, loopback = listening.getsockname()[1], host in LOOPBACK
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    name = _reachable(host)
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}"
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):  # a command's words wait for its end
        settings = uvicorn.Config(
            make_app(token=token, loopback=loopback, seconds=seconds), http="h11", ws="none", lifespan="off",
            log_level="warning", access_log=False, server_header=False, proxy_headers=False, limit_concurrency=256,
            timeout_keep_alive=20, h11_max_incomplete_event_size=2**16, timeout_graceful_shutdown=1,
        )  # fmt: skip
        print("\n".join([address, *([] if loopback else [PLAIN]), "Ctrl-C ends it"]), file=sys.stderr, flush=True)
        if open_page:
            import webbrowser

            webbrowser.open(address)
        with progress.listening(None):  # many ask at once
            uvicorn.Server(settings).run(sockets=[listening])


def _reachable(host: str) -> str:
    target = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}.get(host)  # noqa: S104 - documentation addresses
    if target is None:
        return host
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect((target, 9))  # sends nothing
            return str(route.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _listening(host: str, port: int) -> socket.socket:
    with os_errors(f"--host {host} --port {port}", OverflowError, UnicodeError, hint="name another address or port"):
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()  # before the address is printed
    return listening

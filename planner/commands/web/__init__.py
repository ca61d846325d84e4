"""A page to play with, and the commands as an HTTP API: ``planner ui``.

``api`` has the commands, ``play`` the page, ``app`` serves both. Only GET is answered, and it changes nothing.
starlette is imported in ``app`` alone.
"""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated

from planner import progress
from planner.commands.declare import Option, command
from planner.errors import InputError

HERE = "127.0.0.1"
LOOPBACK = (HERE, "localhost", "::1")

Host = Annotated[
    str, Option(metavar="ADDRESS", help="Address to listen on. Any address other than localhost requires a token.")
]
Port = Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Open = Annotated[bool, Option("--open", help="Open the page in a browser.")]


@command("ui", help="A page to play with, and the same answers over HTTP; needs llm-serving-planner[ui].")
def ui(*, host: Host = HERE, port: Port = 8321, open_page: Open = False) -> None:
    """Serve the page until Ctrl-C. Raises InputError where its packages are missing, and for an address in use."""
    try:
        import uvicorn

        from planner.commands.web.app import make_app
    except ImportError as error:
        raise InputError(
            f"planner ui needs a package that is not installed: {error.name}",
            hint="pip install 'llm-serving-planner[ui]', or in a checkout pip install '.[ui]'",
        ) from error
    listening = _listening(host, port)
    port = listening.getsockname()[1]
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/" + (f"?token={token}" if token else "")
    settings = uvicorn.Config(
        make_app(token=token), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=64, timeout_keep_alive=20, h11_max_incomplete_event_size=2**16, lifespan="off",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):  # a command's words wait for its end
        print(f"{address}\nCtrl-C ends it", file=sys.stderr, flush=True)
        if open_page:
            import webbrowser

            webbrowser.open(address)
        with progress.listening(None):  # many ask at once
            uvicorn.Server(settings).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except (OSError, OverflowError, UnicodeError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host {host} --port {port}: {cause}", hint="name another address or port") from error
    return listening

"""Writing to stdout and stderr: a terminal, a closed pipe, a full disk, a locale without Unicode.

Green is a yes, red a no, yellow a warning, cyan a command to type next; the text is the same without colours."""

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Any, TextIO

from planner import progress
from planner.errors import InputError
from planner.resources import package_dir, tables_of

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_WORD_S = 1.0  #: what is done sooner needs no word
SHOWN_PER_S = 5  #: times that the bar is drawn anew
LONGEST = 60  #: characters of what is being done
YES, NO = "bold green", "bold red"
#: Style -> patterns in the lines of an answer, of its notes and of an error.
MEANINGS = tables_of(package_dir("commands") / "streams.toml")


def write(text: str, stream: TextIO | None, *, verdict: str = "") -> None:
    """Write ``text`` and flush it; nothing where the stream is closed. What it cannot show becomes escapes.

    Raises InputError where the stream cannot be written for another reason."""
    if stream is None or not text:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = _printable(text)
    try:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        if stream.isatty() and not plain:
            shown = coloured(shown, verdict=verdict)
        stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        with suppress(OSError, UnsupportedOperation):  # else the interpreter would try to write the rest at its end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        if error.errno not in (errno.EPIPE, errno.EBADF):
            cause = f"the output cannot be written: {error.strerror}"
            raise InputError(cause, hint="free some space, or write it elsewhere") from error


def coloured(text: str, *, verdict: str = "") -> str:
    """``text`` with the escapes of its colours; its first paragraph in the style of ``verdict``."""
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    for style, patterns in MEANINGS.items():
        for pattern in patterns:
            shown.highlight_regex(f"(?m){pattern}", style)
    if verdict:
        lines = text.splitlines(keepends=True)
        end = next((n for n, line in enumerate(lines) if not line.strip() or line.startswith("  ")), len(lines))
        shown.stylize(verdict, 0, len("".join(lines[:end])))
    console = Console(force_terminal=True, color_system="standard", no_color=False, width=10_000)
    with console.capture() as captured:
        console.print(shown, end="", soft_wrap=True)
    return captured.get()


@contextmanager
def progress_on(stream: TextIO | None) -> Iterator[None]:
    """Show on a terminal what takes long, in a bar that goes when it is done; nothing where there is no terminal."""
    if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    bar = _Bar(stream)
    later = threading.Timer(FIRST_WORD_S, bar.draw)
    later.daemon = True
    later.start()
    try:
        with progress.listening(bar.heard):
            yield
    finally:
        later.cancel()
        bar.close()


class _Bar:
    """A progress bar, drawn by a thread of its own once a computation takes long."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.began_s = stream, time.monotonic()
        self.text: str = ""
        self.share: float | None = None
        self.lock, self.closed = threading.RLock(), False
        self.drawn: Progress | None = None
        self.task: Any = None

    def heard(self, text: str, share: float | None) -> None:
        self.text, self.share = _printable(text)[:LONGEST], self.share if share is None else share
        self.draw()

    def draw(self) -> None:
        """Draw, unless it is too early or there is nothing to say."""
        with self.lock:
            if self.closed or not self.text or time.monotonic() - self.began_s < FIRST_WORD_S:
                return
            if self.drawn is None:
                from rich.console import Console
                from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

                columns = (
                    SpinnerColumn("line"), TextColumn("{task.description}", markup=False), BarColumn(24),
                    TimeElapsedColumn(),
                )  # fmt: skip
                # before it starts: Ctrl-C may come then, and the cursor has to come back
                self.drawn = Progress(
                    *columns, console=Console(file=self.stream), transient=True, refresh_per_second=SHOWN_PER_S,
                    redirect_stdout=False, redirect_stderr=False,
                )  # fmt: skip
                self.task = self.drawn.add_task(self.text)
                self.drawn.start()
            total = None if self.share is None else 1.0  # unknown until a share is reported
            self.drawn.update(self.task, description=self.text, total=total, completed=self.share)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            if self.drawn is not None:
                self.drawn.stop()


def complain(cause: str, status: int, *, hint: str = "") -> int:
    """Print an error and its hint on stderr, one line each; gives ``status`` back."""
    lines = [f"error: {' '.join(cause.split())}\n", f"hint: {' '.join(hint.split())}\n" if hint else ""]
    write("".join(lines), sys.stderr)
    return status


def _printable(text: str) -> str:
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)

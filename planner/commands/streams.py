"""Writing to stdout and stderr, whatever they are: a terminal, a closed pipe, a full disk, a locale without Unicode."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from typing import TextIO

from planner import progress
from planner.errors import InputError

FIRST_WORD_S = 1.0  #: what is done sooner needs no word
CLEAR = "\r\x1b[K"


def write(text: str, stream: TextIO | None, *, steer: bool = False) -> None:
    """Write ``text`` and flush it. Nothing happens where the stream was closed, by us or by its reader.

    Control characters, and characters that the stream's encoding lacks, become escapes. Raises InputError where the
    stream cannot be written for another reason. ``steer``: control characters stay, and move the cursor.
    """
    if stream is None or not text:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write((text if steer else _printable(text)).encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        _forget(stream)
        if error.errno not in (errno.EPIPE, errno.EBADF):
            raise InputError(
                f"the output cannot be written: {error.strerror}", hint="free some space, or write it elsewhere"
            ) from error


@contextmanager
def progress_on(stream: TextIO | None) -> Iterator[None]:
    """Show on a terminal what takes long, in one line that goes when it is done; nothing where there is no terminal."""
    if stream is None or not stream.isatty():
        yield
        return
    began_s = shown_s = time.monotonic()

    def show(text: str) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - began_s > FIRST_WORD_S and now_s - shown_s > 0.1:
            shown_s = now_s
            write(f"{CLEAR}{_printable(text)[:75]} ...", stream, steer=True)

    try:
        with progress.listening(show):
            yield
    finally:
        if shown_s > began_s:
            write(CLEAR, stream, steer=True)


def complain(cause: str, status: int, *, hint: str = "") -> int:
    """Print an error and its hint on stderr, one line each; gives ``status`` back."""
    lines = [f"error: {' '.join(cause.split())}\n", f"hint: {' '.join(hint.split())}\n" if hint else ""]
    write("".join(lines), sys.stderr)
    return status


def _printable(text: str) -> str:
    """``text`` with escapes for what would steer a terminal, or is no character at all."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _forget(stream: TextIO) -> None:
    """Discard what the stream still holds: the interpreter would try to write it again at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, UnsupportedOperation):
        return

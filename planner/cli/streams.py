"""Writing to stdout and stderr, whatever they are: a terminal, a closed pipe, a full disk, a locale without Unicode."""

from __future__ import annotations

import errno
import os
import sys
from io import UnsupportedOperation
from typing import TYPE_CHECKING, TextIO

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.output import Result


def write(text: str, stream: TextIO | None) -> None:
    """Write ``text`` and flush it. A stream that was closed, by us or by its reader, takes it silently.

    Characters that the stream's encoding lacks, and control characters out of names that somebody else chose, are
    written as escapes. Raises InputError when the stream cannot be written for any other reason.
    """
    if stream is None or not text:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(_printable(text).encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        _forget(stream)
        if error.errno not in (errno.EPIPE, errno.EBADF):
            raise InputError(
                f"the output cannot be written: {error.strerror}", hint="free some space, or write it elsewhere"
            ) from error


def show(answer: Result, output: str) -> int:
    """Print an answer; gives the exit status that it means: 0 yes, 1 no."""
    from planner.output import print_result

    print_result(answer, output)
    return 0 if answer.ok else 1


def complain(cause: str, status: int, *, hint: str = "") -> int:
    """Put the one line of an error and the one of its hint on stderr; gives ``status`` back."""
    lines = [f"error: {' '.join(cause.split())}\n", f"hint: {' '.join(hint.split())}\n" if hint else ""]
    write("".join(lines), sys.stderr)
    return status


def _printable(text: str) -> str:
    """``text`` with what would steer a terminal, or is no character at all, as an escape."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _forget(stream: TextIO) -> None:
    """Send what the stream still holds nowhere, or the interpreter would try again when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, UnsupportedOperation):
        return

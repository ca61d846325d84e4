"""Where data lies, how a file that somebody names is read, and how one is replaced.

Packaged data lies beside the package in a wheel, at the top level in a checkout. A user's own data lies in the folder
that the platform has for it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from pathlib import Path
from typing import BinaryIO

MOST_FILE_BYTES = 64 * 2**20  #: of a file that somebody names; the largest config.json takes 3 MB
MOST_LOG_BYTES = 512 * 2**20  #: of a server's log

_PACKAGE = Path(__file__).resolve().parent


@cache
def data_dir(name: str) -> Path:
    """The folder ``hardware`` or ``templates``: packaged in a wheel, else the checkout's."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def package_dir(name: str) -> Path:
    """The folder of a room, for data that lies beside its code."""
    return _PACKAGE / name


def user_data_dir() -> Path:
    """The folder for what a user's own machines taught us: fits, never a cache. It need not exist yet.

    ``XDG_DATA_HOME`` is honoured where the platform has it.
    """
    from platformdirs import user_data_path  # only runs that look at local fits need it

    return user_data_path("planner", appauthor=False)


def check_file(path: Path, *, most_bytes: float) -> None:
    """Raise OSError for what is no regular file, or is larger: a pipe keeps its reader waiting, a device never ends."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # of a folder open() says so itself
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        large = f"it has {status.st_size:,} bytes, more than the {most_bytes:,.0f} that are read"
        raise OSError(errno.EFBIG, large, str(path))


def read_given(path: Path, *, most_bytes: int = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """The text of a file that somebody names. Raises OSError, also as ``check_file`` does, and UnicodeDecodeError."""
    check_file(path, most_bytes=most_bytes)
    return path.read_text(encoding="utf-8-sig", errors=errors)


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Whoever else works in ``folder`` waits until this is done. False where the platform has no such locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # what is wrong with the folder is told by whoever writes into it
        yield False
        return
    try:
        yield _locked(handle)
    finally:
        os.close(handle)


def write_then_rename(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, then rename it: whoever reads ``path`` meanwhile sees the old file or the new.

    What others who were killed left beside it goes. Raises OSError where that is not possible; the old file is then as
    it was.
    """
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        _remove_unheld(left)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _held(beside) as file:
            file.write(content)
            file.flush()
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[BinaryIO]:
    """An empty file at ``path`` that ``_remove_unheld`` leaves alone."""
    while True:
        with path.open("ab") as file:
            if _locked(file.fileno()) and not path.exists():  # it went before it was held
                continue
            file.truncate()
            yield file
            return


def _remove_unheld(path: Path) -> None:
    """Remove a file that no living process writes."""
    with suppress(OSError), path.open("rb") as file:
        if _locked(file.fileno(), wait=False):
            path.unlink()


def _locked(handle: int, *, wait: bool = True) -> bool:
    """Lock a file or folder until it is closed; whether it is: others may have it, or a network drive has no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True

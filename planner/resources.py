"""Folders of packaged and of user data; reading a file that a user names; replacing a file as a whole."""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

from planner.errors import InputError

MOST_FILE_BYTES = 64 * 2**20  #: of a file that a user names; the largest config.json takes 3 MB
MOST_LOG_BYTES = 512 * 2**20  #: of a server's log
_PACKAGE = Path(__file__).resolve().parent
_NAMES_ONLY: ContextVar[bool] = ContextVar("names_only", default=False)


@cache
def data_dir(name: str) -> Path:
    """The folder ``hardware`` or ``templates``: packaged in a wheel, else the checkout's."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def package_dir(name: str) -> Path:
    return _PACKAGE / name


@cache
def tables_of(path: Path) -> dict[str, Any]:
    """The tables of a packaged TOML or JSON file."""
    text = path.read_text(encoding="utf-8")
    return dict(json.loads(text)) if path.suffix == ".json" else tomllib.loads(text)


def calibration_tables(name: str) -> dict[str, Any]:
    """The tables of ``hardware/calibration/NAME.toml``."""
    return tables_of(data_dir("hardware") / "calibration" / f"{name}.toml")


def user_data_dir() -> Path:
    """The folder for fits to a user's own machines, never a cache. It need not exist yet."""
    from platformdirs import user_data_path  # only runs that look at local fits need it

    return user_data_path("planner", appauthor=False)


@contextmanager
def names_only() -> Iterator[None]:
    """Take no name that a user gives for a path within this block: for answers over a network."""
    token = _NAMES_ONLY.set(True)
    try:
        yield
    finally:
        _NAMES_ONLY.reset(token)


def may_be_path() -> bool:
    return not _NAMES_ONLY.get()


def check_file(path: Path, *, most_bytes: float) -> None:
    """Raise OSError for a file that is larger or not regular: a pipe keeps its reader waiting, a device never ends."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # of a folder open() says so itself
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        large = f"it has {status.st_size:,} bytes, more than the {most_bytes:,.0f} that are read"
        raise OSError(errno.EFBIG, large, str(path))


def read_given(path: Path, *, most_bytes: int = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """The text of a file that a user names. Raises OSError, also as ``check_file`` does, and UnicodeDecodeError."""
    check_file(path, most_bytes=most_bytes)
    return path.read_text(encoding="utf-8-sig", errors=errors)


def read_toml(path: Path, *, hint: str) -> dict[str, Any]:
    """The tables of a TOML file that a user names. Raises OSError, and InputError with ``hint`` for another form."""
    try:
        return tomllib.loads(read_given(path))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, nested without end
        raise InputError(f"{path} is not valid TOML: {error}", hint=hint) from error


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock ``folder`` for this block; ``wait``: for other processes. Yields False where it cannot be locked."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # writing into the folder reports what is wrong with it
        yield False
        return
    try:
        yield _locked(handle, wait=wait)
    finally:
        os.close(handle)


def write_then_rename(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, then rename it: readers see the old file or the new one. Raises OSError."""
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        with suppress(OSError), left.open("rb") as file:
            if _locked(file.fileno(), wait=False):
                left.unlink()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _held(beside):
            with beside.open("wb") as file:  # closed before it is renamed: some drives report a full disk only then
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # a power failure after the rename would leave an empty file
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    while True:
        with path.open("ab") as file:
            if _locked(file.fileno()) and not path.exists():  # another process deleted it before we had the lock
                continue
            yield
            return


def _locked(handle: int, *, wait: bool = True) -> bool:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True

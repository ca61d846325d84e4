"""Where data lies, and how a file is replaced.

Packaged data lies beside the package in a wheel, at the top level in a checkout. A user's own data lies in the folder
that the platform has for it.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


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


def write_then_rename(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, then rename it: whoever reads ``path`` meanwhile sees the old file or the new.

    Raises OSError where that is not possible; the old file is then as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

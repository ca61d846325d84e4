"""A file that is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import InputError


def write_file(path: Path, content: bytes, *, flag: str = "-o") -> None:
    """Written beside ``path`` and then renamed. Raises InputError, naming ``flag``, where that is not possible."""
    try:
        if path.is_dir():
            raise InputError(f"{flag} {path} is a folder", hint="name a file in it")
        if path.exists() and not path.is_file():  # renaming would put a file in the place of a device
            raise InputError(f"{flag} {path} is no file", hint="name one that may be replaced")
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{flag} {str(path)[:200]} cannot be written: {cause}",
            hint=f"name a file that you may write with {flag}",
        ) from error

"""Where packaged data lives: beside the package in a wheel, at the top level in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder ``hardware`` or ``templates``: packaged in a wheel, else the checkout's."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def package_dir(name: str) -> Path:
    """A data folder that lives inside the package itself, such as ``catalog``."""
    return _PACKAGE / name

"""One module per kind of architecture; importing this package imports them all, which registers every family."""

from importlib import import_module
from pkgutil import iter_modules

from planner.model.config import BUILDERS

__all__ = ["BUILDERS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

"""Families of models: importing this package imports its modules, and each registers its architectures."""

from importlib import import_module
from pkgutil import iter_modules

from planner.model.config import BUILDERS

__all__ = ["BUILDERS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

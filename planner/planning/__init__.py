"""Settings, GPUs and their number: fit, predict, recommend, compare, fleet, check, and the ``Plan``.

The names that other packages may use stand in ``__init__.pyi``; each is imported when it is first used."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

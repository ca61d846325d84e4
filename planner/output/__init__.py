"""Answers and launches. Names for other packages stand in ``__init__.pyi``, each imported when it is first used."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

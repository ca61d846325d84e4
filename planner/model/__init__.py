"""Layers, exact parameter counts and quantisation of a checkpoint, from the catalog, a folder or the hub.

The names offered to other packages stand in ``__init__.pyi``; each is imported on first use.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

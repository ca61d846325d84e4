"""Layers, exact parameter counts and quantisation of a checkpoint, from the catalog, a folder or the hub."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

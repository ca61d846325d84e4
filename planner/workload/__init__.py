"""Loads: lengths, arrivals, loads by name, recorded traces; latency targets."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""GPU profiles and partitions, each number with unit, source and kind; and the GPUs of this machine."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

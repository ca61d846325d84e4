"""Settings of vLLM: versions, flags, defaults, refusals, sharding, command lines, images, recipes."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

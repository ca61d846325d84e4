"""Bytes that vLLM holds on each GPU: weights, KV cache, the peak of the profile run, everything else."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

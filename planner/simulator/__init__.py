"""A replay of continuous batching, and its result with the keys and tables of ``vllm bench``.

``tests/reference_scheduler.py`` is the best introduction: the same scheduler step by step, in 311 lines without any
short cut. Tests hold the replay, which is much faster, to its results.

``__init__.pyi`` lists the names that other packages may use; each is imported when it is first used."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

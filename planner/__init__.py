"""Plan how to serve a large language model with vLLM, before renting a GPU.

>>> from planner import check_fit
>>> check_fit("meta-llama/Llama-2-7b-hf", "mi300x", calibration="none").verdict
'fits'

``__init__.pyi`` lists what is public, see ``docs/library.md``. Importing this package imports nothing else: a name is
imported when it is first used.
"""

import lazy_loader as lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

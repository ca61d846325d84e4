"""Plan how to serve a large language model with vLLM, before renting a GPU.

>>> import planner
>>> serving = planner.Serving("meta-llama/Llama-2-7b-hf", gpu="mi300x", calibration="none")
>>> serving.fit().verdict
'fits'
>>> load = planner.Load.closed_loop(8, input_len=512, output_len=128)
>>> serving.predict(load).figures["completed"]
40

``__init__.pyi`` lists what is public, see ``docs/reference/library.md``. Importing this package imports nothing else: a
name is imported when it is first used.
"""

import lazy_loader as lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

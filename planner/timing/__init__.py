"""How long is one step? Operators, roofline, collectives and host; the efficiencies and what is known of them.

The names that other rooms may use stand in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

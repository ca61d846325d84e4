"""The time of one step: operators, roofline, collectives and host; the efficiencies and their uncertainty.

``__init__.pyi`` lists the names that other packages may use; each is imported when it is first used."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

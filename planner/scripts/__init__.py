"""Scripts that launch, benchmark and validate exactly what a plan says.

``render`` turns an ``Emission`` into the text of every file, ``write`` puts them into a folder, all or none. A value
reaches a script through the filters of ``quoting`` only; what is decided is decided in ``emission``.
"""

from planner.scripts.emission import (
    ALL_FILES,
    MODEL_CACHE,
    PORT,
    RESULTS,
    Emission,
    container_name,
    describe_load,
    result_name,
)
from planner.scripts.files import write
from planner.scripts.render import render

__all__ = [
    "ALL_FILES",
    "MODEL_CACHE",
    "PORT",
    "RESULTS",
    "Emission",
    "container_name",
    "describe_load",
    "render",
    "result_name",
    "write",
]

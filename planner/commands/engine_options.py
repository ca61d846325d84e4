"""The settings of the engine, as options and as keywords: both follow from ``planner.engine.SETTINGS``."""

from __future__ import annotations

from planner.commands.declare import Option, Parameter
from planner.engine import SETTINGS
from planner.planning import engine_args as engine_args

ENGINE = "Engine (flags of vllm serve)"
DRAFTS, VARIABLES = "speculative_config", "env"
#: Settings that change memory, and settings that change time.
MEMORY = tuple(name for name, row in SETTINGS.items() if row.only != "time")
TIME = tuple(name for name, row in SETTINGS.items() if row.only != "memory")


def engine_parameter(name: str, *, searched: bool = False) -> Parameter:
    """The option of one setting. Bounds of counts are in the help; ``engine_args`` checks the others."""
    row = SETTINGS[name]
    counts = row.kind in (int, int | None)
    option = Option(
        *row.flags,
        kind={DRAFTS: str | None, VARIABLES: list[str]}.get(name),
        panel=ENGINE,
        help=f"{row.help} Default: searched." if searched else row.help,
        metavar=row.metavar or None,
        min=row.least if counts else None,
        max=row.most if counts else None,
    )
    return Parameter(name, row.kind, None if searched else row.default, option)

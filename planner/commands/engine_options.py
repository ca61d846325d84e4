"""The settings of the engine, as options and as keywords: both follow from ``planner.engine.SETTINGS``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planner.commands.declare import Option, Parameter
from planner.commands.inputs import typed
from planner.engine import SETTINGS, EngineArgs
from planner.errors import UnknownNameError

ENGINE = "Engine (flags of vllm serve)"
DRAFTS, ACCEPTANCE = "speculative_config", "speculative_acceptance_rate"
#: Settings that change memory, and settings that change time.
MEMORY = tuple(name for name, row in SETTINGS.items() if row.only != "time")
TIME = tuple(name for name, row in SETTINGS.items() if row.only != "memory")


def engine_parameter(name: str, *, searched: bool = False) -> Parameter:
    """The option of one setting. Bounds of counts are in the help; ``engine_args`` checks the others."""
    row = SETTINGS[name]
    counts = row.kind in (int, int | None)
    option = Option(
        *row.flags,
        kind=str | None if name == DRAFTS else None,
        panel=ENGINE,
        help=f"{row.help} Default: searched." if searched else row.help,
        metavar=row.metavar or None,
        envvar=row.env or None,
        show_envvar=bool(row.env),
        min=row.least if counts else None,
        max=row.most if counts else None,
    )
    return Parameter(name, row.kind, None if searched else row.default, option)


def engine_args(given: Mapping[str, Any], *, own: Iterable[str] = ()) -> EngineArgs:
    """The settings of an engine.

    ``own`` are other keywords of the function that was called, to suggest the one that was meant. Raises
    UnknownNameError for a keyword that is no setting, and InputError for a value that the setting does not take.
    """
    from planner.engine import read_drafts

    settings = dict(given)
    for name in settings:
        if name not in SETTINGS:
            raise UnknownNameError("keyword", name, (*SETTINGS, *own), see="docs/library.md")
    drafts, rates = settings.pop(DRAFTS, None), settings.pop(ACCEPTANCE, None)
    for name, value in settings.items():
        settings[name] = typed(name, value, SETTINGS[name].kind)
        SETTINGS[name].check(settings[name])
    return EngineArgs(**settings, speculative_config=read_drafts(drafts, rates))

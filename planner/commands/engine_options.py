"""The settings of the engine, as options and as keywords: both follow from ``planner.engine.SETTINGS``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.commands.declare import Option, Parameter
from planner.commands.inputs import typed
from planner.engine import (
    FLAG,
    RATE_FLAG,
    SETTINGS,
    EngineArgs,
    SpeculativeConfig,
    parse_speculative_config,
    with_acceptance,
)
from planner.errors import InputError, UnknownNameError

ENGINE = "Engine (flags of vllm serve)"
ACCEPTANCE = "speculative_acceptance_rate"
#: Settings that change memory, and settings that change time.
MEMORY = tuple(name for name, row in SETTINGS.items() if row.only != "time")
TIME = tuple(name for name, row in SETTINGS.items() if row.only != "memory")


def engine_parameter(name: str, *, searched: bool = False) -> Parameter:
    """The option of one setting. Bounds of counts are in the help; ``engine_args`` checks the others."""
    row = SETTINGS[name]
    counts = row.kind in (int, int | None)
    option = Option(
        *row.flags,
        kind=str | None if name == "speculative_config" else None,
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
    settings = dict(given)
    rates = settings.pop(ACCEPTANCE, None)
    for name, value in settings.items():
        row = SETTINGS.get(name)
        if row is None:
            raise UnknownNameError("keyword", name, (*SETTINGS, *own), see="docs/library.md")
        settings[name] = _drafts(value) if name == "speculative_config" else typed(name, value, row.kind)
        row.check(settings[name])
    args = EngineArgs(**settings)
    if rates is None:
        return args
    if args.speculative_config is None:
        raise InputError(f"{RATE_FLAG} without {FLAG}", hint=f"add {FLAG}, or leave {RATE_FLAG} out")
    text = ",".join(map(str, rates)) if isinstance(rates, Sequence) and not isinstance(rates, str) else str(rates)
    return replace(args, speculative_config=with_acceptance(args.speculative_config, text))


def _drafts(value: Any) -> SpeculativeConfig | None:
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    try:
        return parse_speculative_config(value if isinstance(value, str) else json.dumps(value))
    except TypeError as error:
        raise InputError(f"{FLAG}: {error}", hint="give a mapping, or its JSON") from error

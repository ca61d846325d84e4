"""The flags of ``vllm serve`` as keyword arguments: ``tensor_parallel_size=8``."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, cast, get_args

from planner.engine import (
    FLAG,
    RATE_FLAG,
    SETTINGS,
    EngineArgs,
    SpeculativeConfig,
    parse_speculative_config,
    with_acceptance,
)
from planner.engine import EngineFlags as EngineFlags
from planner.engine import flag_of as flag_of
from planner.errors import InputError, UnknownNameError

ACCEPTANCE = "speculative_acceptance_rate"


def engine_args(given: Mapping[str, Any], *, own: Iterable[str] = ()) -> EngineArgs:
    """The settings of an engine.

    ``own`` are other keywords of the function that was called, for a hint at what was meant. Raises UnknownNameError
    for a keyword that is no flag, and InputError for a value that is none of this flag.
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


def flags_of(args: EngineArgs, names: Container[str] | None = None) -> EngineFlags:
    """The settings as keywords; those of ``names``, where they are given."""
    every = (field.name for field in fields(args))
    return cast(EngineFlags, {name: getattr(args, name) for name in every if names is None or name in names})


def _drafts(value: Any) -> SpeculativeConfig | None:
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, str):
        return parse_speculative_config(value)
    try:
        return parse_speculative_config(json.dumps(value))
    except TypeError as error:
        raise InputError(f"{FLAG}: {error}", hint="give a mapping, or its JSON") from error


def typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` as a plain one of the types in ``hint``; numbers of numpy and the like are taken.

    Raises InputError, naming the flag, for a value of another type.
    """
    kinds = get_args(hint) or (hint,)
    if not isinstance(value, Real) or isinstance(value, bool):
        if type(value) in kinds:
            return value
    elif isinstance(value, Integral) and int in kinds:
        return int(value)
    elif float in kinds:
        return float(value)
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    wanted = " or ".join(words[kind] for kind in kinds if kind in words)
    raise InputError(f"{flag_of(name)} {repr(value)[:80]} is not {wanted}", hint=f"give {name} as {wanted}")

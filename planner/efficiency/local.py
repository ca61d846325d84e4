"""What a user's own runs taught beside the fits that we ship: factors that multiply them where they apply.

The runs themselves are kept too, so that a later fit can start from all of them, or from other fits of ours.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from planner.efficiency.fits import Calibration, Combination, Effect, Record, Spread, load_calibration
from planner.efficiency.parameters import targets
from planner.errors import InputError
from planner.resources import data_dir


class LocalFits(Record):
    """Factors fitted to a user's own runs, relative to the fits ``base``."""

    base: str  #: ``base_digest`` of the fits that the factors multiply
    fitted_on: str  #: which runs, and when
    effects: tuple[Effect, ...] = ()
    spreads: tuple[Spread, ...] = ()  #: of settings with enough runs to leave each out once
    combinations: tuple[Combination, ...] = ()  #: the settings that ``spreads`` are of
    runs: tuple[dict[str, str | bool | int | float], ...] = ()  #: columns of a table of runs


@cache
def base_digest() -> str:
    """Twelve hexadecimal digits that change with the fits and priors that we ship."""
    folder = data_dir("hardware") / "calibration"
    content = b"".join((folder / name).read_bytes() for name in ("efficiency.json", "priors.toml"))
    return sha256(content).hexdigest()[:12]


def parse_local(content: Any, where: str) -> LocalFits:
    """What a file says under ``efficiency``. Raises InputError naming the field that is wrong."""
    hint = "write it with planner calibrate"
    try:
        local = LocalFits.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("efficiency", *first["loc"])))
        raise InputError(f"{where}: {field}: {first['msg']}", hint=hint) from error
    unknown = next((effect.target for effect in local.effects if not targets(effect.target)), None)
    if unknown is not None:
        raise InputError(f"{where}: efficiency.effects: no parameter is called {unknown!r}", hint=hint)
    return local


def over_shipped(local: LocalFits, origin: str) -> Calibration:
    """The fits that we ship, with those of ``local`` on top; ``origin`` is the file that holds them."""
    base = load_calibration()
    own = (effect.model_copy(update={"origin": origin}) for effect in local.effects)
    changes = {
        "name": origin,
        "effects": (*base.effects, *own),
        "spreads": (*base.spreads, *local.spreads),
        "combinations": tuple(dict.fromkeys((*base.combinations, *local.combinations))),
    }
    return base.model_copy(update=changes)

"""The GPU profiles that are shipped, and those of users: by id, alias or path.

>>> load_profile("MI300X").compute_units
304
>>> load_profile("h100").id
'h100-sxm'
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.errors import InputError, UnknownNameError
from planner.hardware.profile import GpuProfile
from planner.resources import data_dir, read_given

_ALIASES = "aliases.toml"
_PARTITION = "\n[partition]\n"  #: the table that a partition's file has
_HINT = "start from the file of a similar GPU; every number is { value, unit, source, kind }"


@cache
def profile_ids() -> tuple[str, ...]:
    """The ids of the shipped profiles, sorted: the names of their files."""
    return tuple(sorted(file.stem for file in data_dir("hardware").glob("*.toml") if file.name != _ALIASES))


@cache
def aliases() -> dict[str, str]:
    """Other names of shipped profiles, alias to id."""
    table: dict[str, list[str]] = tomllib.loads((data_dir("hardware") / _ALIASES).read_text("utf-8"))
    return {alias: profile_id for profile_id, names in table.items() for alias in names}


def load_profile(name: str) -> GpuProfile:
    """The profile called ``name``: an id or an alias in any case, or the path of a ``.toml`` file.

    Raises UnknownNameError for a name that is neither, and InputError for a file that cannot be read or is no profile.
    """
    if name.lower().endswith(".toml"):
        return _read(Path(name))
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    profile_id = aliases().get(wanted, wanted)
    if profile_id not in profile_ids():
        known = (*profile_ids(), *aliases())
        raise UnknownNameError("GPU", name, known, see="`planner hardware list`, or give the path of a .toml file")
    return _shipped(profile_id)


def load_all() -> tuple[GpuProfile, ...]:
    """Every shipped profile, by id."""
    return tuple(_shipped(profile_id) for profile_id in profile_ids())


def load_whole() -> tuple[GpuProfile, ...]:
    """Every shipped profile of a whole GPU, by id. Those of partitions are not parsed, which would take longer."""
    return tuple(_shipped(profile_id) for profile_id in profile_ids() if _PARTITION not in _text(profile_id))


def _text(profile_id: str) -> str:
    return (data_dir("hardware") / f"{profile_id}.toml").read_text("utf-8")


@cache
def _shipped(profile_id: str) -> GpuProfile:
    names = tuple(alias for alias, target in aliases().items() if target == profile_id)
    return _read(data_dir("hardware") / f"{profile_id}.toml", aliases=names)


def _read(path: Path, **extra: Any) -> GpuProfile:
    try:
        facts = tomllib.loads(read_given(path))
        return GpuProfile.model_validate({"id": path.stem, **extra, **facts})
    except OSError as error:
        raise InputError(f"cannot read GPU profile {path}: {error.strerror}", hint="check the path") from error
    except ValidationError as error:
        raise InputError(f"{path}: {_first_cause(error)}", hint=_HINT) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, nested without end
        raise InputError(f"{path} is not valid TOML: {error}", hint=_HINT) from error


def _first_cause(error: ValidationError) -> str:
    """The first thing wrong in one line: ``memory.bandwidth.unit: Field required (and 2 more)``."""
    first, *others = error.errors(include_url=False)
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").splitlines()[0]
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}: {message}{more}" if where else f"{message}{more}"

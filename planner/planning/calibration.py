"""Calibration of the user's own machines: one file with two parts.

::

    [[sampler]] ...      overheads of memory, from start-up logs   (planner fit --startup-log, planner calibrate DIR)
    [efficiency] ...     factors on the efficiencies that we ship, and the runs they rest on   (planner calibrate)

``calibration.toml`` in the user's data directory counts unless ``--calibration`` names another file, or ``none``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from planner import timing  # it is loaded where it is used
from planner.errors import InputError, os_errors
from planner.memory import Constants, FittedConstant, parse_constants, shipped
from planner.resources import read_toml, user_data_dir, write_then_rename
from planner.units import FACTORS

#: Units that the constants of memory are written in; shares and copies have none.
UNITS = {"memory": "GiB", "unexplained": "GiB", "non_torch": "GiB", "graphs": "GiB", "graph_each": "MiB"}
HEADER = "# Calibration of this user's machines: planner fit --startup-log and planner calibrate write it.\n"
EFFICIENCY = "efficiency"
ENDS = {"value": "mid", "low": "low", "high": "high"}  #: keys of the file, ends of an interval
NONE = "none"
_HINT = "give a file that planner calibrate or planner fit --startup-log wrote, or --calibration none"


@dataclass(frozen=True)
class Local:
    """The content of such a file; without a path, nothing but what we ship."""

    path: Path | None = None
    memory: tuple[FittedConstant, ...] = ()
    efficiency: timing.LocalFits | None = None

    @property
    def is_stale(self) -> bool:
        """True if the factors belong to other shipped fits than the present ones, and so mean nothing."""
        return self.efficiency is not None and self.efficiency.base != timing.base_digest()

    @cached_property
    def constants(self) -> Constants:
        """Overheads of memory: the user's own before ours."""
        return Constants(self.memory).before(shipped()) if self.memory else shipped()

    @cached_property
    def calibration(self) -> timing.Calibration:
        """Efficiencies: ours under the user's factors. Raises InputError for stale ones of a named file."""
        if self.is_stale and self.path != local_path():
            cause = f"{self.path} was fitted on older efficiencies than those shipped now"
            raise InputError(cause, hint=f"fit its runs again: planner calibrate -o {self.path}")
        if self.efficiency is None or self.is_stale:
            return timing.load_calibration()
        return timing.load_calibration().with_own(self.efficiency.effects, str(self.path))

    @property
    def notes(self) -> tuple[str, ...]:
        stale = f"{self.path} was fitted on older efficiencies than those shipped now, so its factors are left out: "
        return (stale + "planner calibrate without files fits its runs again",) if self.is_stale else ()


SHIPPED = Local()  #: the shipped fits alone


def local_path() -> Path:
    """The file that counts by default. It need not exist."""
    return user_data_dir() / "calibration.toml"


def local_for(calibration: str | PathLike[str] | None) -> Local:
    """Read ``--calibration``: a file, ``none``, by default the user's own file where it exists."""
    if calibration == NONE or (calibration is None and not _is_there(local_path())):
        return SHIPPED
    return read_local(Path(calibration) if calibration else local_path())


def _is_there(path: Path) -> bool:
    """True if the file exists; false in a folder that may not be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_local(path: Path) -> Local:
    """The content of a file. Raises InputError naming what is wrong with it."""
    with os_errors(str(path), hint=_HINT):
        table = read_toml(path, hint=_HINT)
    content = table.pop(EFFICIENCY, None)
    efficiency = None if content is None else timing.parse_local(content, str(path))
    return Local(path, parse_constants(table, str(path), hint=_HINT), efficiency)


def save(
    learned: Iterable[FittedConstant] = (), efficiency: timing.LocalFits | None = None, path: Path | None = None
) -> Path:
    """Add constants of memory to the file, replace its factors where ``efficiency`` is given, and return its path.

    Constants of the same name under the same conditions are replaced. Raises InputError where it cannot be written."""
    path = path or local_path()
    known = read_local(path) if _is_there(path) else SHIPPED
    every = (*known.memory, *learned)
    fits = {(fit.name, fit.since, fit.until, tuple(sorted(fit.where.items()))): fit for fit in every}
    # what one model taught counts before what it says about others
    ordered = sorted(fits.values(), key=lambda fit: (fit.name, "model" not in fit.where))
    text = _text(replace(known, memory=tuple(ordered), efficiency=efficiency or known.efficiency))
    hint = "name another file, or set XDG_DATA_HOME to a folder of your own"
    with os_errors(f"{path} cannot be written", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_then_rename(path, text.encode())
    return path


def _text(local: Local) -> str:
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for fit in local.memory:
        unit = UNITS.get(fit.name, "1")
        ends = {key: getattr(fit.interval, end) / FACTORS[unit] for key, end in ENDS.items()}
        since, until = (".".join(map(str, release)) for release in (fit.since, fit.until))
        table = {"since": since, "until": until, "where": fit.where, **ends, "unit": unit, "logs": fit.logs}
        tables.append((f"[[{fit.name}]]", table | ({"note": fit.note} if fit.note else {})))
    if local.efficiency:
        data = local.efficiency.model_dump(mode="json")
        tables.append((f"[{EFFICIENCY}]", {k: value for k, value in data.items() if not isinstance(value, list)}))
        lists = ((name, entries) for name, entries in data.items() if isinstance(entries, list))
        tables += [(f"[[{EFFICIENCY}.{name}]]", entry) for name, entries in lists for entry in entries]
    texts = ["\n".join((head, *(f"{k} = {_value(value)}" for k, value in table.items()))) for head, table in tables]
    return HEADER + "".join(f"\n{text}\n" for text in texts)


def _value(value: Any) -> str:
    """A value of TOML: numbers, booleans and strings are written nearly as in JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + " }"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no pairs of surrogates
    return text.encode("utf-8", "replace").decode()

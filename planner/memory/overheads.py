"""The part of vLLM's memory that no formula gives: constants fitted to start-up logs, each with its interval.

The constants that we ship live in ``hardware/calibration/memory.toml``, with the logs that they rest on. Those of a
user's own GPUs are computed from the user's logs (``planner.memory.learned``) and take precedence over ours.
An interval should hold nine logs in ten. Intervals of independent parts add in quadrature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import hypot, isfinite, log2
from typing import Any

from planner.errors import InputError
from planner.resources import data_dir
from planner.units import to_base

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Interval:
    """A best estimate between a low and a high one; bytes unless said otherwise."""

    mid: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """A figure without error."""
        return cls(value, value, value)

    def scaled(self, factor: float) -> Interval:
        """All three multiplied by ``factor``, which is not negative."""
        return Interval(self.mid * factor, self.low * factor, self.high * factor)

    def larger(self, other: Interval) -> Interval:
        """The larger of two peaks."""
        return Interval(max(self.mid, other.mid), max(self.low, other.low), max(self.high, other.high))

    def smaller(self, other: Interval) -> Interval:
        """The smaller of two bounds."""
        return Interval(min(self.mid, other.mid), min(self.low, other.low), min(self.high, other.high))

    def plus(self, other: Interval) -> Interval:
        """The sum of two parts that err together."""
        return Interval(self.mid + other.mid, self.low + other.low, self.high + other.high)


def total(parts: Iterable[Interval]) -> Interval:
    """The sum of independent parts."""
    parts = tuple(parts)
    mid = sum(part.mid for part in parts)
    below = hypot(*(part.mid - part.low for part in parts))
    above = hypot(*(part.high - part.mid for part in parts))
    return Interval(mid, mid - below, mid + above)


# --- constants --------------------------------------------------------------------------------------------------------

_ALWAYS, _NEVER = (0,), (10**6,)


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One fitted constant: where it applies, what it is, which logs it rests on."""

    name: str
    interval: Interval  #: in the unit used inside
    logs: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)  #: vendor, gpu, tensor_parallel_size, ...
    since: tuple[int, ...] = _ALWAYS  #: first release that it holds for
    until: tuple[int, ...] = _NEVER  #: first release that it no longer holds for
    note: str = ""
    origin: str = SHIPPED  #: the file it was read from, where that is not ours

    def holds(self, release: tuple[int, ...], where: Mapping[str, Any]) -> bool:
        """Whether the constant applies to this release and to everything in ``where`` that it names."""
        return self.since <= release < self.until and all(where.get(key) == value for key, value in self.where.items())


@dataclass(frozen=True)
class Overheads:
    """The constants that apply to one engine on one GPU."""

    constants: Constants
    release: tuple[int, ...]
    where: Mapping[str, Any]

    def find(self, name: str) -> FittedConstant | None:
        """The first constant ``name`` that holds; None when there is none."""
        return next((f for f in self.constants.by_name.get(name, ()) if f.holds(self.release, self.where)), None)

    def __getitem__(self, name: str) -> Interval:
        """The constant itself, in the unit used inside. KeyError when there is none."""
        found = self.find(name)
        if found is None:
            raise KeyError(f"no {name} for vLLM {'.'.join(map(str, self.release))} and {dict(self.where)}")
        return found.interval

    @property
    def non_torch_bytes(self) -> Interval:
        """Communicators, code of kernels, workspaces; straight in log2(TP) between known sizes."""
        ranks: int = self.where["tensor_parallel_size"]
        known: dict[int, Interval] = {}
        for fit in self.constants.by_name["non_torch"]:
            size = int(fit.where.get("tensor_parallel_size", ranks))
            if size not in known and fit.holds(self.release, {**self.where, "tensor_parallel_size": size}):
                known[size] = fit.interval
        below = max(size for size in known if size <= ranks)
        above = min((size for size in known if size >= ranks), default=below)
        share = 0.0 if below == above else log2(ranks / below) / log2(above / below)
        return known[below].scaled(1 - share).plus(known[above].scaled(share))

    @property
    def own(self) -> tuple[FittedConstant, ...]:
        """Constants that hold here and come from the user's logs."""
        names = self.constants.by_name
        return tuple(f for name in names if (f := self.find(name)) is not None and f.origin != SHIPPED)


@dataclass(frozen=True)
class Constants:
    """Constants by precedence: the first of a name that holds is the one that applies."""

    fits: tuple[FittedConstant, ...]

    @cached_property
    def by_name(self) -> dict[str, tuple[FittedConstant, ...]]:
        """The constants of each name, in order."""
        names = dict.fromkeys(fit.name for fit in self.fits)
        return {name: tuple(fit for fit in self.fits if fit.name == name) for name in names}

    def before(self, others: Constants) -> Constants:
        """These, and ``others`` where none of these holds."""
        return Constants(self.fits + others.fits)


@cache
def shipped() -> Constants:
    """The constants of our own ``memory.toml``."""
    entries = {name: entry for name, entry in _shipped_table().items() if name != "spread"}
    return Constants(parse_constants(entries, "memory.toml", origin=SHIPPED, hint="install planner again"))


def spread() -> dict[str, float]:
    """How far each constant may be off for another model on the same GPU, as a share."""
    return dict(_shipped_table()["spread"])


@cache
def _shipped_table() -> dict[str, Any]:
    return tomllib.loads((data_dir("hardware") / "calibration" / "memory.toml").read_text("utf-8"))


def parse_constants(table: Mapping[str, Any], where: str, *, hint: str, origin: str = "") -> tuple[FittedConstant, ...]:
    """The constants of a table in the format of ``memory.toml``, read from ``where``; InputError for any other."""
    found = []
    for name, entries in table.items():
        try:
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise TypeError(f"it is no list of tables, [[{name}]]")
            found += [_read(name, entry, origin or where) for entry in entries]
        except KeyError as error:
            raise InputError(
                f"{where} holds no memory constants: {name}: {error} is missing, or not known", hint=hint
            ) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{where} holds no memory constants: {name}: {str(error)[:200]}", hint=hint) from error
    return tuple(found)


def _read(name: str, entry: Mapping[str, Any], origin: str) -> FittedConstant:
    mid, low, high = (to_base(entry[key], entry["unit"]) for key in ("value", "low", "high"))
    if not low <= mid <= high or not isfinite(high - low):
        raise ValueError(f"{low} <= {mid} <= {high} does not hold")
    logs, where, note = entry["logs"], entry.get("where", {}), entry.get("note", "")
    if not all(isinstance(text, str) for text in (note, *logs)) or not isinstance(where, dict):
        raise TypeError("logs and note are texts, where is a table")
    if not all(isinstance(value, str | int | float) for value in where.values()):
        raise TypeError("where has values that are no texts or numbers")
    size = where.get("tensor_parallel_size", 1)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"tensor_parallel_size {size!r} is no number of GPUs")
    return FittedConstant(
        name=name,
        interval=Interval(mid, low, high),
        logs=tuple(logs),
        where=where,
        since=_release(entry.get("since"), _ALWAYS),
        until=_release(entry.get("until"), _NEVER),
        note=note,
        origin=origin,
    )


def _release(text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text and not isinstance(text, str):
        raise TypeError(f"{text!r} is no release, such as '0.11.0'")
    return tuple(int(part) for part in text.split(".")) if text else default

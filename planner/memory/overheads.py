"""The part of vLLM's memory that no formula gives: constants fitted to start-up logs, each with its interval.

They live in ``hardware/calibration/memory.toml`` beside the logs they rest on, apart from every vendor's figure.
An interval is meant to hold nine logs in ten; intervals of independent parts add in quadrature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import hypot, log2
from typing import Any

from planner.engine.version import EngineVersion
from planner.resources import data_dir
from planner.units import to_base


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
        """The larger of two peaks, of which only one counts."""
        return Interval(max(self.mid, other.mid), max(self.low, other.low), max(self.high, other.high))


def total(parts: Iterable[Interval]) -> Interval:
    """The sum of independent parts."""
    parts = tuple(parts)
    mid = sum(part.mid for part in parts)
    below = hypot(*(part.mid - part.low for part in parts))
    above = hypot(*(part.high - part.mid for part in parts))
    return Interval(mid, mid - below, mid + above)


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted constant: where it applies, what it is, which logs it rests on."""

    name: str
    interval: Interval  #: in the unit used inside
    since: tuple[int, ...]  #: first release that it holds for
    until: tuple[int, ...]  #: first release that it no longer holds for
    where: dict[str, Any]  #: vendor, tensor_parallel_size, ...
    logs: tuple[str, ...]
    note: str

    def holds(self, version: EngineVersion, where: dict[str, Any]) -> bool:
        """Whether the constant applies to this release and to everything in ``where`` that it names."""
        return self.since <= version.release < self.until and all(
            where.get(key) == value for key, value in self.where.items()
        )


_NEVER = (10**6,)


@cache
def fits() -> tuple[Fit, ...]:
    """Every constant of ``memory.toml``, in its order: the first that holds counts."""
    path = data_dir("hardware") / "calibration" / "memory.toml"
    table: dict[str, list[dict[str, Any]]] = tomllib.loads(path.read_text("utf-8"))
    return tuple(_read(name, entry) for name, entries in table.items() for entry in entries)


def _read(name: str, entry: dict[str, Any]) -> Fit:
    unit = entry["unit"]
    return Fit(
        name=name,
        interval=Interval(*(to_base(entry[key], unit) for key in ("value", "low", "high"))),
        since=_release(entry.get("since"), (0,)),
        until=_release(entry.get("until"), _NEVER),
        where=entry.get("where", {}),
        logs=tuple(entry["logs"]),
        note=entry.get("note", ""),
    )


def _release(text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) if text else default


def constant(name: str, version: EngineVersion, **where: Any) -> Interval:
    """The constant ``name`` for a release and the circumstances in ``where``. KeyError when the file lacks it."""
    for fit in fits():
        if fit.name == name and fit.holds(version, where):
            return fit.interval
    raise KeyError(f"memory.toml has no {name} for vLLM {version} and {where}")


def non_torch_bytes(version: EngineVersion, vendor: str, tensor_parallel_size: int, link: str) -> Interval:
    """Memory outside torch: communicators, kernels' code and workspaces; straight in log2(TP) between known sizes.

    ``link`` is the kind of interconnect: buffers over PCIe are smaller than over NVLink.
    """
    known: dict[int, Interval] = {}
    for fit in fits():
        size = int(fit.where.get("tensor_parallel_size", 0))
        where = {"vendor": vendor, "tensor_parallel_size": size, "link": link}
        if fit.name == "non_torch" and size not in known and fit.holds(version, where):
            known[size] = fit.interval
    below = max(size for size in known if size <= tensor_parallel_size)
    above = min((size for size in known if size >= tensor_parallel_size), default=below)
    share = 0.0 if below == above else log2(tensor_parallel_size / below) / log2(above / below)
    return total_of(known[below].scaled(1 - share), known[above].scaled(share))


def total_of(one: Interval, other: Interval) -> Interval:
    """The sum of parts that err together."""
    return Interval(one.mid + other.mid, one.low + other.low, one.high + other.high)

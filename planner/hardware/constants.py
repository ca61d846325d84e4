"""Single numbers that are assumed or read off, with their basis: ``hardware/calibration/constants.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from planner.resources import data_dir
from planner.units import to_base


class Constant(BaseModel):
    """A number with its unit and basis; ``runs``: measured runs determine it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    unit: str
    basis: str
    runs: bool


@cache
def load_constants() -> dict[str, Constant]:
    """All constants by name; those of a group are named ``group.member``."""
    text = (data_dir("hardware") / "calibration" / "constants.toml").read_text(encoding="utf-8")
    return dict(_constants("", tomllib.loads(text)))


def _constants(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Constant]]:
    for name, entry in table.items():
        if "value" in entry:
            yield prefix + name, Constant(**entry)
        else:
            yield from _constants(f"{prefix}{name}.", entry)


def constant(name: str) -> float:
    entry = load_constants()[name]
    return to_base(entry.value, entry.unit)


def constant_of(group: str, member: str) -> float:
    """The value for ``member`` of a group, else that of the group's ``other``."""
    name = f"{group}.{member}"
    return constant(name if name in load_constants() else f"{group}.other")

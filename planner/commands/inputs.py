"""Values of the type that a keyword takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.engine import flag_of
from planner.errors import InputError
from planner.planning import GpuName as GpuName
from planner.planning import ModelName as ModelName
from planner.planning import asked_version as asked_version
from planner.planning import basis_for as basis_for
from planner.planning import checked_rate as checked_rate
from planner.planning import draft_of as draft_of
from planner.planning import find_gpu as find_gpu
from planner.planning import find_gpus as find_gpus
from planner.planning import fits_for as fits_for
from planner.planning import load_model as load_model
from planner.planning import typed as typed
from planner.planning import version_for as version_for


def check_count(name: str, value: int | None, *, least: int = 1, most: int | None = None) -> None:
    """Raises InputError, naming the flag, for what is no whole number from ``least`` to ``most``; None is fine."""
    if value is None:
        return
    plain = typed(name, value, int)
    if plain < least or (most is not None and plain > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag_of(name)} must be {wanted}, got {plain}", hint="give such a number, or leave it out")


def assignments(given: Mapping[str, float] | Sequence[str]) -> list[str]:
    """``GPU=NUMBER`` for each, as it is typed."""
    return [f"{name}={number}" for name, number in given.items()] if isinstance(given, Mapping) else list(given)

"""From what the user typed to facts: as ``planner.api.inputs``, with remarks on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from planner.api.inputs import found_gpu, found_gpus
from planner.errors import InputError
from planner.hardware import GpuProfile

if TYPE_CHECKING:
    from planner.planning import Local


def gpu_profiles(names: Sequence[str]) -> list[GpuProfile]:
    """The profiles of ``names`` in their order, each once; ``all`` is every profile."""
    from planner.output import print_notes

    profiles, remarks = found_gpus(names)
    print_notes(remarks)
    return list(profiles)


def gpu_profile(name: str) -> GpuProfile:
    """The profile called ``name``; ``local`` is that of this machine's GPUs, with a remark on which they are."""
    from planner.output import print_notes

    profile, remarks = found_gpu(name)
    print_notes(remarks)
    return profile


def local_fits(calibration: str | None) -> Local:
    """What ``--calibration`` means for speed and memory, with a remark where the user's own fits are out of date."""
    from planner.output import print_notes
    from planner.planning import local_for

    local = local_for(calibration)
    print_notes(local.notes)
    return local


def percentiles(text: str) -> tuple[float, ...]:
    """The numbers of ``50,90,99``. Raises InputError for anything else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--metric-percentiles {text!r} is not a list of numbers", hint="for example 50,90,99"
        ) from error


def goodput(words: Sequence[str]) -> dict[str, float]:
    """Targets in ms by metric, from ``ttft:500``. Raises InputError for anything else."""
    targets: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            targets[name] = float(text)
        except ValueError:
            targets[name] = float("nan")
        if not (isfinite(targets[name]) and targets[name] > 0):
            raise InputError(f"--goodput {word!r} is not a target in ms", hint="for example --goodput ttft:500")
    return targets

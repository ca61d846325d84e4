"""``--gpu local``: the profile of the GPUs of this machine, and how many it has."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from planner.errors import InputError
from planner.hardware.loader import load_all, load_profile
from planner.hardware.schema import GpuProfile
from planner.local_gpus import LocalGpu, detect
from planner.resources import package_dir
from planner.units import GIB

#: The same GPU shows a few MiB more or less from driver to driver; other GPUs differ by far more.
MEMORY_TOLERANCE = 0.03

_OTHERWISE = "name the profile that comes nearest with --gpu: planner hardware list shows them; or give a .toml file"


@dataclass(frozen=True, slots=True)
class LocalProfile:
    """The profile with ``gpus_per_node`` as this machine has them, and what was found, in words."""

    profile: GpuProfile
    note: str


def local_profile(gpus: Iterable[LocalGpu] | None = None) -> LocalProfile:
    """The profile of ``gpus``; None: of those that the vendors' tools show on this machine.

    Raises InputError where there are none, where one has no profile, and where they are of several kinds.
    """
    found = tuple(detect() if gpus is None else gpus)
    counts = Counter(profile_id for gpu in found for profile_id in _logical(gpu))
    if len(counts) > 1:
        kinds = " and ".join(f"{count} x {name}" for name, count in counts.items())
        raise InputError(
            f"--gpu local: this machine has {kinds}, and a plan is for GPUs of one kind",
            hint=f"name one of them: --gpu {counts.most_common(1)[0][0]}",
        )
    if not counts:
        raise InputError(
            "--gpu local: MIG is on, and there are no instances",
            hint="make some with nvidia-smi mig -cgi, or turn it off",
        )
    ((profile_id, count),) = counts.items()
    profile = load_profile(profile_id).model_copy(update={"gpus_per_node": count})
    return LocalProfile(profile, f"--gpu local: this machine has {count} x {profile.name} ({profile_id})")


def _logical(gpu: LocalGpu) -> Iterator[str]:
    """The profile id of each logical GPU of a package: itself, its partitions, its MIG instances."""
    whole = _whole(gpu)
    if gpu.mig:
        for name in gpu.slices:
            yield _part_of(whole, f"MIG {name}", "").id
    elif gpu.compute_mode in {"", "SPX"}:
        _check_memory(gpu, whole)
        yield whole.id
    else:
        part = _part_of(whole, gpu.compute_mode, gpu.memory_mode)
        yield from [part.id] * (part.partition.count if part.partition else 1)


def _whole(gpu: LocalGpu) -> GpuProfile:
    profile_id = _by_pci().get(gpu.device_id) or _by_name().get(_plain(gpu.name))
    if profile_id is None:
        shown = gpu.name or gpu.device_id or "a GPU without a name"
        raise InputError(f"--gpu local: there is no profile of {shown!r}", hint=_OTHERWISE)
    return load_profile(profile_id)


def _part_of(whole: GpuProfile, compute_mode: str, memory_mode: str) -> GpuProfile:
    for profile in load_all():
        part = profile.partition
        if part and (part.of, part.compute_mode, part.memory_mode) == (whole.id, compute_mode, memory_mode):
            return profile
    mode = f"{compute_mode}/{memory_mode}" if memory_mode else compute_mode
    raise InputError(f"--gpu local: there is no profile of {whole.name} as {mode}", hint=_OTHERWISE)


def _check_memory(gpu: LocalGpu, whole: GpuProfile) -> None:
    """A name is shared by cards of different memory, and a virtual machine may be given a part of one."""
    expected_bytes = (whole.memory.driver or whole.memory.engine_visible).base
    if gpu.memory_bytes is not None and abs(gpu.memory_bytes / expected_bytes - 1) > MEMORY_TOLERANCE:
        raise InputError(
            f"--gpu local: {gpu.name} has {gpu.memory_bytes / GIB:.1f} GiB here, and the profile {whole.id} "
            f"{expected_bytes / GIB:.1f} GiB",
            hint=_OTHERWISE,
        )


def _plain(name: str) -> str:
    """A name without what drivers spell differently: case, underscores, NVIDIA's own name in front."""
    return " ".join(name.lower().replace("_", " ").split()).removeprefix("nvidia ")


@cache
def _devices() -> dict[str, dict[str, list[str]]]:
    table: dict[str, dict[str, list[str]]] = tomllib.loads(
        (package_dir("hardware") / "devices.toml").read_text(encoding="utf-8")
    )
    return table


@cache
def _by_pci() -> dict[str, str]:
    return {pci: profile_id for profile_id, entry in _devices().items() for pci in entry.get("pci", [])}


@cache
def _by_name() -> dict[str, str]:
    return {_plain(name): profile_id for profile_id, entry in _devices().items() for name in entry["names"]}

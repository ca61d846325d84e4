"""``--gpu local``: the GPUs of this node as ``amd-smi`` and ``nvidia-smi`` show them.

>>> read_nvidia_smi("NVIDIA L4, 23034, [N/A]", "GPU 0: NVIDIA L4 (UUID: GPU-1)")[0].memory_bytes // 2**20
23034
"""

import csv
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.errors import InputError
from planner.hardware.profiles import GpuProfile, load_all, load_profile, tool_names
from planner.units import GIB, MIB, whole_number

TIMEOUT_S = 30  #: a driver that hangs must not hang us
Run = Callable[[Sequence[str]], str]  #: runs a command and returns its output; raises SilentTool
AMD_STATIC = ("amd-smi", "static", "--json")
AMD_PARTITION = ("amd-smi", "partition", "--current", "--json")
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
NVIDIA_LIST = ("nvidia-smi", "-L")
_NVIDIA_LINE = re.compile(r"(?:GPU \d+:|\s+MIG\s+(\S+)\s+Device\s+\d+:)(?:.*\(UUID: ([^)]+)\))?")
_BROKEN = ("[GPU is lost]", "[GPU requires reset]", "[Unknown Error]")


@dataclass(frozen=True, slots=True)
class LocalGpu:
    name: str  #: as the tool prints it
    device_id: str = ""  #: of PCI, such as 0x74a1
    memory_bytes: int | None = None  #: of the whole GPU
    compute_mode: str = ""  #: SPX, DPX, QPX, CPX
    memory_mode: str = ""  #: NPS1, NPS2, NPS4
    mig: bool = False
    slices: tuple[str, ...] = ()  #: profiles of its MIG instances, such as 3g.40gb


class SilentTool(Exception):
    """A tool that is missing, fails, hangs or prints something unknown, with the reason."""


def run_tool(command: Sequence[str]) -> str:
    try:
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise SilentTool("not installed" if missing else error.strerror or "does not run") from error
    try:
        printed, said = tool.communicate(timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        tool.kill()  # without waiting: one that the driver holds in the kernel ends when the driver lets it
        late = isinstance(error, subprocess.TimeoutExpired)
        raise SilentTool(f"no answer in {TIMEOUT_S} s" if late else "prints no text") from error
    if tool.returncode:
        message = (said.strip() or printed.strip() or "says nothing").splitlines()[0]
        raise SilentTool(f"ended with status {tool.returncode}: {message[:160]}")
    return printed


def find_local_gpus(run: Run = run_tool) -> tuple[LocalGpu, ...]:
    """Every GPU of this node. Raises InputError where no tool shows one."""
    reasons: list[str] = []

    def ask(tool: str, read: Callable[[], Iterable[LocalGpu]]) -> tuple[LocalGpu, ...]:
        try:
            gpus, reason = tuple(read()), "shows none"
        except SilentTool as error:
            gpus, reason = (), str(error)
        reasons.extend([] if gpus else [f"{tool}: {reason}"])
        return gpus

    modes = ""
    with suppress(SilentTool):
        modes = run(AMD_PARTITION)
    amd = ask("amd-smi", lambda: _visible(tuple(read_amd_smi(run(AMD_STATIC), modes))))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    nvidia = ask("nvidia-smi", lambda: read_nvidia_smi(run(NVIDIA), run(NVIDIA_LIST), visible))
    if not amd and not nvidia:
        cause = f"no GPU is found on this machine ({'; '.join(reasons)})"
        raise InputError(cause, hint="name one, such as --gpu mi300x: planner hardware list shows the names")
    return (*amd, *nvidia)


def read_amd_smi(static: str, partition: str = "") -> Iterator[LocalGpu]:
    """The GPUs in ``amd-smi static --json``; from version 26 on the modes are in ``amd-smi partition``. Partitions of
    one GPU differ in the PCI function only; memory is that of the whole GPU in MiB."""
    modes = {row.get("gpu_id", row.get("gpu")): row for row in _rows(_json(partition), "current_partition")}
    seen: set[str] = set()
    for entry in _rows(_json(static), "gpu_data"):
        asic, device = _part(entry, "asic"), str(_part(entry, "bus").get("bdf", "")).rpartition(".")[0]
        if device and device in seen:
            continue
        seen.add(device)
        known = {**_part(entry, "partition"), **modes.get(entry.get("gpu"), {})}
        size = _part(_part(entry, "vram"), "size").get("value")
        yield LocalGpu(
            name=str(asic.get("market_name", "")),
            device_id=str(asic.get("device_id", "")).lower(),
            memory_bytes=int(size * MIB) if isinstance(size, int | float) else None,
            compute_mode=_mode(known, "accelerator_type", "accelerator_partition", "compute_partition"),
            memory_mode=_mode(known, "memory", "memory_partition"),
        )


def _visible(gpus: tuple[LocalGpu, ...]) -> tuple[LocalGpu, ...]:
    """Keep what ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES, name by number; all where they count partitions."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        numbers = [whole_number(word.strip()) for word in os.environ.get(name, "").split(",")]
        if None not in numbers and all(gpu.compute_mode in ("", "SPX") for gpu in gpus):
            gpus = tuple(gpus[number] for number in numbers if number is not None and number < len(gpus))
    return gpus


def read_nvidia_smi(query: str, listing: str, visible: str | None = None) -> tuple[LocalGpu, ...]:
    """The GPUs in ``nvidia-smi --query-gpu=name,memory.total,mig.mode.current``, and the MIG instances in ``-L``.

    ``visible`` is CUDA_VISIBLE_DEVICES: numbers, or beginnings of UUIDs."""
    listed: list[tuple[str, list[tuple[str, str]]]] = []  # UUID of each GPU, profile and UUID of its instances
    for line in filter(None, map(_NVIDIA_LINE.match, listing.splitlines())):
        profile, uuid = line[1], line[2] or ""
        if not profile:
            listed.append((uuid, []))
        elif listed:
            listed[-1][1].append((profile, uuid))
    rows = [[word.strip() for word in row] for row in csv.reader(query.splitlines()) if row]
    if any(len(row) != 3 for row in rows) or len(listed) != len(rows):
        raise SilentTool(f"prints something unknown: {query.strip()[:160]!r}")
    wanted = None if visible is None else [word.strip() for word in visible.split(",")]

    def is_wanted(uuid: str, number: str = "") -> bool:
        return wanted is None or any(w == number or (w[:4] in ("GPU-", "MIG-") and uuid.startswith(w)) for w in wanted)

    gpus = []
    for number, ((name, size, mode), (uuid, parts)) in enumerate(zip(rows, listed, strict=True)):
        whole = is_wanted(uuid, str(number))
        slices = tuple(profile for profile, part in parts if whole or is_wanted(part))
        if (whole or slices) and not {name, size, mode} & set(_BROKEN):
            memory_bytes = (whole_number(size) or 0) * MIB or None
            gpus.append(LocalGpu(name, memory_bytes=memory_bytes, mig=mode == "Enabled", slices=slices))
    if rows and not gpus:
        raise SilentTool(f"{len(rows)} GPUs, all lost or left out by CUDA_VISIBLE_DEVICES")
    return tuple(gpus)


def _json(text: str) -> Any:
    start = re.search(r"^[\[{]", text, re.MULTILINE)
    if start is None:
        if text.strip():
            raise SilentTool(f"prints no JSON: {text.strip()[:160]!r}")
        return []
    try:
        return json.loads(text[start.start() :])
    except json.JSONDecodeError as error:
        raise SilentTool(f"prints no JSON: {error}") from error


def _rows(data: Any, key: str) -> list[dict[str, Any]]:
    rows = data.get(key, []) if isinstance(data, dict) else data
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _part(entry: dict[str, Any], key: str) -> dict[str, Any]:
    part = entry.get(key)
    return part if isinstance(part, dict) else {}


def _mode(fields: dict[str, Any], *keys: str) -> str:
    modes = (str(fields[key]).strip("* ").upper() for key in keys if key in fields)
    return next((mode for mode in modes if mode not in {"", "N/A", "NONE", "UNKNOWN"}), "")


MEMORY_TOLERANCE = 0.03  #: drivers differ by a few MiB for the same GPU; two kinds of GPU differ by far more
_OTHERWISE = "name the nearest profile with --gpu: planner hardware list shows them; or give a .toml file"


def local_profile(gpus: Iterable[LocalGpu] | None = None) -> tuple[GpuProfile, str]:
    """The profile of ``gpus``, by default of this node's, and a remark that names it. Raises InputError for none,
    unknown or mixed GPUs."""
    gpus = find_local_gpus() if gpus is None else gpus
    counts = Counter(profile_id for gpu in gpus for profile_id in _logical(gpu))
    if len(counts) > 1:
        kinds = " and ".join(f"{count} x {name}" for name, count in counts.items())
        cause = f"--gpu local: this machine has {kinds}, and a plan is for GPUs of one kind"
        raise InputError(cause, hint=f"name one of them: --gpu {counts.most_common(1)[0][0]}")
    if not counts:
        cause = "--gpu local: MIG is on, and there are no instances"
        raise InputError(cause, hint="create instances with nvidia-smi mig -cgi, or turn MIG off")
    ((profile_id, count),) = counts.items()
    profile = load_profile(profile_id).model_copy(update={"gpus_per_node": count})
    return profile, f"--gpu local: this machine has {count} x {profile.name} ({profile_id})"


def _logical(gpu: LocalGpu) -> Iterator[str]:
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
    profile_id = _devices().get(gpu.device_id) or _devices().get(_plain(gpu.name))
    if profile_id is None:
        shown = gpu.name or gpu.device_id or "a GPU without a name"
        raise InputError(f"--gpu local: there is no profile of {shown!r}", hint=_OTHERWISE)
    return load_profile(profile_id)


def _part_of(whole: GpuProfile, compute_mode: str, memory_mode: str) -> GpuProfile:
    for profile in load_all(partitions=True):
        part = profile.partition
        if part and (part.of, part.compute_mode, part.memory_mode) == (whole.id, compute_mode, memory_mode):
            return profile
    mode = f"{compute_mode}/{memory_mode}" if memory_mode else compute_mode
    raise InputError(f"--gpu local: there is no profile of {whole.name} as {mode}", hint=_OTHERWISE)


def _check_memory(gpu: LocalGpu, whole: GpuProfile) -> None:
    """Raise InputError for another size: cards of one name differ, and a virtual machine may see a part of one."""
    expected_bytes = (whole.memory.driver or whole.memory.engine_visible).base
    if gpu.memory_bytes is not None and abs(gpu.memory_bytes / expected_bytes - 1) > MEMORY_TOLERANCE:
        here, expected = gpu.memory_bytes / GIB, expected_bytes / GIB
        cause = f"--gpu local: {gpu.name} has {here:.1f} GiB here, and the profile {whole.id} {expected:.1f} GiB"
        raise InputError(cause, hint=_OTHERWISE)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").split()).removeprefix("nvidia ")


@cache
def _devices() -> dict[str, str]:
    return {
        key: profile_id
        for profile_id, entry in tool_names().items()
        for key in (*entry.get("pci", []), *map(_plain, entry["names"]))
    }

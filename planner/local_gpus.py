"""The GPUs of this machine, as the tools of their vendors describe them.

``amd-smi``, or ``rocm-smi`` where that is missing, and ``nvidia-smi`` are asked; small functions read what they
print. A package that is cut into partitions is one ``LocalGpu`` with its modes, a GPU with MIG one with its slices.
Which profile that is, ``planner.hardware.local`` says.

>>> nvidia_smi("NVIDIA L4, 23034, [N/A]", "GPU 0: NVIDIA L4 (UUID: GPU-1)")[0].memory_bytes // 2**20
23034
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from planner.units import MIB

TIMEOUT_S = 30  #: a driver that hangs must not hang us
Run = Callable[[Sequence[str]], str]  #: a command to what it prints; raises SilentTool

AMD_STATIC = ("amd-smi", "static", "--json")
AMD_PARTITION = ("amd-smi", "partition", "--current", "--json")
ROCM = ("rocm-smi", "--showproductname", "--showid", "--showbus", "--showmeminfo", "vram", "--showcomputepartition",
        "--showmemorypartition", "--json")  # fmt: skip
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
NVIDIA_LIST = ("nvidia-smi", "-L")

_MIG_LINE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:")


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """One GPU package. Empty and None: the tool does not say."""

    name: str  #: as the tool prints it
    device_id: str = ""  #: of PCI, such as 0x74a1
    memory_bytes: int | None = None  #: of the whole package
    compute_mode: str = ""  #: SPX, DPX, QPX, CPX
    memory_mode: str = ""  #: NPS1, NPS2, NPS4
    mig: bool = False
    slices: tuple[str, ...] = ()  #: profiles of its MIG instances, such as 3g.40gb


class SilentTool(Exception):
    """A tool that is missing, fails, hangs or prints what nobody understands; its words are the reason."""


def run_tool(command: Sequence[str]) -> str:
    """What a command prints. Raises SilentTool."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    except FileNotFoundError as error:
        raise SilentTool("not installed") from error
    except OSError as error:
        raise SilentTool(error.strerror or "does not run") from error
    except subprocess.TimeoutExpired as error:
        raise SilentTool(f"no answer in {TIMEOUT_S} s") from error
    except UnicodeDecodeError as error:
        raise SilentTool("prints no text") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "says nothing").splitlines()[0]
        raise SilentTool(f"ended with status {done.returncode}: {said[:160]}")
    return done.stdout


def detect(run: Run = run_tool) -> tuple[LocalGpu, ...]:
    """Every GPU of this machine. Raises InputError where no tool shows one."""
    reasons: list[str] = []

    def ask(tool: str, read: Callable[[], Iterable[LocalGpu]]) -> tuple[LocalGpu, ...]:
        try:
            found = tuple(read())
        except SilentTool as error:
            reasons.append(f"{tool}: {error}")
            return ()
        if not found:
            reasons.append(f"{tool}: shows none")
        return found

    amd = ask("amd-smi", lambda: amd_smi(run(AMD_STATIC), _or_nothing(run, AMD_PARTITION)))
    amd = amd or ask("rocm-smi", lambda: rocm_smi(run(ROCM)))
    nvidia = ask("nvidia-smi", lambda: nvidia_smi(run(NVIDIA), run(NVIDIA_LIST)))
    if not amd and not nvidia:
        raise InputError(
            f"no GPU is found on this machine ({'; '.join(reasons)})",
            hint="name one, such as --gpu mi300x; planner hardware list shows the names",
        )
    return (*amd, *nvidia)


def amd_smi(static: str, partition: str = "") -> Iterator[LocalGpu]:
    """The packages in ``amd-smi static --json``, and their modes in ``amd-smi partition --current --json``.

    Until version 26 the first prints a list and knows the modes, from then on an object, and they are left to the
    second. Every partition has an entry of its own; of one package they differ in the PCI function only, and the modes
    may stand in the first. Memory is that of the package, in MiB, which the tool calls MB.
    """
    modes = {row.get("gpu_id", row.get("gpu")): row for row in _rows(_json(partition), "current_partition")}
    seen: set[str] = set()
    for entry in _rows(_json(static), "gpu_data"):
        asic, address = _part(entry, "asic"), str(_part(entry, "bus").get("bdf", ""))
        if _is_sibling(address, seen):
            continue
        known = {**_part(entry, "partition"), **modes.get(entry.get("gpu"), {})}
        size = _part(_part(entry, "vram"), "size").get("value")
        yield LocalGpu(
            name=str(asic.get("market_name", "")),
            device_id=str(asic.get("device_id", "")).lower(),
            memory_bytes=int(size * MIB) if isinstance(size, int | float) else None,
            compute_mode=_mode(known, "accelerator_type", "accelerator_partition", "compute_partition"),
            memory_mode=_mode(known, "memory", "memory_partition"),
        )


def rocm_smi(text: str) -> Iterator[LocalGpu]:
    """The packages in ``rocm-smi ... --json``: one object per partition, ``card0``, ``card1``, ..."""
    seen: set[str] = set()
    cards = _json(text)
    for key, card in cards.items() if isinstance(cards, dict) else ():
        if not key.startswith("card") or not isinstance(card, dict):
            continue
        fields = {str(name).lower(): str(value) for name, value in card.items()}
        if _is_sibling(fields.get("pci bus", ""), seen):
            continue
        size = fields.get("vram total memory (b)", "")
        model = fields.get("card model", "")  # of older versions: the PCI id
        yield LocalGpu(
            name=fields.get("card series") or fields.get("device name", ""),
            device_id=(fields.get("device id") or (model if model.startswith("0x") else "")).lower(),
            memory_bytes=int(size) if size.isdecimal() else None,
            compute_mode=_mode(fields, "compute partition"),
            memory_mode=_mode(fields, "memory partition"),
        )


def nvidia_smi(query: str, listing: str) -> tuple[LocalGpu, ...]:
    """The GPUs in ``nvidia-smi --query-gpu=name,memory.total,mig.mode.current``, and the MIG instances in ``-L``."""
    slices: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            slices.append([])
        elif slices and (found := _MIG_LINE.match(line)):
            slices[-1].append(found[1])
    rows = [[word.strip() for word in row] for row in csv.reader(query.splitlines()) if row]
    if any(len(row) != 3 for row in rows) or len(slices) != len(rows):
        raise SilentTool(f"prints what is not understood: {query.strip()[:160]!r}")
    return tuple(
        LocalGpu(
            name=name,
            memory_bytes=int(size) * MIB if size.isdecimal() else None,
            mig=mode == "Enabled",
            slices=tuple(own),
        )
        for (name, size, mode), own in zip(rows, slices, strict=True)
    )


def _or_nothing(run: Run, command: Sequence[str]) -> str:
    """What a command prints that older versions of its tool do not know."""
    try:
        return run(command)
    except SilentTool:
        return ""


def _json(text: str) -> Any:
    """The JSON in what a tool prints, behind whatever it warns of first; an empty list where there is nothing."""
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
    """The entries of a list, or of the list under ``key``."""
    rows = data.get(key, []) if isinstance(data, dict) else data
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _part(entry: dict[str, Any], key: str) -> dict[str, Any]:
    part = entry.get(key)
    return part if isinstance(part, dict) else {}


def _mode(fields: dict[str, Any], *keys: str) -> str:
    """The first of ``keys`` that says something, in capitals."""
    said = (str(fields[key]).strip("* ").upper() for key in keys if key in fields)
    return next((mode for mode in said if mode not in {"", "N/A", "NONE", "UNKNOWN"}), "")


def _is_sibling(address: str, seen: set[str]) -> bool:
    """Whether a partition of the package at this PCI address, ``0000:05:00.1``, came before."""
    package = address.rpartition(".")[0]
    if not package:
        return False
    known = package in seen
    seen.add(package)
    return known

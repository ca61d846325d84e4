"""What ``planner recommend -o DIR`` left: a plan, or a folder below for the plan of each GPU; and what was measured.

``recommendation.json`` lies beside them and says what was considered. A folder of an older planner has none: then
the reader is told what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.plan import Plan, PlanFile, read_plan
from planner.validate.folder import Measured, read_folder

RECOMMENDATION = "recommendation.json"
#: Files of a plan that are shown whole, in the order in which they are run.
SCRIPTS = (
    "partition.sh", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "instances.sh",
    "nginx.conf", "quantize.sh", "download.sh",
)  # fmt: skip
LARGEST_FILE = 10 * 2**20  #: bytes; nothing that the planner writes comes near
_WRITE_AGAIN = "write the folder again with planner recommend -o"


@dataclass(frozen=True)
class Entry:
    """One plan's folder."""

    directory: Path
    file: PlanFile
    scripts: Mapping[str, str]  #: name to content
    measured: Measured | None = None
    not_measured: str = ""  #: why there is no measurement

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.file.plan


@dataclass(frozen=True)
class Dossier:
    """The plans of a folder, and what was considered beside them."""

    directory: Path
    entries: tuple[Entry, ...]
    recommendation: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def pareto(self) -> tuple[Mapping[str, Any], ...]:
        """The settings that no other beat in both rates, of all GPUs."""
        return tuple((self.recommendation or {}).get("pareto", ()))

    @property
    def rejected(self) -> tuple[Mapping[str, Any], ...]:
        """What was turned down, with the reason."""
        return tuple((self.recommendation or {}).get("rejected", ()))


def read_dossier(directory: Path) -> Dossier:
    """Raises InputError where there is no plan, and for plans that are broken, changed, or of another schema."""
    folders = _folders(directory)
    entries = tuple(_entry(folder) for folder in folders)
    found = next((path for path in (directory, directory.parent) if (path / RECOMMENDATION).is_file()), None)
    if found is None or (found != directory and not (directory / "plan.json").is_file()):
        return Dossier(directory, entries, None, (f"{RECOMMENDATION} is not there: {_WRITE_AGAIN}",))
    recommendation = _recommendation(found / RECOMMENDATION)
    gpus = {entry.plan.gpu for entry in entries}
    if found != directory:  # the folder of one GPU among several
        recommendation |= {key: [row for row in recommendation[key] if row["gpu"] in gpus] for key in _LISTS}
    return Dossier(directory, entries, recommendation)


def _folders(directory: Path) -> list[Path]:
    try:
        if not directory.is_dir() or (directory / "plan.json").exists():
            return [directory]
        below = sorted(path.parent for path in directory.glob("*/plan.json"))
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}", hint="give the folder that -o named") from error
    return below or [directory]  # read_plan says what is wrong with it


def _entry(directory: Path) -> Entry:
    file = read_plan(directory)
    scripts = {name: _text(directory / name) for name in SCRIPTS if (directory / name).is_file()}
    results = directory / "results"
    if not (results.is_dir() and any(results.glob("serve-*.json"))):
        return Entry(directory, file, scripts, None, "Nothing was measured yet: ./benchmark.sh does that")
    try:
        return Entry(directory, file, scripts, read_folder(directory))
    except InputError as error:  # of another plan, or broken: the prediction can still be shown
        return Entry(directory, file, scripts, None, f"The measurement is left out: {error.cause}")


_LISTS = ("pareto", "rejected")


def _recommendation(path: Path) -> dict[str, Any]:
    """Raises InputError where it is not what ``recommend`` wrote."""
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"{path} is broken: {error}", hint=f"{_WRITE_AGAIN}, or remove the file") from error
    whole = isinstance(found, dict) and all(
        isinstance(found.get(key), list) and all(isinstance(row, dict) and "gpu" in row for row in found[key])
        for key in _LISTS
    )
    if not whole:
        raise InputError(
            f"{path} has no lists {' and '.join(_LISTS)} of settings", hint=f"{_WRITE_AGAIN}, or remove the file"
        )
    return dict(found)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than anything that the planner writes", hint="remove the file")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="make it readable") from error

"""Printing facts: GPU profiles and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.hardware import GpuProfile, aliases
from planner.report.render import note, print_json, print_rows
from planner.units import GIB, TB, TFLOP, format_gb

HARDWARE_COLUMNS = (
    "id", "aliases", "name", "memory_gib", "bandwidth_tb_per_s", "bf16_tflop_per_s", "fp8_tflop_per_s",
    "fp4_tflop_per_s", "gpus_per_node",
)  # fmt: skip
MODEL_COLUMNS = (
    "resolved", "architecture", "attention", "total_params", "active_params", "weight_dtype", "weights_gb",
    "kv_bytes_per_token",
)  # fmt: skip


def print_hardware(profiles: Sequence[GpuProfile], output: str) -> None:
    """One row per profile."""
    names: dict[str, list[str]] = {}
    for alias, profile_id in aliases().items():
        names.setdefault(profile_id, []).append(alias)
    rows = [_hardware_row(profile, names.get(profile.id, [])) for profile in profiles]
    print_rows(rows, output, columns=HARDWARE_COLUMNS)


def _hardware_row(profile: GpuProfile, names: Sequence[str]) -> dict[str, Any]:
    def tflop(dtype: str) -> float | None:
        return profile.peak_flop_per_s(dtype) / TFLOP if profile.supports(dtype) else None

    return {
        "id": profile.id,
        "aliases": sorted(names),
        "name": profile.name,
        "vendor": profile.vendor,
        "architecture": profile.architecture,
        "memory_bytes": profile.memory_bytes,
        "memory_gib": round(profile.memory_bytes / GIB, 2),
        "bandwidth_tb_per_s": profile.memory_bandwidth_bytes_per_s / TB,
        "bf16_tflop_per_s": tflop("bf16"),
        "fp8_tflop_per_s": tflop("fp8"),
        "fp4_tflop_per_s": tflop("fp4"),
        "gpus_per_node": profile.gpus_per_node,
        "partition_of": profile.partition.of if profile.partition else None,
    }


def print_profile(profile: GpuProfile, output: str) -> None:
    """Every figure of one profile with unit, kind and source."""
    if output == "json":
        print_json(profile.model_dump(mode="json", exclude_none=True))
        return
    rows = [
        {
            "figure": path,
            "value": f"{quantity.value:g} {quantity.unit}",
            "kind": quantity.kind,
            "source": quantity.source,
            "note": quantity.note,
        }
        for path, quantity in profile.figures()
    ]
    print_rows(rows, output)
    if output == "table":
        note(f"\n{profile.id}: {profile.name}, {profile.architecture}, {profile.gpus_per_node} in a node")
        for remark in profile.notes:
            note(f"- {remark}")


def print_models(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """One row per model; what could not be shown goes to stderr, and into the JSON."""
    if output == "json":
        print_json(list(rows))
        return
    shown = [_readable(row) for row in rows if "error" not in row]
    if shown:
        print_rows(shown, output, columns=MODEL_COLUMNS)
    for row in rows:
        if "error" in row:
            note(f"error: {row['requested']}: {row['error']}\nhint: {row['hint']}")
        elif output == "table":
            for remark in row.get("notes", ()):
                note(f"- {row['resolved']}: {remark}")


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "total_params": f"{row['total_params']:,}",
        "active_params": f"{row['active_params']:,}",
        "kv_bytes_per_token": f"{row['kv_bytes_per_token']:,}",
        "weights_gb": format_gb(row["weights_bytes"]),
    }

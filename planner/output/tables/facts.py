"""Printing facts: GPU profiles and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.hardware import AllReduceCurve, GpuProfile, PartitionRule, Quantity, aliases
from planner.model import CatalogEntry
from planner.output.render import Column, Row, note, print_json, print_notes, print_rows, wrapped
from planner.units import GB, GIB, MB, TB, TFLOP, US

HARDWARE_COLUMNS = (
    Column("id"),
    Column("memory_gib", "GiB", ".2f"),
    Column("bandwidth_tb_per_s", "TB/s", ".3f"),
    Column("bf16_tflop_per_s", "bf16", ",.0f"),
    Column("fp8_tflop_per_s", "fp8", ",.0f"),
    Column("fp4_tflop_per_s", "fp4", ",.0f"),
    Column("gpus_per_node", "node"),
    Column("aliases", wraps=True),
    Column("name", aside=True),
    Column("vendor", aside=True),
    Column("architecture", aside=True),
    Column("memory_bytes", aside=True),
    Column("partition_of", aside=True),
)
CATALOG_COLUMNS = (
    Column("model"),
    Column("architecture", aside=True),
    Column("total_params", "params", ","),
    Column("active_params", "active", ","),
    Column("weight_dtype", "weights"),
    Column("gated"),
)
MODEL_COLUMNS = (
    Column("resolved", "model"),
    Column("architecture", aside=True),
    Column("attention", wraps=True),
    Column("total_params", "params", ","),
    Column("active_params", "active", ","),
    Column("weight_dtype", "weights"),
    Column("weights_bytes", aside=True),
    Column("weights_gb", "GB", ",.2f"),
    Column("kv_bytes_per_token", "KV B/tok", ","),
    Column("kv_cache_dtype", "KV"),
)
FIGURE_COLUMNS = (
    Column("figure"),
    Column("value"),
    Column("kind"),
    Column("source"),
    Column("note", wraps=True),
)


def print_hardware(profiles: Sequence[GpuProfile], output: str) -> None:
    """One row per profile."""
    names: dict[str, list[str]] = {}
    for alias, profile_id in aliases().items():
        names.setdefault(profile_id, []).append(alias)
    rows = [_hardware_row(profile, names.get(profile.id, [])) for profile in profiles]
    print_rows(rows, output, columns=HARDWARE_COLUMNS)
    if output == "table":
        note("note: memory as the engine sees it; TFLOP/s are dense peaks, TB/s the peak; node: (logical) GPUs in one")


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
    rows = [_figure(path, fact) for path, fact in profile.figures()]
    if output != "table":
        print_rows(rows, output, columns=FIGURE_COLUMNS)
        return
    names = f" (also {', '.join(profile.aliases)})" if profile.aliases else ""
    print(f"{profile.id}{names}: {profile.name}, {profile.architecture}, {profile.gpus_per_node} in a node\n")
    print_rows(rows, output, columns=FIGURE_COLUMNS)
    print()
    for key, source in profile.sources.items():
        print(wrapped(f"{key}: {source.title} ({source.retrieved})", rest="  "))
        if source.url:
            print(f"  {source.url}")
    print_notes((*profile.notes, _price_note(profile)))


def _price_note(profile: GpuProfile) -> str:
    """When the prices were collected, or that there are none."""
    if profile.price is None:
        return f"no price on demand is known: compare and fleet take one with --price {profile.id}=USD an hour"
    return f"prices are those of one GPU for an hour on demand, {_collected(profile.price.date)}; stale within weeks"


def _collected(date: str) -> str:
    return date if date == "undated" else f"collected in {date}"


def _figure(path: str, fact: Quantity | PartitionRule | AllReduceCurve) -> dict[str, Any]:
    """A number, a rule or a curve in one row."""
    if isinstance(fact, Quantity):
        return _figure_row(path, f"{fact.value:g} {fact.unit}", fact.kind, fact.source, fact.note)
    if isinstance(fact, PartitionRule):
        allowed = "yes" if fact.validated else "disputed"
        why = f"{fact.reason}; instead: {fact.fix}" if fact.fix else fact.reason
        return _figure_row(path, allowed if fact.allowed else "no", "rule", fact.source, why)
    (small, fast), (large, slow) = fact.points[0], fact.points[-1]
    value = f"{fast / US:,.0f} to {slow / US:,.0f} us"
    sizes = f"{fact.gpus} GPUs, {len(fact.points)} sizes from {small / MB:,.3g} to {large / MB:,.3g} MB"
    return _figure_row(path, value, fact.kind, fact.source, "; ".join(filter(None, (sizes, fact.method, fact.note))))


def _figure_row(figure: str, value: str, kind: str, source: str, remark: str) -> dict[str, Any]:
    return {"figure": figure, "value": value, "kind": kind, "source": source, "note": remark or None}


def print_catalog(entries: Sequence[CatalogEntry], output: str) -> None:
    """One row per hub id of the bundled catalog."""
    print_rows([_catalog_row(entry) for entry in entries], output, columns=CATALOG_COLUMNS)
    if output == "table":
        note(f"note: {len(entries)} models; any other id is asked for at the hub")


def _catalog_row(entry: CatalogEntry) -> dict[str, Any]:
    model = entry.model()
    return {
        "model": entry.id,
        "architecture": model.architecture,
        "total_params": model.total_params,
        "active_params": model.active_params,
        "weight_dtype": model.quantization.weight_dtype,
        "base": entry.base,
        "gated": entry.gated,
        "kind": entry.kind,
    }


def print_models(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """One row per model that could be shown; JSON has the others too."""
    if output == "json":
        print_json(rows)
        return
    shown = [_flat(row) for row in rows if "error" not in row]
    if shown:
        print_rows(shown, output, columns=MODEL_COLUMNS)
    if output == "table":
        print_notes(f"{row['resolved']}: {remark}" for row in shown for remark in row["notes"])


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    quantization = row["quantization"]
    return {
        **row,
        "weight_dtype": quantization["weight_dtype"],
        "kv_cache_dtype": quantization["kv_cache_dtype"],
        "weights_gb": row["weights_bytes"] / GB,
    }


# --- Printing workflows: which there are, and what one of them wrote

COLUMNS = (
    Column("name"),
    Column("title", wraps=True),
    Column("model", aside=True),
    Column("gpu"),
    Column("engine_version", "vllm"),
    Column("scripts", wraps=True),
)
FILE_COLUMNS = (Column("file"), Column("purpose", wraps=True))


def print_workflows(rows: Sequence[Row], output: str) -> None:
    """One row per workflow, with the model, GPU and version that it takes when nothing else is asked for."""
    print_rows(rows, output, columns=COLUMNS)


def print_files(purposes: Mapping[str, str], output: str) -> None:
    """The files of a workflow and what each is for."""
    rows = [{"file": name, "purpose": purpose} for name, purpose in purposes.items()]
    print_rows(rows, output, columns=FILE_COLUMNS)

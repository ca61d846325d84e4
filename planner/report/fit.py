"""Printing whether a model fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.fit import FitResult, explain
from planner.model.resolve import ResolvedModel
from planner.report.render import note, print_json, print_rows
from planner.units import GIB, format_bytes, format_gb

COLUMNS = (
    "gpu", "tp", "weights", "kv_dtype", "verdict", "weights_gib", "kv_cache_gib", "kv_cache_tokens", "max_model_len",
    "max_concurrency", "min_tp",
)  # fmt: skip


def print_fit(
    results: Sequence[FitResult], resolved: ResolvedModel, output: str, *, explain: bool, sweep: bool
) -> None:
    """One result in full, several as a list."""
    if output == "json":
        objects = [_object(result, resolved, with_arithmetic=explain) for result in results]
        print_json(objects[0] if len(objects) == 1 and not sweep else objects)
    elif len(results) == 1 and not sweep and output == "table":
        _print_one(results[0], resolved, with_arithmetic=explain)
    else:
        print_rows([_row(result) for result in results], output, columns=COLUMNS)
        _print_notes(resolved.notes)


def _object(result: FitResult, resolved: ResolvedModel, *, with_arithmetic: bool) -> dict[str, Any]:
    found = result.to_json()
    found["model"] = {**found["model"], "requested": resolved.requested, "resolved": resolved.resolved}
    found["notes"] = [*resolved.notes, *found["notes"]]
    if with_arithmetic:
        found["arithmetic"] = [{"label": e.label, "value": e.value, "how": e.how} for e in explain(result)]
    return found


def _row(result: FitResult) -> dict[str, Any]:
    config = result.config
    return {
        "gpu": result.gpu_id,
        "tp": config.tensor_parallel_size,
        "weights": config.weight_dtype,
        "kv_dtype": config.kv_cache_dtype,
        "verdict": result.verdict,
        "weights_gib": f"{result.stage.weights.weight_bytes / GIB:.2f}",
        "kv_cache_gib": f"{result.kv_cache.mid / GIB:.2f}",
        "kv_cache_tokens": f"{result.kv_cache_tokens:,}",
        "max_model_len": f"{config.max_model_len:,}",
        "max_concurrency": f"{result.max_concurrency:.2f}",
        "min_tp": result.min_tensor_parallel_size,
    }


def _print_one(result: FitResult, resolved: ResolvedModel, *, with_arithmetic: bool) -> None:
    config, stage = result.config, result.stage
    size = config.tensor_parallel_size
    where = f"{size} x {result.gpu_id}" if size > 1 else result.gpu_id
    print(f"{resolved.resolved} on {where}, vLLM {config.version}: {result.verdict}")
    if result.reason:
        print(f"  {result.reason}")
    print()
    weights = stage.weights.weight_bytes
    for label, value in (
        ("weights", f"{format_bytes(weights)} ({format_gb(weights)}), {config.weight_dtype}"),
        ("memory", f"{format_bytes(result.budget.memory_bytes)}, {config.gpu_memory_utilization:g} of it used"),
        ("left for the KV cache", format_bytes(result.kv_cache.mid)),
        ("KV cache per token", f"{result.kv_bytes_per_token:,.0f} bytes, {config.kv_cache_dtype}"),
        ("KV cache", f"{result.kv_cache_tokens:,} tokens"),
        ("context", f"{config.max_model_len:,} tokens, {result.max_concurrency:.2f} requests of that length at once"),
        ("smallest tensor-parallel size", f"{result.min_tensor_parallel_size or 'none'}"),
    ):
        print(f"  {label:<30} {value}")
    if result.options:
        print("\nWhat would make it fit (each one checked):")
        for option in result.options:
            print(f"  {option.change}: {' '.join(option.flags)}")
            print(
                f"    {option.verdict}, {option.kv_cache_tokens:,} tokens, {option.max_concurrency:.2f} requests at once"
            )
    if with_arithmetic:
        print()
        for line in explain(result):
            print(line)
    _print_notes((*resolved.notes, *result.notes))


def _print_notes(notes: Sequence[str]) -> None:
    for remark in dict.fromkeys(notes):
        note(f"note: {remark}")

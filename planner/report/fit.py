"""Printing whether a model fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError
from planner.fit import FitResult, Line, LogLine, explain
from planner.hardware import GpuProfile
from planner.memory.overheads import SHIPPED, Interval
from planner.model.resolve import ResolvedModel
from planner.report.render import Column, print_json, print_notes, print_pairs, print_rows, print_table, wrapped
from planner.units import GIB, format_bytes, format_gb

COLUMNS = (
    Column("gpu"),
    Column("tensor_parallel_size", "tp"),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache"),
    Column("verdict"),
    Column("weights_gib", "weights GiB", ",.2f"),
    Column("kv_cache_gib", "left GiB", ",.2f"),
    Column("kv_cache_tokens", "kv tokens", ","),
    Column("max_model_len", "context", ","),
    Column("max_concurrency", "requests", ",.2f"),
    Column("min_tensor_parallel_size", "min tp"),
    Column("engine_version", "vllm"),
    Column("reason", aside=True),
)
LOG_COLUMNS = (
    Column("line"), Column("unit"), Column("predicted"), Column("interval"), Column("logged"), Column("inside"),
)  # fmt: skip
#: Ways out that people are shown; JSON has them all.
OPTIONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """A GPU, among several, on which vLLM does not run these settings whatever the memory."""

    profile: GpuProfile
    error: PlannerError

    @property
    def fits(self) -> bool:
        """Never."""
        return False


Answer = FitResult | Refused


def print_fit(
    answers: Sequence[Answer], resolved: ResolvedModel, output: str, *, arithmetic: bool, sweep: bool
) -> None:
    """One answer in full, several as a list."""
    one = answers[0] if len(answers) == 1 and not sweep else None
    if output == "json":
        objects = [_object(answer, resolved, arithmetic=arithmetic) for answer in answers]
        print_json(objects[0] if one else objects)
    elif isinstance(one, FitResult) and output == "table":
        _print_one(one, resolved, arithmetic=arithmetic)
    else:
        print_rows([_row(answer) for answer in answers], output, columns=COLUMNS)
        refused = (f"{a.profile.id}: {a.error.cause}" for a in answers if isinstance(a, Refused))
        print_notes((*resolved.notes, *refused))


def _object(answer: Answer, resolved: ResolvedModel, *, arithmetic: bool) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return _refused_object(answer, resolved)
    found = answer.to_json()
    found["model"] = {**found["model"], "requested": resolved.requested, "resolved": resolved.resolved}
    found["notes"] = [*resolved.notes, *found["notes"]]
    if arithmetic:
        found["arithmetic"] = [{"label": e.label, "value": e.value, "how": e.how} for e in explain(answer)]
    return found


def _refused_object(answer: Refused, resolved: ResolvedModel) -> dict[str, Any]:
    model, profile = resolved.model, answer.profile
    return {
        "fits": False,
        "verdict": "does not fit",
        "reason": answer.error.cause,
        "error": answer.error.cause,
        "hint": answer.error.hint,
        "model": {
            "requested": resolved.requested,
            "resolved": resolved.resolved,
            "total_params": model.total_params,
            "active_params": model.active_params,
        },
        "gpu": {"id": profile.id, "memory_bytes": profile.memory_bytes},
    }


def _row(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return {"gpu": answer.profile.id, "verdict": "refused", "reason": answer.error.cause}
    config = answer.config
    return {
        "gpu": answer.gpu_id,
        "tensor_parallel_size": config.tensor_parallel_size,
        "weight_dtype": config.weight_dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "verdict": answer.verdict,
        "weights_gib": answer.stage.weights.weight_bytes / GIB,
        "kv_cache_gib": answer.kv_cache.mid / GIB,
        "kv_cache_tokens": answer.kv_cache_tokens,
        "max_model_len": config.max_model_len,
        "max_concurrency": answer.max_concurrency,
        "min_tensor_parallel_size": answer.min_tensor_parallel_size,
        "engine_version": str(config.version),
        "reason": answer.reason,
    }


def _print_one(result: FitResult, resolved: ResolvedModel, *, arithmetic: bool) -> None:
    config = result.config
    where = f"{config.num_gpus} x {result.gpu_id}" if config.num_gpus > 1 else result.gpu_id
    print(f"{resolved.resolved} on {where}, vLLM {config.version}: {result.verdict}")
    if result.reason:
        print(wrapped(_reason(result), first="  ", rest="  "))
    print()
    print_pairs(_figures(result))
    if result.startup_log:
        print("\nPredicted beside logged:")
        print_table([_log_row(line) for line in result.startup_log], LOG_COLUMNS)
    _print_options(result)
    if arithmetic:
        print()
        for line in explain(result):
            _print_line(line)
    print_notes((*resolved.notes, *result.notes))


def _reason(result: FitResult) -> str:
    """What vLLM would say; where that is not sure, how far the margin reaches."""
    if result.verdict == "does not fit":
        return result.reason
    condition = result.binding_condition
    short, spare = -condition.margin.low / GIB, condition.margin.high / GIB
    return f"{condition.name}: from {short:,.2f} GiB too little to {spare:,.2f} GiB to spare"


def _figures(result: FitResult) -> Iterator[tuple[str, str]]:
    config, weights = result.config, result.stage.weights.weight_bytes
    on_each = " on each GPU" if config.num_gpus > 1 else ""
    yield "weights", f"{format_bytes(weights)} ({format_gb(weights)}){on_each}, {config.weight_dtype}"
    share = f"{config.gpu_memory_utilization:g} of it in vLLM's budget"
    yield "memory", f"{format_bytes(result.budget.memory_bytes)}{on_each}, {share}"
    yield "left for the KV cache", _left(result.kv_cache)
    if result.budget.pool.groups:
        yield "KV cache per token", f"{result.kv_bytes_per_token:,.0f} bytes, {config.kv_cache_dtype}"
    if result.kv_cache_tokens:
        yield "KV cache", f"{result.kv_cache_tokens:,} tokens"
        at_once = f", {result.max_concurrency:,.2f} requests of that length at once"
    else:
        at_once = ""
    yield "context", f"{config.max_model_len:,} tokens{at_once}"
    yield "smallest tensor-parallel size", f"{result.min_tensor_parallel_size or 'none fits'}"
    yield "memory overheads", "fitted, as shipped" if result.calibration == SHIPPED else result.calibration


def _left(room: Interval) -> str:
    """What is left, or what is missing before there is any cache; with the interval around the estimate."""
    low, high = f"{room.low / GIB:,.2f}", f"{room.high / GIB:,.2f}"
    if room.mid >= 0:
        return f"{format_bytes(room.mid)} ({low} to {high})"
    return f"nothing: {format_bytes(-room.mid)} too little ({low} to {high} left)"


def _log_row(line: LogLine) -> dict[str, Any]:
    """Bytes in GiB, everything else as logged."""
    scale, form = (GIB, ",.2f") if line.unit == "bytes" else (1, ",.2f" if line.unit == "requests" else ",.0f")
    predicted = line.predicted
    return {
        "line": line.line,
        "unit": "GiB" if line.unit == "bytes" else line.unit,
        "predicted": format(predicted.mid / scale, form),
        "interval": f"{predicted.low / scale:{form}} to {predicted.high / scale:{form}}",
        "logged": format(line.logged / scale, form),
        "inside": line.inside,
    }


def _print_options(result: FitResult) -> None:
    if result.options:
        print("\nWhat would make it fit (each one checked):")
    for option in result.options[:OPTIONS_SHOWN]:
        print(wrapped(f"{option.change}: {' '.join(option.flags)}", first="  ", rest="      "))
        print(f"    {option.verdict}, {option.kv_cache_tokens:,} tokens, {option.max_concurrency:.2f} requests at once")


def _print_line(line: Line) -> None:
    start = f"{line.label:<32} {line.value:>26}  "
    print(wrapped(line.how, first=start, rest=" " * len(start)) if line.how else start.rstrip())

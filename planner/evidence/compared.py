"""A plan's prediction beside what was measured of it, metric by metric.

Bounds are the prediction's own interval (``KEY_lo``, ``KEY_hi``) where the plan has one, else a share of the predicted
value. Each line says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import InputError
from planner.evidence.folder import MeasuredPlan
from planner.memory import StartupLog
from planner.units import GIB, LEAST_FIGURE, MOST_FIGURE
from planner.workload import METRICS

Verdict = Literal["inside", "above", "below"]

#: Shares by which a prediction without an interval may miss. Two runs of one load on one server differ by 2 to 6 % in
#: the mean (TTFT once by 27 %); the rest is for the model of a step.
TOLERANCES = {"throughput": 0.15, "tpot": 0.20, "itl": 0.20, "e2el": 0.20, "ttft": 0.35}
TAIL = 1.5  #: times as much for the 90th and 99th percentile
MEMORY_TOLERANCES = {
    "memory_bytes": 0.02,  # GPUs of one name report totals that differ by a few tenths of a per cent
    "weights_bytes": 0.02,
    "kv_cache_bytes": 0.05,
    "kv_cache_tokens": 0.05,
}


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One metric, predicted and measured, in ``unit``: tokens/s, requests/s, ms, GiB or tokens."""

    metric: str  #: key of the result file, or of the plan's memory
    unit: str
    predicted: float
    lo: float
    hi: float
    measured: float
    basis: str  #: where the bounds come from: ``interval``, ``± 20 %``

    @property
    def verdict(self) -> Verdict:
        """Where the measurement lies."""
        if self.measured > self.hi:
            return "above"
        return "below" if self.measured < self.lo else "inside"

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies within the bounds."""
        return self.verdict == "inside"

    @property
    def error(self) -> float:
        """Measured / predicted - 1."""
        return self.measured / self.predicted - 1 if self.predicted else 0.0

    @property
    def is_latency(self) -> bool:
        """Whether a larger value is worse."""
        return self.unit == "ms"


def compare_plan(measured: MeasuredPlan) -> tuple[ComparedLine, ...]:
    """Compare every metric that was both predicted and measured: rates, latencies, memory."""
    lines = compare_results(measured.plan.predicted, measured.result)
    if measured.startup:
        planned = dict(measured.plan.memory)
        if measured.plan.platform == "cpu":  # one profile stands for machines of any memory
            planned.pop("memory_bytes", None)
        lines += _memory(planned, measured.startup, measured.plan.block_size)
    return tuple(lines)


def compare_results(predicted: Mapping[str, Any], result: Mapping[str, Any]) -> list[ComparedLine]:
    """Compare every rate and latency that is in both results of ``vllm bench serve``."""
    lines: list[ComparedLine] = []
    for key, metric in METRICS.items():
        if metric.of in TOLERANCES:
            share = TOLERANCES[metric.of] * (TAIL if key.startswith("p") else 1)
            lines += _line(key, metric.unit, share, predicted, result)
    return lines


def _line(
    key: str, unit: str, share: float, predicted: Mapping[str, Any], measured: Mapping[str, Any]
) -> Iterator[ComparedLine]:
    value, found = predicted.get(key), measured.get(key)
    if not isinstance(value, int | float) or found is None or value < LEAST_FIGURE:
        return
    if not isinstance(found, int | float) or not abs(found) <= MOST_FIGURE:  # nor NaN
        raise InputError(f"the result is broken: {key} is {found!r:.40}", hint="measure again (FORCE=1 ./benchmark.sh)")
    lo, hi = predicted.get(f"{key}_lo"), predicted.get(f"{key}_hi")
    if isinstance(lo, int | float) and isinstance(hi, int | float):
        yield ComparedLine(key, unit, value, lo, hi, found, "interval")
    else:
        yield ComparedLine(key, unit, value, value * (1 - share), value * (1 + share), found, f"± {share:.0%}")


def _memory(planned: Mapping[str, Any], startup: StartupLog, block_size: int) -> Iterator[ComparedLine]:
    """The plan beside what the start-up printed: GiB on each GPU, tokens of one engine."""
    tokens = startup.kv_cache_tokens
    if tokens is None and startup.num_gpu_blocks is not None:  # V0 prints no more
        tokens = startup.num_gpu_blocks * block_size
    logged = {
        "memory_bytes": startup.memory_bytes,
        "weights_bytes": startup.weights_bytes,
        "kv_cache_bytes": startup.kv_cache_bytes,
        "kv_cache_tokens": tokens,
    }
    planned = _with_token_bounds(planned)
    for key, share in MEMORY_TOLERANCES.items():
        for line in _line(key, "tokens" if key == "kv_cache_tokens" else "bytes", share, planned, logged):
            yield _in_gib(line) if line.unit == "bytes" else line


def _with_token_bounds(planned: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tokens, and so their bounds, are proportional to the bytes of the cache."""
    names = ("kv_cache_bytes", "kv_cache_bytes_lo", "kv_cache_bytes_hi", "kv_cache_tokens")
    if "kv_cache_tokens_lo" in planned or not all(planned.get(name, 0) >= LEAST_FIGURE for name in names):
        return planned
    tokens, size = planned["kv_cache_tokens"], planned["kv_cache_bytes"]  # in this order a given cache stays exact
    bounds = {f"kv_cache_tokens_{end}": tokens * (planned[f"kv_cache_bytes_{end}"] / size) for end in ("lo", "hi")}
    return {**planned, **bounds}


def _in_gib(line: ComparedLine) -> ComparedLine:
    predicted, lo, hi, measured = (value / GIB for value in (line.predicted, line.lo, line.hi, line.measured))
    return ComparedLine(line.metric, "GiB", predicted, lo, hi, measured, line.basis)

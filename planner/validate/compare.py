"""Line by line: what was predicted, within which bounds, what was measured.

Bounds are the prediction's own interval (``KEY_lo``, ``KEY_hi``) where the plan carries one, else a share of the
predicted value, stated on each line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from planner.errors import InputError
from planner.memory.startup_log import StartupLog
from planner.units import GIB
from planner.validate.folder import Measured

Verdict = Literal["inside", "above", "below"]

#: Shares that a prediction without an interval may be off by. The same load on the same server twice differs by 2 to
#: 6 % in the mean (TTFT once by 27 %); the rest is what the model of a step may miss.
TOLERANCES = {"throughput": 0.15, "tpot": 0.20, "itl": 0.20, "e2el": 0.20, "ttft": 0.35}
TAIL = 1.5  #: and this much more for the 90th and 99th percentile
MEMORY_TOLERANCES = {
    "memory_bytes": 0.02,  # GPUs of one name report totals that differ by a few tenths of a per cent
    "weights_bytes": 0.02,
    "kv_cache_bytes": 0.05,
    "kv_cache_tokens": 0.05,
}
STATISTICS = ("mean", "median", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Line:
    """One metric. Tokens/s, requests/s, ms, GiB, tokens, as ``unit`` says."""

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
    def error(self) -> float:
        """Measured / predicted - 1."""
        return self.measured / self.predicted - 1 if self.predicted else 0.0

    @property
    def is_latency(self) -> bool:
        """Whether more is worse."""
        return self.unit == "ms"


def compare(measured: Measured) -> tuple[Line, ...]:
    """Every metric that was both predicted and measured: rates, latencies, memory."""
    lines = compare_figures(measured.plan.predicted, measured.result)
    if measured.startup:
        planned = dict(measured.plan.memory)
        if measured.plan.platform == "cpu":  # one profile stands for machines of any memory
            planned.pop("memory_bytes", None)
        lines += _memory(planned, measured.startup, measured.plan.block_size)
    return tuple(lines)


def compare_figures(predicted: Mapping[str, Any], result: Mapping[str, Any]) -> list[Line]:
    """Every rate and latency that is in both results of ``vllm bench serve``."""
    return [line for key, unit, share in _metrics() for line in _line(key, unit, share, predicted, result)]


def _metrics() -> Iterator[tuple[str, str, float]]:
    """Key, unit and tolerance of each figure of the benchmark, in its own order."""
    rate = TOLERANCES["throughput"]
    yield "request_throughput", "requests/s", rate
    yield "output_throughput", "tokens/s", rate
    yield "total_token_throughput", "tokens/s", rate
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in STATISTICS:
            yield f"{statistic}_{name}_ms", "ms", TOLERANCES[name] * (TAIL if statistic.startswith("p") else 1)


def _line(
    key: str, unit: str, share: float, predicted: Mapping[str, Any], measured: Mapping[str, Any]
) -> Iterator[Line]:
    value, found = predicted.get(key), measured.get(key)
    if not isinstance(value, int | float) or found is None or not value:
        return
    if not isinstance(found, int | float) or not isfinite(found):
        raise InputError(f"the result is broken: {key} is {found!r}", hint="measure again (FORCE=1 ./benchmark.sh)")
    lo, hi = predicted.get(f"{key}_lo"), predicted.get(f"{key}_hi")
    if isinstance(lo, int | float) and isinstance(hi, int | float):
        yield Line(key, unit, value, lo, hi, found, "interval")
    else:
        yield Line(key, unit, value, value * (1 - share), value * (1 + share), found, f"± {share:.0%}")


def _memory(planned: Mapping[str, Any], startup: StartupLog, block_size: int) -> Iterator[Line]:
    """What the start-up printed, beside the plan: GiB on each GPU, tokens of one engine."""
    tokens = startup.kv_cache_tokens
    if tokens is None and startup.num_gpu_blocks is not None:  # all that V0 prints
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
    """Tokens are proportional to the bytes of the cache, and so are their bounds."""
    names = ("kv_cache_bytes", "kv_cache_bytes_lo", "kv_cache_bytes_hi", "kv_cache_tokens")
    if "kv_cache_tokens_lo" in planned or not all(planned.get(name) for name in names):
        return planned
    tokens, size = planned["kv_cache_tokens"], planned["kv_cache_bytes"]  # in this order a given cache stays exact
    bounds = {f"kv_cache_tokens_{end}": tokens * (planned[f"kv_cache_bytes_{end}"] / size) for end in ("lo", "hi")}
    return {**planned, **bounds}


def _in_gib(line: Line) -> Line:
    predicted, lo, hi, measured = (value / GIB for value in (line.predicted, line.lo, line.hi, line.measured))
    return Line(line.metric, "GiB", predicted, lo, hi, measured, line.basis)

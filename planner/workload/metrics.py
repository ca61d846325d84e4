"""The figures that ``vllm bench`` reports, under the keys of its result files and in the order of its table.

>>> METRICS["p99_ttft_ms"]
Metric(key='p99_ttft_ms', unit='ms', of='ttft')
>>> METRICS["output_throughput"].higher_is_better
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Latency = Literal["ttft", "tpot", "itl", "e2el"]
#: Latencies in the order of the benchmark's table, each with its heading there.
LATENCIES: Mapping[Latency, str] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
#: Latencies that each request has; a gap between tokens belongs to many. Those of vLLM's ``--goodput``.
OF_A_REQUEST: tuple[Latency, ...] = ("ttft", "tpot", "e2el")
STATISTICS = ("mean", "median", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a result file."""

    key: str
    unit: str  #: ms, s, tokens/s, requests/s
    of: str  #: what it is a figure of: ``throughput``, ``batch``, or one of ``LATENCIES``

    @property
    def higher_is_better(self) -> bool:
        """Whether it is a rate."""
        return self.unit.endswith("/s")


def _metrics() -> Iterator[Metric]:
    yield Metric("request_throughput", "requests/s", "throughput")
    yield Metric("output_throughput", "tokens/s", "throughput")
    yield Metric("total_token_throughput", "tokens/s", "throughput")
    yield Metric("avg_latency_s", "s", "batch")  # ``avg_latency`` of vllm bench latency
    for latency in LATENCIES:
        yield from (Metric(f"{statistic}_{latency}_ms", "ms", latency) for statistic in STATISTICS)


METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _metrics()}

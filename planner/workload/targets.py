"""Figures of ``vllm bench``, under the keys of its result files, and latency targets (SLOs) on them.

>>> str(Slo("ttft", 2000, 99))
'p99 TTFT of 2,000 ms'
>>> [slo.key for slo in parse_slos({"ttft": 2000, "tpot": 50}, "mean")]
['mean_ttft_ms', 'mean_tpot_ms']
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import InputError
from planner.resources import calibration_tables
from planner.units import LEAST_FIGURE, MOST_FIGURE

DEFAULT_PERCENTILE = 95.0  #: of the targets; beyond, a replay and a benchmark show a few requests only
CONFIDENCE = 0.8  #: with which targets are met; ``benchmarks/decisions.py`` shows what others cost and miss
By = Literal["rate", "concurrency"]
Router = Literal["least-loaded", "prefix-aware", "round-robin", "random"]
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
STATISTICS = ("mean", "median", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    unit: str  #: ms, s, tokens/s, requests/s
    of: str  #: what it is a figure of: ``throughput``, ``batch``, or one of ``LATENCIES``


def _metrics() -> Iterator[Metric]:
    yield Metric("request_throughput", "requests/s", "throughput")
    yield Metric("output_throughput", "tokens/s", "throughput")
    yield Metric("total_token_throughput", "tokens/s", "throughput")
    yield Metric("avg_latency_s", "s", "batch")  # ``avg_latency`` of vllm bench latency
    for latency in LATENCIES:
        yield from (Metric(f"{statistic}_{latency}_ms", "ms", latency) for statistic in STATISTICS)


METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _metrics()}


@dataclass(frozen=True, slots=True)
class Slo:
    """``metric`` is at most ``limit_ms`` at ``percentile`` (None: on average). Raises InputError, naming the flag."""

    metric: Latency
    limit_ms: float
    percentile: float | None = DEFAULT_PERCENTILE
    group: str = ""  #: the class of requests that it is a target of; empty: all

    def __post_init__(self) -> None:
        if self.metric not in LATENCIES:
            raise InputError(f"unknown target {self.metric!r}", hint=f"use one of {', '.join(LATENCIES)}, in ms")
        if not LEAST_FIGURE <= self.limit_ms <= MOST_FIGURE:
            cause = f"--{self.metric} {self.limit_ms:g} is not a target in ms"
            raise InputError(cause, hint=f"give a positive number of milliseconds, such as --{self.metric} 500")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            cause = f"--percentile must lie in (0, 100], got {self.percentile:g}"
            raise InputError(cause, hint="for example 99, 95 or mean")

    @property
    def statistic(self) -> str:
        return "mean" if self.percentile is None else f"p{self.percentile:g}"

    @property
    def key(self) -> str:
        return f"{self.statistic}_{self.metric}_ms"

    @property
    def name(self) -> str:
        """Such as ``p99 TTFT``."""
        return f"{self.statistic} {self.metric.upper()}"

    def __str__(self) -> str:
        of = f" for {self.group}" if self.group else ""
        return f"{self.name} of {self.limit_ms:,.6g} ms".replace("e+", "e") + of


@dataclass(frozen=True)
class Targets:
    slos: tuple[Slo, ...] = ()
    by: By = "rate"
    value: float | None = None  #: requests per second, or in flight; None: as many as one server carries
    confidence: float = CONFIDENCE
    router: Router | None = None  #: None: prefix-aware where prompts share prefixes, else least-loaded

    @classmethod
    def of(
        cls, *, ttft_ms: float | None = None, tpot_ms: float | None = None, itl_ms: float | None = None,
        e2el_ms: float | None = None, percentile: float | str = DEFAULT_PERCENTILE, confidence: float = CONFIDENCE,
        by: By = "rate", value: float | None = None,
    ) -> "Targets":  # fmt: skip
        """Limits in ms at a ``percentile`` (95, ``"mean"``). Raises InputError for a limit that is not positive."""
        limits_ms = {"ttft": ttft_ms, "tpot": tpot_ms, "itl": itl_ms, "e2el": e2el_ms}
        return cls(parse_slos(limits_ms, str(percentile)), by, value, confidence)


def parse_percentile(text: str) -> float | None:
    """``99``, ``p99`` or ``mean`` (None). Raises InputError for anything else."""
    word = text.strip().lower()
    if word == "mean":
        return None
    if word == "median":
        return 50.0
    try:
        return float(word.removeprefix("p"))
    except ValueError as error:
        raise InputError(f"--percentile {text!r} is not a number", hint="for example 99, 95 or mean") from error


def parse_slos(limits_ms: Mapping[str, float | None], percentile: str | None = None) -> tuple[Slo, ...]:
    """The targets that are given, all at one percentile (95), in the order of ``LATENCIES``. Raises InputError."""
    at = DEFAULT_PERCENTILE if percentile is None else parse_percentile(percentile)
    for name in limits_ms:
        if name not in LATENCIES:
            raise InputError(f"unknown target {name!r}", hint=f"use one of {', '.join(LATENCIES)}, in ms")
    limits = [(metric, limits_ms.get(metric)) for metric in LATENCIES]
    return tuple(Slo(metric, limit_ms, at) for metric, limit_ms in limits if limit_ms is not None)


def refuse_gaps_of_one_token(slos: Sequence[Slo], output_len: int) -> None:
    """Raise InputError for a target on the time between tokens where answers have one token."""
    between = next((slo for slo in slos if slo.metric in ("tpot", "itl")), None)
    if between and output_len == 1:
        cause = f"--{between.metric} needs answers of at least two tokens: these have one"
        raise InputError(cause, hint="leave it out, or ask for more output tokens")


def targets_in_words(slos: Sequence[Slo]) -> str:
    return " and ".join(map(str, slos)) or "no target"


def use_cases() -> Mapping[str, Mapping[str, Any]]:
    """Return targets in ms by name of a workload, with their source; some with a percentile or a goal."""
    cases: dict[str, dict[str, Any]] = calibration_tables("workload")["use_cases"]
    return cases

"""What limits a server under a load: its queue, its KV cache, or the part of a step that takes most of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, isinf
from typing import Any

from planner.planning import defaults
from planner.planning.capacity import TOLERANCE, in_flight, most_in_flight
from planner.planning.compare.machine import Machine
from planner.planning.cost import Price, Span, power_w, span_figures, tok_per_joule, tok_per_usd, usd_per_million_tok
from planner.planning.deployment import Deployment
from planner.planning.predict import Prediction, estimate, simulate_serve, typical_steps
from planner.simulator import Replay
from planner.timing import OperatorKind, StepBreakdown, step_collectives, step_operators
from planner.workload import Workload

#: Kinds of operators whose memory traffic is the KV cache's, or a recurrent state's, and not the weights'.
CACHE_READERS = (OperatorKind.ATTENTION, OperatorKind.STATE)
QUEUEING, KV_CAPACITY, BATCH = "queueing", "KV capacity", "max_num_seqs"


def time_shares(deployment: Deployment, served: Replay) -> dict[str, float]:
    """Share of the engine's time by what bounds it, largest first: of the average steps of a replay."""
    spent_s = {"decode step": served.decode_time_s, "prefill step": served.prefill_time_s}
    total: dict[str, float] = defaultdict(float)
    for name, step in typical_steps(deployment, served).items():
        for cause, time_s in _causes(deployment, step).items():
            total[cause] += time_s / step.total_s * spent_s[name]
    whole_s = sum(total.values())
    largest_first = sorted(total, key=lambda cause: -total[cause])
    return {cause: total[cause] / whole_s for cause in largest_first} if whole_s else {}


def limit_of(deployment: Deployment, served: Replay, total_len: int, in_flight: float, *, keeps_up: bool) -> str:
    """What stands in the way of more: of one server with ``in_flight`` requests of ``total_len`` tokens."""
    if not keeps_up:
        return f"{QUEUEING}: more arrives than is served"
    config = deployment.config
    if in_flight > deployment.requests_served(total_len) * config.data_parallel_size:
        return f"{KV_CAPACITY}: holds {deployment.requests_served(total_len) * config.data_parallel_size:,.0f} requests"
    if in_flight > config.max_num_seqs * config.data_parallel_size:
        return f"{QUEUEING}: {BATCH} {config.max_num_seqs}"
    cause, share = next(iter(time_shares(deployment, served).items()), ("nothing", 0.0))
    return f"{cause} {share:.0%}"


def _causes(deployment: Deployment, step: StepBreakdown) -> dict[str, float]:
    """Seconds of one step by cause; they add up to its time."""
    kinds = {operator.name: operator.kind for operator in step_operators(deployment.model, deployment.config)}
    causes: dict[str, float] = defaultdict(float)
    busy_s = max(step.gpu_s, step.launch_s)
    causes["host"] = step.total_s - busy_s
    if step.launch_s > step.gpu_s:
        causes["launches"] += step.launch_s
        return causes
    exchanges = {exchange.name for exchange in step_collectives(deployment.model, deployment.config)}
    for part in step.parts:
        if part.name != "host":
            cause = "links" if part.name in exchanges else _cause(kinds.get(part.name), part.bound)
            causes[cause] += part.time_s
    return causes


def _cause(kind: OperatorKind | None, bound: str) -> str:
    if bound == "launch":
        return "launches"
    if bound == "compute":
        return "compute"
    return "KV bandwidth" if kind in CACHE_READERS else "weights bandwidth"


# --- One machine under one load: what it delivers, what that costs, what limits it

LATENCIES = tuple(f"{statistic}_{metric}_ms" for metric in ("ttft", "tpot", "e2el") for statistic in ("mean", "p99"))


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several equal servers gets."""

    servers: int
    workload: Workload


@dataclass(frozen=True)
class ComparedPoint:
    """One machine under one load. Means are over all requests, the 99th percentile is the busiest server's."""

    machine: Machine
    workload: Workload
    price: Price | None
    shares: tuple[Share, ...]
    predictions: tuple[Prediction, ...]

    @property
    def gpu(self) -> str:
        """Id of the (logical) GPU."""
        return self.machine.profile.id

    @property
    def load(self) -> float:
        """Requests in flight, or per second."""
        return self.workload.max_concurrency or self.workload.request_rate

    @cached_property
    def keeps_up(self) -> bool:
        """Whether no queue grows without end; a closed loop always keeps up."""
        if self.workload.max_concurrency is not None:
            return True
        deployment, share = self.machine.deployment, self.shares[0].workload
        return share.request_rate <= served_per_s(deployment, share) * (1 + TOLERANCE)

    @property
    def tok_per_s(self) -> Span:
        """Output tokens per second of the whole machine."""
        return self._added("output_throughput")

    @property
    def tok_per_s_per_gpu(self) -> Span:
        """Output tokens per second and GPU: a package counts as one, with ``per`` of ``gpu`` a logical GPU."""
        return self.tok_per_s.times(1 / self.machine.gpus)

    @property
    def in_flight(self) -> float:
        """Requests in flight at once on all servers."""
        if self.workload.max_concurrency is not None:
            return self.workload.max_concurrency
        return sum(s.servers * p.replay.mean_in_flight for s, p in zip(self.shares, self.predictions, strict=True))

    @property
    def tok_per_s_per_user(self) -> Span | None:
        """Output tokens per second of one request; None where a queue grows without end."""
        return self.tok_per_s.times(1 / self.in_flight) if self.keeps_up else None

    @property
    def usd_per_h(self) -> Span | None:
        """What the machine rents for."""
        return self.price.usd_per_h.times(self.machine.units) if self.price else None

    @property
    def usd_per_million_tok(self) -> Span | None:
        """USD per 1M output tokens; None where no price is known, or it is zero."""
        usd = self.usd_per_h
        return usd_per_million_tok(usd, self.tok_per_s) if usd and usd.mid else None

    @property
    def tok_per_usd(self) -> Span | None:
        """Output tokens for one USD; None likewise."""
        return tok_per_usd(self.usd_per_h, self.tok_per_s) if self.usd_per_h else None

    @property
    def power_w(self) -> float | None:
        """Board power of all GPUs."""
        watts = power_w(self.machine.profile)
        return watts * self.machine.units if watts else None

    @property
    def tok_per_joule(self) -> Span | None:
        """Output tokens for one joule at board power; None where the power is not known."""
        return tok_per_joule(self.power_w, self.tok_per_s) if self.power_w else None

    def latency_ms(self, key: str) -> Span | None:
        """Such as ``mean_ttft_ms``; None where a queue grows without end."""
        if not self.keeps_up:
            return None
        if not key.startswith("mean_"):
            return _span(self.predictions[0].result, key)
        weights = [
            share.servers * prediction.result["request_throughput"]
            for share, prediction in zip(self.shares, self.predictions, strict=True)
        ]
        spans = [_span(prediction.result, key) for prediction in self.predictions]
        return _added([span.times(w / sum(weights)) for span, w in zip(spans, weights, strict=True)])

    @cached_property
    def bound_by(self) -> str:
        """What limits the busiest server."""
        share, prediction = self.shares[0].workload, self.predictions[0]
        flying = share.max_concurrency or prediction.replay.mean_in_flight
        deployment = self.machine.deployment
        return limit_of(deployment, prediction.replay, share.max_total_len, flying, keeps_up=self.keeps_up)

    def _added(self, key: str) -> Span:
        pairs = zip(self.shares, self.predictions, strict=True)
        return _added([_span(prediction.result, key).times(share.servers) for share, prediction in pairs])


def best_point(machines: Sequence[Machine], workload: Workload, price: Price | None) -> ComparedPoint:
    """The machine that serves the load with the least mean E2EL; where none keeps up, the one that serves most."""
    finalists = sorted(machines, key=lambda machine: _closed_form_e2el_s(machine, workload))[
        : defaults.COMPARED_FINALISTS
    ]
    points = [_point(machine, workload, price) for machine in finalists]
    return min(points, key=lambda point: (not point.keeps_up, _mean_e2el_ms(point), -point.tok_per_s.mid))


def _closed_form_e2el_s(machine: Machine, workload: Workload) -> float:
    """Mean E2EL of the busiest server; what the KV cache does not hold waits its turn."""
    deployment, share = machine.deployment, dealt(machine.deployment, workload, machine.servers)[0].workload
    replicas = deployment.config.data_parallel_size
    places = min(deployment.requests_served(workload.total_len), deployment.config.max_num_seqs)
    if share.max_concurrency is None:
        overload = max(share.request_rate / served_per_s(deployment, share), 1.0)
        flying = in_flight(deployment, share, share.request_rate) / replicas
    else:
        flying = share.max_concurrency / replicas
        overload = max(flying / max(places, 1.0), 1.0)
    busy = ceil(min(flying, max(places, 1.0)))
    return estimate(deployment, workload.input_len, workload.output_len, busy).e2el_s * overload


def dealt(deployment: Deployment, workload: Workload, servers: int) -> tuple[Share, ...]:
    """``workload`` dealt evenly to ``servers``, the busiest first; servers that get nothing are left out."""
    if workload.max_concurrency is None:
        each = replace(workload, request_rate=workload.request_rate / servers)
        most = served_per_s(deployment, each)  # beyond, only the queue grows
        flying = in_flight(deployment, each, min(each.request_rate, most))
        return (Share(servers, replace(each, num_prompts=_prompts(workload, servers, flying))),)
    small, more = divmod(workload.max_concurrency, servers)
    found = [(small + 1, more), (small, servers - more)]
    return tuple(
        Share(count, replace(workload, max_concurrency=places, num_prompts=_prompts(workload, servers, places)))
        for places, count in found
        if places and count
    )


def served_per_s(deployment: Deployment, workload: Workload) -> float:
    """Requests per second that batches as full as the KV cache and ``max_num_seqs`` allow serve in the steady state."""
    replicas = deployment.config.data_parallel_size
    held = min(deployment.requests_served(workload.total_len), most_in_flight(deployment) / replicas)
    steady = estimate(deployment, workload.input_len, workload.output_len, max(int(held), 1))
    return steady.output_tok_per_s / workload.output_len * replicas


def figures(point: ComparedPoint) -> Mapping[str, Any]:
    """A point as JSON and CSV have it; each predicted figure with ``_lo`` and ``_hi``."""
    config, workload = point.machine.deployment.config, point.workload
    row: dict[str, Any] = {
        "gpu": point.gpu,
        "num_gpus": point.machine.units,
        "idle_gpus": point.machine.idle,
        "servers": point.machine.servers,
        "tensor_parallel_size": config.tensor_parallel_size,
        "weight_dtype": config.weight_dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "engine_version": str(config.version),
        "calibration": point.machine.deployment.calibrated_by,
        "input_len": workload.input_len,
        "output_len": workload.output_len,
        "max_concurrency": workload.max_concurrency,
        "request_rate": None if isinf(workload.request_rate) else workload.request_rate,
        "keeps_up": point.keeps_up,
        "bound_by": point.bound_by,
        "usd_per_hour": point.usd_per_h.mid if point.usd_per_h else None,
        "power_w": point.power_w,
    }
    spans = {
        "output_throughput": point.tok_per_s,
        "output_throughput_per_gpu": point.tok_per_s_per_gpu,
        "output_throughput_per_user": point.tok_per_s_per_user,
        "usd_per_million_output_tokens": point.usd_per_million_tok,
        "output_tokens_per_usd": point.tok_per_usd,
        "output_tokens_per_joule": point.tok_per_joule,
        **{key: point.latency_ms(key) for key in LATENCIES},
    }
    for key, span in spans.items():
        row |= span_figures(key, span)
    return row


def _point(machine: Machine, workload: Workload, price: Price | None) -> ComparedPoint:
    shares = dealt(machine.deployment, workload, machine.servers)
    predictions = tuple(simulate_serve(machine.deployment, share.workload) for share in shares)
    return ComparedPoint(machine, workload, price, shares, predictions)


def _prompts(workload: Workload, servers: int, flying: float) -> int:
    """Requests for one server: its share of those asked for (more than 1), else enough for a steady state."""
    if workload.num_prompts > 1:
        return max(round(workload.num_prompts / servers), 1)
    return max(defaults.LEAST_SEARCH_PROMPTS, round(defaults.PROMPTS_PER_SLOT * flying))


def _mean_e2el_ms(point: ComparedPoint) -> float:
    span = point.latency_ms("mean_e2el_ms")
    return span.mid if span else inf


def _span(result: Mapping[str, Any], key: str) -> Span:
    value = float(result[key])
    return Span(float(result.get(f"{key}_lo", value)), value, float(result.get(f"{key}_hi", value)))


def _added(spans: Sequence[Span]) -> Span:
    return Span(sum(s.low for s in spans), sum(s.mid for s in spans), sum(s.high for s in spans))

"""What limits a server under a load: its queue, its KV cache, or the part of a step that takes most of the time."""

from __future__ import annotations

from collections import defaultdict

from planner.collectives import collectives
from planner.operators import Kind, operators
from planner.predict import Deployment, typical_steps
from planner.scheduler import Replay
from planner.step import StepBreakdown

#: Kinds of operators whose memory traffic is the KV cache's, or a recurrent state's, and not the weights'.
CACHE_READERS = (Kind.ATTENTION, Kind.STATE)
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
    kinds = {operator.name: operator.kind for operator in operators(deployment.model, deployment.config)}
    causes: dict[str, float] = defaultdict(float)
    busy_s = max(step.gpu_s, step.launch_s)
    causes["host"] = step.total_s - busy_s
    if step.launch_s > step.gpu_s:
        causes["launches"] += step.launch_s
        return causes
    exchanges = {exchange.name for exchange in collectives(deployment.model, deployment.config)}
    for part in step.parts:
        if part.name != "host":
            cause = "links" if part.name in exchanges else _cause(kinds.get(part.name), part.bound)
            causes[cause] += part.time_s
    return causes


def _cause(kind: Kind | None, bound: str) -> str:
    if bound == "launch":
        return "launches"
    if bound == "compute":
        return "compute"
    return "KV bandwidth" if kind in CACHE_READERS else "weights bandwidth"

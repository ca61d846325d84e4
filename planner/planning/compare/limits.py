"""What limits a server under a load: its queue, its KV cache, or the part of a step that takes most of the time."""

from __future__ import annotations

from collections import defaultdict

from planner.planning.deployment import Deployment
from planner.simulator import Replay
from planner.timing import OperatorKind, StepBreakdown, step_collectives, step_operators

#: Kinds of operators whose memory traffic is the KV cache's, or a recurrent state's, and not the weights'.
CACHE_READERS = (OperatorKind.ATTENTION, OperatorKind.STATE)

#: Causes whose word alone says too little in a sentence.
SAID = {"launches": "kernel launches", "links": "collectives over links", "host": "work of the host"}


def time_shares(deployment: Deployment, served: Replay) -> dict[str, float]:
    """Share of the engine's time by what bounds it, largest first: of the average steps of a replay."""
    spent_s = {"decode step": served.decode_time_s, "prefill step": served.prefill_time_s}
    total: dict[str, float] = defaultdict(float)
    for name, step in deployment.typical_steps(served).items():
        for cause, time_s in _causes(deployment, step).items():
            total[cause] += time_s / step.total_s * spent_s[name]
    whole_s = sum(total.values())
    largest_first = sorted(total, key=lambda cause: -total[cause])
    return {cause: total[cause] / whole_s for cause in largest_first} if whole_s else {}


def find_limit(deployment: Deployment, served: Replay, total_len: int, in_flight: float) -> str:
    """What keeps one server with ``in_flight`` requests of ``total_len`` tokens from serving more."""
    config = deployment.config
    held = deployment.requests_served(total_len) * config.data_parallel_size
    if in_flight > held:
        return f"KV capacity: holds {held:,.0f} requests"
    if in_flight > config.max_running:
        return f"queueing: max_num_seqs {config.max_num_seqs}"
    cause, share = next(iter(time_shares(deployment, served).items()), ("nothing", 0.0))
    return f"{cause} {share:.0%}"


def limit_in_words(limit: str) -> str:
    """What ``find_limit`` says, for a sentence: ``weights bandwidth, 61% of the engine's time``."""
    cause, _, share = limit.rpartition(" ")
    return f"{SAID.get(cause, cause)}, {share} of the engine's time" if share.endswith("%") else limit


def _causes(deployment: Deployment, step: StepBreakdown) -> dict[str, float]:
    """Seconds of one step by cause, which add up to its time."""
    kinds = {operator.name: operator.kind for operator in step_operators(deployment.model, deployment.config)}
    causes: dict[str, float] = defaultdict(float)
    busy_s = max(step.gpu_s, step.launch_s)
    causes["host"] = step.total_s - busy_s
    if step.launch_s > step.gpu_s:
        causes["launches"] += step.launch_s
        return causes
    found = step_collectives(deployment.model, deployment.profile, deployment.config)
    collectives = {collective.name for collective in found}
    for part in step.parts:
        if part.name != "host":
            cause = "links" if part.name in collectives else _cause(kinds.get(part.name), part.bound)
            causes[cause] += part.time_s
    return causes


def _cause(kind: OperatorKind | None, bound: str) -> str:
    if bound == "launch":
        return "launches"
    if bound == "compute":
        return "compute"
    return "KV bandwidth" if kind in CACHE_READERS else "weights bandwidth"

"""The bottleneck of one server: a full KV cache, a queue, a target, or the part of a step that takes most."""

from collections import defaultdict

from planner.planning import defaults
from planner.planning.deployment import Deployment
from planner.planning.predict import THROUGHPUT, Prediction, ServedLoad
from planner.simulator import Replay
from planner.timing import OperatorKind, StepBreakdown, step_collectives, step_operators
from planner.units import counted
from planner.workload import Load

#: Kinds of operators whose memory traffic is the KV cache's, or a recurrent state's, and not the weights'.
CACHE_READERS = (OperatorKind.ATTENTION, OperatorKind.STATE)
#: Causes whose word alone says too little in a sentence.
SAID = {"launches": "kernel launches", "links": "collectives over links", "host": "work of the host"}
SAID |= {"launch": "kernel launches", "link": "collectives over links", "memory": "memory bandwidth"}
SAID["host link"] = "weights read from host memory"


def find_limit(deployment: Deployment, served: Replay, load: Load) -> str:
    """The cause that keeps one server from serving more of ``load``.

    Else the largest share of the engine's time, of the average steps of the replay ``served``."""
    config, in_flight = deployment.config, load.max_concurrency or served.mean_in_flight
    held = deployment.requests_served(load.max_total_len, load.common_len) * config.data_parallel_size
    if min(in_flight, config.max_running) > held and served.kv_cache_usage_peak > defaults.ROOMY:
        return f"KV capacity: holds {counted(int(held), 'request')}"
    if in_flight > config.max_running:
        return f"queueing: max_num_seqs {config.max_num_seqs}"
    spent_s = {"decode step": served.decode.time_s, "prefill step": served.prefill.time_s}
    total: dict[str, float] = defaultdict(float)
    for name, step in deployment.typical_steps(served).items():
        for cause, time_s in _causes(deployment, step).items():
            total[cause] += time_s / step.total_s * spent_s[name]
    cause = max(total, key=lambda one: total[one], default="nothing")
    return f"{cause} {total[cause] / (sum(total.values()) or 1.0):.0%}"


def cache_remark(record: Prediction) -> str:
    """Return a note on a KV cache too small for the load, with its preemptions; empty where it is no bottleneck."""
    limit, replayed = find_limit(record.deployment, record.replay, record.load), record.replay.preemptions
    preempted = round(replayed.sum() * record.load.count / len(replayed))  # of many equal prompts a part was replayed
    return f"bottleneck: {limit} at once; {counted(preempted, 'preemption')}" if limit.startswith("KV") else ""


def limit_in_words(limit: str) -> str:
    """The answer of ``find_limit`` for a sentence: ``weights bandwidth, 61% of the engine's time``."""
    cause, _, share = limit.rpartition(" ")
    return f"{SAID.get(cause, cause)}, {share} of the engine's time" if share.endswith("%") else limit


def _causes(deployment: Deployment, step: StepBreakdown) -> dict[str, float]:
    """Seconds of one step by cause, which add up to its time."""
    operators = step_operators(deployment.model, deployment.config, sorts=True)
    kinds = {operator.name: operator.kind for operator in operators}
    exchanges = step_collectives(deployment.model, deployment.profile, deployment.config)
    collectives = {collective.name for collective in exchanges}
    causes: dict[str, float] = defaultdict(float)
    causes["host"] = step.total_s - max(step.gpu_s, step.launch_s)
    if step.launch_s > step.gpu_s:
        causes["launches"] += step.launch_s
        return causes
    for part in step.parts:
        if part.name != "host":
            reads = "KV bandwidth" if kinds.get(part.name) in CACHE_READERS else "weights bandwidth"
            named = {"launch": "launches", "compute": "compute", "host link": "host link"}
            for bound, time_s in part.shares.items():
                causes["links" if part.name in collectives else named.get(bound, reads)] += time_s
    return causes


def what_limits(deployment: Deployment, load: ServedLoad) -> str:
    """The tightest target, and the bound of the steps behind it."""
    steps = {"prefill": load.replay.prefill.batch, "decode": load.replay.decode.batch}
    worst = load.worst
    if worst is None or not load.stable:
        return THROUGHPUT
    behind = {"ttft": ("prefill",), "e2el": ("decode", "prefill")}.get(worst.slo.metric, ("decode",))
    for kind in behind:
        if (batch := steps[kind]) is not None:
            bounds: dict[str, float] = defaultdict(float)
            for part in deployment.timer.breakdown(batch).parts:
                for bound, time_s in part.shares.items():
                    bounds[bound] += time_s
            most = max(bounds, key=lambda b: bounds[b])
            return f"{worst.slo}; {kind} steps are limited by {SAID.get(most, most)}"
    return str(worst.slo)

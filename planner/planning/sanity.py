"""Whether an answer is in proportion; where it is not, what decides it and what would change it.

A practitioner does not believe these at first sight, however right the search was::

    confidence   more than TIMES as many GPUs as the central prediction (even odds) takes
    idle         more than TIMES as many servers as there are requests in flight
    wait         a first token that comes after more than WAIT_S on average
    odds         targets that even odds cannot keep under any number of servers, or keep where the answer is no

The last one makes an answer a no: ``Doubt.refutes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Literal

from planner.planning import defaults
from planner.planning.capacity import at_load, measure
from planner.planning.comparison import Comparison
from planner.planning.fleet.fleets import Fleet, Fleets, Pool
from planner.planning.plan import Plan, Service
from planner.planning.predict import Reading
from planner.planning.recommend.request import Candidate, Ranking, Request
from planner.planning.recommend.target_search import share_of
from planner.units import MS
from planner.workload import targets_in_words

TIMES = 3.0
WAIT_S = 60.0
EVEN = defaults.LADDER[0]  #: the confidence of the central prediction

Kind = Literal["confidence", "idle", "wait", "odds"]


@dataclass(frozen=True, slots=True)
class Doubt:
    """One figure that is out of proportion."""

    kind: Kind
    gpu: str  #: profile id
    said: str  #: what is out of proportion, and what decides it
    change: str  #: what would change it
    refutes: bool = False  #: the central prediction says that the targets cannot be kept

    def __str__(self) -> str:
        return f"{self.gpu}: {self.said}; {self.change}"


def doubts_about_plan(request: Request, candidate: Candidate, plan: Plan) -> Iterator[Doubt]:
    """What is out of proportion in the plan of ``candidate``."""
    service, targets = plan.service, request.targets
    if service and targets:
        yield from _about_ladder(request, candidate, service, plan.gpu)
        if service.request_rate:
            flying = service.request_rate * plan.predicted["mean_e2el_ms"] * MS
            yield from _about_idle(plan.gpu, service.replicas, flying, targets_in_words(targets.slos))
    first_s = plan.predicted["mean_ttft_ms"] * MS
    if first_s > WAIT_S:
        sent = plan.workload
        crowd = f"{sent.max_concurrency:,} prompts" if sent.max_concurrency else "prompts"
        cause = f"{crowd} of {sent.input_len:,} tokens wait for their prefill"
        yield _wait(plan.gpu, first_s, cause, "fewer requests in flight, or more servers, would shorten it")


def doubt_about_refusal(ranking: Ranking, confidence: float) -> Doubt | None:
    """Where no plan keeps the targets with ``confidence``, but the central prediction of the closest one does."""
    closest = ranking.closest
    if closest is None or closest.load is None or not closest.load.stable or confidence <= EVEN:
        return None
    if any(reading.predicted_ms > reading.slo.limit_ms for reading in closest.load.readings):
        return None
    looser = kept_limits(closest.load.readings)
    said = f"the central prediction keeps the targets, {confidence:.0%} confidence does not: the interval decides"
    return Doubt("odds", ranking.profile.id, said, f"--confidence {EVEN:g} or {looser} would find a plan")


def doubts_about_fleets(fleets: Fleets) -> Iterator[Doubt]:
    """What is out of proportion in the best of ``fleets``."""
    best = fleets.best
    if best is None:
        return
    gpu = " + ".join(rented.profile.id for rented in best.rented)
    if best.asked.slos:
        yield from _about_fleet_ladder(best, gpu)
    for pool in best.pools:
        name = pool.kind.profile.id
        flying = pool.demand.request_rate * float(pool.load.replay.e2el_s.mean())
        servers = sum(one.servers for one in best.pools if one.demand is pool.demand)
        yield from _about_idle(name, servers, flying, targets_in_words(best.asked.slos))
        first_s = float(pool.load.replay.ttft_s.mean())
        if first_s > WAIT_S:
            cause = f"{pool.demand.name} has no target that keeps it short"
            yield _wait(name, first_s, cause, "add --ttft")


def doubts_about_comparison(comparison: Comparison) -> Iterator[Doubt]:
    """The GPUs on which requests wait too long, each at the smallest load where they do."""
    points = sorted(comparison.points, key=lambda point: (point.gpu, point.load))
    for gpu, group in groupby(points, key=lambda point: point.gpu):
        for point in group:
            first = point.latency_ms("mean_ttft_ms")
            if first is None or first.mid * MS <= WAIT_S:
                continue
            closed = point.workload.max_concurrency is not None
            load = f"at {point.load:,g} {'requests in flight' if closed else 'requests/s'} "
            change = "fewer requests, or more GPUs (--packages), would shorten it"
            yield _wait(gpu, first.mid * MS, point.bound_by, change, load)
            break


def kept_limits(readings: Sequence[Reading]) -> str:
    """Flags with limits that hold where those that were asked for are broken; empty where none is."""
    return " ".join(_kept_limit(reading) for reading in readings if not reading.met)


def _kept_limit(reading: Reading) -> str:
    slo, least_ms = reading.slo, ceil(reading.expected_ms)
    return f"{slo.metric}={least_ms} of --class {slo.group}" if slo.group else f"--{slo.metric} {least_ms}"


def _wait(gpu: str, first_s: float, cause: str, change: str, load: str = "") -> Doubt:
    return Doubt("wait", gpu, f"{load}the first token comes after {first_s:,.0f} s on average ({cause})", change)


def _about_idle(gpu: str, servers: int, flying: float, targets: str) -> Iterator[Doubt]:
    if servers > TIMES * max(flying, 1.0):
        said = f"{servers:,} servers for {flying:,.2g} requests in flight: latency decides, not throughput"
        yield Doubt("idle", gpu, said, f"a looser target than {targets} would take fewer")


def _about_ladder(request: Request, candidate: Candidate, service: Service, gpu: str) -> Iterator[Doubt]:
    rungs = {rung.confidence: rung for rung in service.ladder}
    even, now, targets = rungs.get(EVEN), rungs.get(service.confidence), request.targets
    if even is None or now is None or targets is None:
        return
    if not even.largest_load:
        yield _refuted(gpu, service.confidence, targets_in_words(targets.slos))
    elif targets.value is None:
        if now.largest_load and even.largest_load > TIMES * now.largest_load:
            ratio, unit = even.largest_load / now.largest_load, service.load_unit
            said = (
                f"one server carries {now.largest_load:,.3g} {unit}, the central prediction is {ratio:,.1f} times that"
            )
            yield Doubt("confidence", gpu, f"{said}: {_interval(service)} decides", f"--confidence {EVEN:g} takes it")
    elif even.total_gpus and now.total_gpus and now.total_gpus > TIMES * even.total_gpus:
        servers = ceil(even.total_gpus / candidate.config.num_gpus)
        readings = share_of(candidate.deployment, request, targets, servers).readings
        yield _too_many(gpu, now.total_gpus, even.total_gpus, _interval(service), kept_limits(readings))


def _about_fleet_ladder(fleet: Fleet, gpu: str) -> Iterator[Doubt]:
    asked, even = fleet.asked, fleet.ladder[0]
    if even.gpus is None:
        yield _refuted(gpu, asked.confidence, targets_in_words(asked.slos))
    elif fleet.gpus > TIMES * even.gpus:
        pool = fleet.busiest
        interval = f"the interval of {pool.load.bound_by or pool.load.binding}"
        yield _too_many(gpu, fleet.gpus, even.gpus, interval, kept_limits(_with_fewer(fleet, pool, even.gpus)))


def _with_fewer(fleet: Fleet, pool: Pool, gpus: int) -> tuple[Reading, ...]:
    """The targets where the servers are as few as ``gpus`` make them; nothing for a fleet of several pools."""
    if len(fleet.pools) > 1:
        return ()
    asked, deployment, demand = fleet.asked, pool.kind.deployment, pool.demand
    spares = sum(count for _, count in fleet.spares)
    servers = max(gpus * pool.kind.profile.parts // pool.kind.num_gpus - spares, 1)
    rate = asked.loads[0] / servers
    sent = at_load(deployment, demand, asked.slos, "rate", rate)
    return measure(deployment, sent, asked.slos, confidence=asked.confidence).readings


def _interval(service: Service) -> str:
    tightest = max(service.targets, key=lambda target: target.expected_ms / target.limit_ms)
    return f"the interval of {service.bound_by or tightest.slo}"


def _too_many(gpu: str, now: int, even: int, interval: str, looser: str) -> Doubt:
    said = f"{now:,} GPUs are {now / even:,.1f} times the {even:,} of the central prediction: {interval} decides"
    options = " or ".join(filter(None, (looser, f"--confidence {EVEN:g}")))
    return Doubt("confidence", gpu, said, f"{options} would take {even:,}, and a measured run narrows it")


def _refuted(gpu: str, confidence: float, targets: str) -> Doubt:
    said = f"the central prediction does not keep {targets}; only {confidence:.0%} confidence is asked for"
    return Doubt("odds", gpu, said, "looser targets, or another GPU, would", refutes=True)

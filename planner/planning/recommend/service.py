"""A plan with targets: its servers, what each of them carries, what it costs, what binds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import Any

from planner.planning.capacity import Capacity, measure
from planner.planning.compared_point import find_limit, limit_in_words
from planner.planning.cost import price_of
from planner.planning.deployment import Deployment
from planner.planning.largest import ROUNDING
from planner.planning.next_run import next_run
from planner.planning.plan import Plan, PlannedRun, PlannedRung, PlannedTarget, PlannedTrace, PlannedWorkload, Service
from planner.planning.predict import THROUGHPUT, Reading, ServedLoad
from planner.planning.recommend.candidates import node_size
from planner.planning.recommend.request import Candidate, Request
from planner.simulator import Replay, statistic_ms
from planner.units import figure
from planner.workload import Load, Targets, targets_in_words


def sent_to_one(request: Request, candidate: Candidate) -> Load:
    """What the benchmark sends to the one server that it measures: its share of the load.

    Of a trace, random prompts of the mean lengths, at the rate and burstiness of the busiest stretch. What the prefix
    cache spares is then a prefix that all have.
    """
    if candidate.load is None:
        return request.closed_loop(candidate.estimate.concurrency)
    sent = candidate.load.sent
    if sent.unsendable:
        sent = sent.as_drawn()
    return replace(sent, num_prompts=request.num_prompts) if request.num_prompts else sent


def service_of(request: Request, candidate: Candidate, *, best: bool) -> Service | None:
    """Servers, load and cost of ``candidate``, of the best plan with its ladder; None without targets."""
    load, targets = candidate.load, request.targets
    if load is None or targets is None:
        return None
    profile = candidate.deployment.profile
    capacity = candidate.capacity or capacity_of(request, targets, candidate)
    whole = targets.value if targets.value is not None else load.value
    most = largest(request, replace(candidate, capacity=capacity))
    servers = node_size(request, profile) // candidate.config.num_gpus
    packages = candidate.num_gpus / profile.parts
    if targets.value is not None:  # nobody rents a part of a GPU
        packages = ceil(packages)
    price = price_of(profile, request.prices)
    carried = _Carried(request, targets, candidate, load, capacity, most) if best and most and targets.slos else None
    ends = capacity.interval(most.value) if carried and most else (None, None)
    return Service(
        confidence=targets.confidence,
        targets=tuple(map(planned_target, load.readings)),
        request_rate=whole if targets.by == "rate" else None,
        max_concurrency=round(whole) if targets.by == "concurrency" else None,
        load_asked=targets.value is not None,
        workload=request.workload_name,
        trace=PlannedTrace.of(request.load),
        replicas=candidate.servers,
        total_gpus=candidate.num_gpus,
        packages=packages,
        goodput=load.goodput_per_s * candidate.servers,
        largest_load=most.value if most else None,
        largest_load_lo=ends[0],
        largest_load_hi=ends[1],
        node_load=most.value * servers if most and servers else None,
        bound_by=most.bound_by if most else "",
        output_throughput_per_gpu=(most or load).output_tok_per_s / candidate.config.num_gpus,
        usd_per_hour=price.usd_per_h.mid * profile.parts * packages if price else None,
        router=targets.router if request.load.reused else None,
        prefix_cache_share=load.replay.cached_share if request.load.reused else None,
        ladder=carried.ladder if carried else (),
        measure_next=carried.next_run() if carried else None,
    )


def capacity_of(request: Request, targets: Targets, candidate: Candidate) -> Capacity:
    """What one server of ``candidate`` carries: of a trace, of what the router sends it.

    What the search has served of it is known, so that no server has room for what one of fewer could not carry; but
    where prompts share what caches keep, one of fewer found more.
    """
    load = request.load
    served = (candidate.load, None if load.reused else candidate.too_much)
    if load.unsendable:
        load = load.share_of(candidate.servers, targets.router)
    known = [one for one in served if one]
    return Capacity(candidate.deployment, load, targets, known=known)


@dataclass(frozen=True)
class _Carried:
    """What the servers of a plan carry at each confidence."""

    request: Request
    targets: Targets
    candidate: Candidate
    load: ServedLoad  #: what one of them has to carry
    capacity: Capacity
    most: ServedLoad  #: what one of them carries at the confidence that is asked for

    @cached_property
    def ladder(self) -> tuple[PlannedRung, ...]:
        """The same servers at each confidence of ``LADDER``, and at the one that is asked for."""
        return tuple(map(self.rung, self.capacity.by_confidence(self.most.value)))

    def rung(self, confidence: float) -> PlannedRung:
        """More confidence never carries more, and never takes fewer servers."""
        asked, whole = self.targets.confidence, self.targets.value
        carried, servers = self.most.value, self.candidate.servers
        if confidence != asked:
            bound = max if confidence < asked else min
            carried = bound(self.capacity.carried(confidence, carried), carried)
            if whole is not None and carried:
                fewest = ceil(whole / carried - ROUNDING)
                servers = min(fewest, servers) if confidence < asked else max(fewest, servers)
        gpus = servers * self.candidate.config.num_gpus if carried else None
        return PlannedRung(confidence=confidence, largest_load=carried, total_gpus=gpus)

    def next_run(self) -> PlannedRun | None:
        """The run that is worth most, where even odds would take less than the confidence that is asked for."""
        now = next((rung for rung in self.ladder if rung.confidence == self.targets.confidence), None)
        if now is None or self._worth(self.ladder[0]) <= self._worth(now):
            return None
        bound = replace(self.load, bound_by=self.most.bound_by)
        run = next_run(self.candidate.deployment, bound)
        if run is None:
            return None
        then = self.rung(run.confidence(self.targets.confidence))
        if self._worth(then) <= self._worth(now):
            return None
        sent = sent_to_one(self.request, self.candidate) if run.own else run.workload
        return PlannedRun(
            script="benchmark.sh" if run.own else "measure_next.sh",
            workload=PlannedWorkload.of(sent),
            duration_s=run.duration_s,
            figure=run.figure,
            deviation_factor=run.factor,
            expected=then.model_copy(update={"confidence": self.targets.confidence}),
        )

    def _worth(self, rung: PlannedRung) -> float:
        """Larger is better: fewer GPUs for the load, or without one more load on a server."""
        return rung.largest_load if self.targets.value is None else -(rung.total_gpus or inf)


def planned_target(reading: Reading) -> PlannedTarget:
    """A target as a plan has it."""
    return PlannedTarget(
        metric=reading.slo.key,
        limit_ms=reading.slo.limit_ms,
        predicted_ms=reading.predicted_ms,
        expected_ms=reading.expected_ms,
        met=reading.met,
        of_class=reading.slo.group,
    )


def largest(request: Request, candidate: Candidate) -> ServedLoad | None:
    """The largest load of one server; not looked for where there are many GPUs to compare."""
    targets = request.targets
    if targets is None or targets.value is None:
        return candidate.load
    if request.coarse or candidate.load is None:
        return None
    capacity = candidate.capacity or capacity_of(request, targets, candidate)
    found = capacity.largest()
    if found is None or found.value < candidate.load.value:  # the search stops a little below the edge
        return replace(candidate.load, bound_by=found.bound_by if found else "")
    judged_whole = request.load.unsendable and not request.load.drawn
    if judged_whole and not (whole := _whole(capacity, found, targets.confidence)).meets:
        return replace(candidate.load, bound_by=whole.binding)
    return found


def _whole(capacity: Capacity, load: ServedLoad, confidence: float) -> ServedLoad:
    """All requests of a trace at the rate of ``load``, which has the last ones; it ends once a target is broken."""
    sent = capacity.load.at_rate(load.value, capacity.load.count)
    return measure(capacity.deployment, sent, capacity.slos, confidence=confidence, whole=False, exactly=True)


def cost(plan: Plan) -> tuple[bool, float]:
    """What a plan costs for a unit of its load: USD per hour; whole GPUs, sorted last, where no price is known."""
    service = plan.service
    assert service is not None
    carried = service.request_rate or service.max_concurrency or 1.0
    priced = service.usd_per_hour is not None
    return not priced, (service.usd_per_hour or 0.0 if priced else service.packages) / carried


def why_service(request: Request, winner: Candidate) -> Iterator[str]:
    """Why this plan: what it keeps, with how many GPUs, what the others need."""
    targets, load = request.targets, winner.load
    assert targets is not None and load is not None
    unit = load_words(targets.by)
    if targets.value is None:
        size = _gpus(winner.config.num_gpus)
        yield f"{targets_in_words(targets.slos)}: one server of {size} carries {load.value:,.4g} {unit}"
    else:
        size = _gpus(winner.config.num_gpus)
        several = f"{winner.servers} servers of {size} each, {load.value:,.4g} on each"
        servers = several if winner.servers > 1 else f"one server of {size}"
        yield f"{targets.value:,.4g} {unit} with {targets_in_words(targets.slos)}: {servers}"
    for reading in load.readings:
        name = f"{reading.slo.statistic} {reading.slo.metric.upper()}"
        name = f"{name} for {reading.slo.group}:" if reading.slo.group else name
        yield (
            f"{name} {reading.predicted_ms:,.0f} ms predicted, below {reading.expected_ms:,.0f} ms with "
            f"{targets.confidence:.0%} confidence, against {reading.slo.limit_ms:,.4g} ms"
        )
    good_share = load.good_share
    goodput = load.goodput_per_s * winner.servers
    yield f"goodput {goodput:,.4g} requests/s: {good_share:.1%} meet every target with that confidence"
    if request.load.reused:
        yield reuse_words(load.replay, request, winner.servers)
    if limits := what_limits(winner.deployment, load):
        yield f"nearest to its limit: {limits}"
    if targets.by == "concurrency":
        yield f"the first {load.value:,.0f} requests, which start together, are not held against the targets"
        yield from _with_the_burst(load)
        if not request.load.range_ratio and request.load.recorded is None:
            yield "requests of equal lengths end together, and so start together: --random-range-ratio 0.5 spreads them"


def reuse_words(served: Replay, request: Request, servers: int) -> str:
    """What the prefix cache spares of a load whose prompts are known."""
    sent, targets = request.load.recorded, request.targets
    assert sent is not None and targets is not None
    most = sent.reusable_tok / float(sent.input_len.mean())
    dealt = f" of {servers} servers, {targets.router}" if servers > 1 else ""
    found = f"{served.cached_share:.1%} of the prompt tokens come from the prefix cache{dealt}"
    return f"{found}; {most:.1%} would from one that forgets nothing"


def _with_the_burst(load: ServedLoad) -> Iterator[str]:
    """Targets that are broken where the opening burst counts, as it does in a benchmark."""
    for reading in load.readings:
        counted_ms = statistic_ms(reading.slo, load.replay)
        expected_ms = counted_ms * reading.expected_ms / reading.predicted_ms if reading.predicted_ms else 0.0
        if reading.met and expected_ms > reading.slo.limit_ms:
            name = f"{reading.slo.statistic} {reading.slo.metric.upper()}"
            yield f"with them, as a benchmark counts, {name} is {counted_ms:,.0f} ms, up to {expected_ms:,.0f} ms"


def what_binds(request: Request, candidate: Candidate) -> str:
    """What keeps one server from serving more: the target, or without targets the part of a step that takes most."""
    if candidate.load:
        return what_limits(candidate.deployment, candidate.load)
    sent = sent_to_one(request, candidate)
    served = candidate.deployment.replay(sent)
    flying = sent.max_concurrency or served.mean_in_flight
    return limit_in_words(find_limit(candidate.deployment, served, sent.max_total_len, flying))


def what_limits(deployment: Deployment, load: ServedLoad) -> str:
    """The target that binds, and what bounds the steps behind it."""
    replayed, timer = load.replay, deployment.timer
    steps = {"prefill": replayed.prefill_batch, "decode": replayed.decode_batch}
    worst = max(load.readings, key=lambda reading: reading.excess, default=None)
    if worst is None or not load.stable:
        return THROUGHPUT
    kinds = {"ttft": ["prefill"], "tpot": ["decode"], "itl": ["decode"], "e2el": ["decode", "prefill"]}
    kind = next((kind for kind in kinds[worst.slo.metric] if steps[kind] is not None), "")
    batch = steps.get(kind)
    if batch is None:
        return str(worst.slo)
    bounds: dict[str, float] = {}
    for part in timer.breakdown(batch).parts:
        bounds[part.bound] = bounds.get(part.bound, 0.0) + part.time_s
    return f"{worst.slo}; the {kind} steps behind it are bound by {max(bounds, key=lambda b: bounds[b])}"


def load_words(by: str) -> str:
    """The unit of a load."""
    return "requests/s" if by == "rate" else "requests in flight"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def little_in_words(load: ServedLoad) -> str:
    """The load that the closest plan already breaks a target under."""
    return "one request at a time" if load.by == "concurrency" else f"{figure(load.value)} requests/s"


def closest_point(candidate: Candidate) -> dict[str, Any]:
    """The plan that comes nearest to targets that none meets, as JSON has it."""
    config, load = candidate.config, candidate.load
    assert load is not None
    return {
        "gpu": candidate.deployment.profile.id,
        "model": candidate.resolved.resolved,
        **config.choice,
        "load": {load.by: load.value},
        "targets": [planned_target(reading).model_dump() for reading in load.readings],
        "limits": what_limits(candidate.deployment, load),
    }


def closest_lines(candidate: Candidate) -> Iterator[str]:
    """The same in words."""
    config, load = candidate.config, candidate.load
    assert load is not None
    yield (
        f"closest: {candidate.resolved.resolved}, {_gpus(config.num_gpus)}, --tensor-parallel-size "
        f"{config.tensor_parallel_size}, {little_in_words(load)}"
    )
    for reading in load.readings:
        verdict = "keeps" if reading.met else "breaks"
        predicted, most = figure(reading.predicted_ms, 4), figure(reading.expected_ms, 4)
        yield f"{verdict} {reading.slo}: {predicted} ms predicted, up to {most} ms"
    yield f"what binds: {what_limits(candidate.deployment, load)}"

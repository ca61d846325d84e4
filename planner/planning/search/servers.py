"""Servers of one kind under targets: the share of each, how many the load takes, and the run that would tell most.

A run tells the logarithm of a figure up to its noise. What is then left of the variance of the limiting figure f is::

    var(f | run) = var(f) - cov(run, f)^2 / (var(run) + noise(run)^2)

With a deviation smaller by a factor s, confidence c takes what today takes the confidence Phi(s z(c)), as expected.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import ceil, inf, sqrt
from statistics import NormalDist

from planner.planning import defaults
from planner.planning.capacity import Capacity, against, at_load, measure
from planner.planning.deployment import Deployment
from planner.planning.largest import ROUNDING, bracket
from planner.planning.plan import PlannedOffloading, PlannedRival, PlannedRouter, PlannedRung, PlannedTarget, Unaided
from planner.planning.predict import THROUGHPUT, ServedLoad, doubt_at, estimate
from planner.planning.search.space import Candidate, Objective, Space
from planner.planning.uncertainty import Uncertainty, UncertaintyOfReplay
from planner.simulator import MOST_CHUNKS
from planner.timing import Spread
from planner.workload import Load, Router, Targets

#: Figures of a run, without the throughput where that is the rate at which requests are sent.
LATENCIES = ("mean_tpot_ms", "mean_ttft_ms")
FIGURES = (*LATENCIES, "output_throughput")
SAME = 1.02  #: a run of the plan's own benchmark is taken where no other leaves a deviation smaller by this
WORTH = 0.98  #: factor on the deviation above which a run tells too little


def share_of(
    deployment: Deployment, objective: Objective, servers: int, *, entire: bool = False, whole: bool = True,
    exactly: bool = False,
) -> ServedLoad:  # fmt: skip
    """Predict one of ``servers`` that share the load, beside the targets; ``whole`` and ``exactly`` as for ``measure``.

    Of a trace it gets the last ``TRACE_PROMPTS`` that the router sends it, or its ``entire`` share."""
    load, slos, value = objective.load, objective.slos, objective.value
    assert value is not None
    each = value / servers
    if load.classes:
        few = at_load(deployment, load, slos, "rate", each)
        one_of_each = ceil(max(value / one.request_rate for one in load.classes)) + 1
        sent = load.share_of(servers, most=objective.replayed_prompts or max(few.num_prompts, one_of_each))
    elif load.recorded is not None:
        sent = load.share_of(servers, objective.router, load.count if entire else defaults.TRACE_PROMPTS)
    else:
        each = ceil(each) if objective.by == "concurrency" else each
        sent = at_load(deployment, objective.dealt(servers), slos, objective.by, each)
        sent = replace(sent, num_prompts=objective.replayed_prompts or sent.num_prompts)
    return measure(deployment, sent, slos, confidence=objective.confidence, whole=whole, exactly=exactly)


def judged_share(deployment: Deployment, objective: Objective, servers: int) -> ServedLoad:
    """Predict one of ``servers``: to first order, and where that meets the targets exactly, with all of a trace."""
    load = share_of(deployment, objective, servers, whole=False)
    if load.meets and objective.load.unsendable and len(load.replay.sent_s) == defaults.TRACE_PROMPTS:
        load = share_of(deployment, objective, servers, entire=True, whole=False)
    if load.meets and objective.by == "rate" and objective.slos:
        load = against(load.prediction, objective.slos, objective.confidence)
    return load


def fewest_servers(
    probe: Callable[[int], ServedLoad], fewest: int, start: int, cap: float = inf
) -> tuple[int | None, ServedLoad | None, ServedLoad | None]:
    """The smallest number in [fewest, cap] whose share meets the targets, its load, and the last load that does not.

    ``probe`` is assumed to miss a target below some number only. With a cap, that is tried first."""

    def least(load: ServedLoad) -> float:
        """A load so small that less would not help: one in flight, or a server that idles between requests."""
        return 1.0 if load.by == "concurrency" else defaults.IDLE / float(load.replay.e2el_s.mean())

    low, high = fewest - 1, inf
    met: ServedLoad | None = None
    failed: ServedLoad | None = None
    count, fewer, more = start if cap == inf else int(cap), 1, 0.1
    while low + 1 < high:
        load = probe(count)
        # where no server gets fewer requests of a trace, or all are alone, more servers change nothing
        same = failed is not None and load.by == "rate" and 1 < load.excess == failed.excess < inf
        if load.meets:
            high, met = count, load
        else:
            low, failed = count, load
        if failed and met:
            count = (low + int(high)) // 2
        elif met and count == cap and cap > max(fewest, start):  # most engines carry no more than the best so far
            count = int(cap) - 1
        elif met:  # the start is a good guess: steps from there grow
            count = start if count > start else max(low + 1, int(high) - fewer)
            fewer = fewer if count == start else 2 * fewer
        elif low >= cap or load.value <= least(load) or same:
            break
        else:  # as many more as the worst target is off, or in growing steps where that is not enough
            count = int(min(max(low + 1, ceil(low * min(max(load.excess, 1 + more), 2.0))), cap))
            more *= 2
    return (None if high == inf else int(high)), met, failed


@dataclass(frozen=True, slots=True)
class NextRun:
    """One run of ``vllm bench serve``."""

    workload: Load
    own: bool  #: the plan's own benchmark
    duration_s: float
    figure: str  #: of its result, that tells most
    factor: float  #: on the standard deviation of the bottleneck

    def confidence(self, asked: float) -> float:
        """At which today's answer is the one that is expected with ``asked`` after the run."""
        normal = NormalDist()
        return normal.cdf(normal.inv_cdf(asked) * self.factor)


def next_run(deployment: Deployment, load: ServedLoad) -> NextRun | None:
    """The run that narrows the bottleneck of ``load`` most, at its own load or another; None: none tells enough."""
    served = UncertaintyOfReplay(deployment, load.sent, load.replay, queue_reacts=False)
    worst = load.worst
    key = "output_throughput" if worst is None or load.bound_by == THROUGHPUT else worst.slo.key
    of_class = worst.slo.group if worst and key == worst.slo.key else ""
    doubt = served.among(of_class) if of_class else served
    binds, noise = doubt.spread(key), doubt.noise(key)
    before, found = sqrt(binds.variance + noise**2), list[NextRun]()
    for sent, own, duration_s, figures, of_run in _runs(deployment, load, served) if before else ():
        for figure in figures:
            after = sqrt(left(binds, of_run.spread(figure), of_run.noise(figure)) + noise**2)
            found.append(NextRun(sent, own, duration_s, figure, after / before))
    best = min(found, key=lambda run: run.factor * (1.0 if run.own else SAME), default=None)
    return best if best and best.factor < WORTH else None


def left(binds: Spread, run: Spread, noise: float) -> float:
    """Variance of the logarithm of one figure once another was measured with ``noise``."""
    told = run.variance + noise**2
    return max(binds.variance - (binds.covariance(run) ** 2 / told if told else 0.0), 0.0)


def _runs(
    deployment: Deployment, load: ServedLoad, served: Uncertainty
) -> Iterator[tuple[Load, bool, float, tuple[str, ...], Uncertainty]]:
    """Each run, whether it is the plan's own, its seconds, its figures, and the doubt about these."""
    yield load.sent, True, load.replay.duration_s, LATENCIES if load.by == "rate" else FIGURES, served
    for concurrency in dict.fromkeys((1, deployment.config.max_running)):
        sent = at_load(deployment, load.sent.as_drawn(), (), "concurrency", concurrency)
        ranks = deployment.config.data_parallel_size
        each = estimate(deployment, sent.input_len, sent.output_len, -(-concurrency // ranks), sent.prefix_len)
        duration_s = sent.num_prompts / concurrency * each.e2el_s
        yield sent, False, duration_s, FIGURES, doubt_at(deployment, sent, concurrency)


@dataclass(frozen=True)
class Servers:
    """The servers of one candidate that share the load of ``objective``."""

    space: Space
    objective: Objective
    candidate: Candidate

    @cached_property
    def capacity(self) -> Capacity:
        """The capacity of one of them; of recorded requests, for those that the router sends it.

        What one of fewer servers missed tells nothing of it: the router had fewer to choose from.
        """
        candidate, objective = self.candidate, self.objective
        if candidate.capacity:
            return candidate.capacity
        load, targets = objective.dealt(candidate.servers), objective.targets or Targets()
        return Capacity(candidate.deployment, load, targets, known=[candidate.load] if candidate.load else [])

    @cached_property
    def most(self) -> ServedLoad | None:
        """Largest load of one of them under the targets; None where many GPUs are compared."""
        asked, objective = self.candidate.load, self.objective
        if objective.value is None:
            return asked
        if self.space.coarse or asked is None:
            return None
        capacity, confidence = self.capacity, objective.confidence
        most = capacity.largest()
        if most is None or most.value < asked.value:  # the search stops a little below the edge
            return replace(asked, bound_by=most.bound_by if most else "")
        if objective.load.unsendable and not objective.load.drawn:  # all requests of a trace, not the last ones alone
            sent, engine = capacity.load, capacity.deployment

            def entire(rate: float) -> ServedLoad:
                every_one = sent.at_rate(rate, sent.count)
                return measure(engine, every_one, capacity.slos, confidence=confidence, whole=False, exactly=True)

            met, missed = bracket(entire, most.value, asked.value, most.value, defaults.NEAR_EDGE, known=[asked])
            return replace(met or asked, bound_by=missed.binding if missed else most.bound_by)
        return most

    @cached_property
    def by_confidence(self) -> tuple[PlannedRung, ...]:
        """The servers at 50, 80 and 95 % confidence, and at the asked one; empty without targets."""
        if self.most is None or not self.objective.slos:
            return ()
        return tuple(map(self.at, sorted({*defaults.LADDER, self.objective.confidence})))

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Loads of one server that 95 % and 5 % of measurements exceed; None without targets."""
        # after ``by_confidence``: each load that is replayed moves the next estimate a little
        return self.capacity.interval(self.most.value) if self.by_confidence and self.most else None

    def at(self, confidence: float) -> PlannedRung:
        """Return the servers at another confidence, as many as a search at it finds. More never takes fewer."""
        asked, value, servers = self.objective.confidence, self.objective.value, self.candidate.servers
        largest = self.most or self.candidate.load  # many GPUs are compared by the load that was asked for
        carried = at_asked = largest.value if largest else 0.0
        bound = max if confidence < asked else min
        if confidence != asked and value and carried and self.space.stock is None:  # replays decide
            first, then = map(self.capacity.closed_form, (asked, confidence))
            carried = bound(carried * then / first, at_asked)
            servers = self._replayed(confidence, ceil(value / carried - ROUNDING))
            carried = bound(min(max(carried, value / servers), value / (servers - 0.99)) if servers else 0, at_asked)
        elif confidence != asked:
            carried = bound(self.capacity.carried(confidence, carried), at_asked)
            servers = ceil(value / carried - ROUNDING) if value and carried else servers
        gpus = (servers + self.objective.spares) * self.candidate.config.num_gpus if carried else None
        return PlannedRung(confidence=confidence, largest_load=carried, total_gpus=gpus)

    def _replayed(self, confidence: float, guess: int) -> int:
        """Return the servers that the load takes at another confidence, or 0; of sessions, far beyond, a bound."""
        engine, servers, known = self.candidate.deployment, self.candidate.servers, self.candidate.load
        objective = replace(self.objective, targets=replace(self.objective.targets or Targets(), confidence=confidence))
        less, most = confidence < self.objective.confidence, max(defaults.MOST_TIMES * servers, guess)
        judged = partial(judged_share, engine, objective)
        share = cache(lambda count: known if less and known and count >= servers else judged(count))  # meets
        start = max(min(guess, servers - 1), 1) if less else max(guess, servers)
        far = objective.load.unsendable and not less and not share(start).meets and not share(most).meets
        if far:  # a share of next to nothing: if it misses, no number of servers is enough
            return most + 1 if share(100 * most).meets else 0
        return fewest_servers(share, 1 if less else servers, start)[0] or 0

    @property
    def with_margin(self) -> int | None:
        """GPUs with the headroom and the spares of ``defaults.MARGIN``; None without a load, or with a margin."""
        objective, carried, (headroom, spares) = self.objective, self.most and self.most.value, defaults.MARGIN
        if not carried or objective.value is None or objective.headroom or objective.spares:
            return None
        servers = max(ceil(objective.value * (1 + headroom) / carried - ROUNDING), self.candidate.servers)
        return (servers + spares) * self.candidate.config.num_gpus

    @property
    def rival(self) -> PlannedRival | None:
        """The most promising engine of another precision, where only the width of its interval rules it out."""
        objective, engine, planned = self.objective, self.candidate.rival, self.candidate.num_gpus
        if engine is None or objective.value is None or not self.by_confidence:
            return None
        each, spares, even = engine.config.num_gpus, objective.spares, self.by_confidence[0]
        own = replace(self.candidate, deployment=engine, servers=ceil(planned / each), load=None)
        odds = replace(objective.targets or Targets(), confidence=even.confidence)
        fewer = ((even.total_gpus or 0) - 1) // each - spares
        if fewer < 1 or not judged_share(engine, replace(objective, targets=odds), fewer).meets:
            return None
        replayed = replace(self, candidate=own)._replayed
        few, many = replayed(even.confidence, fewer), replayed(objective.confidence, own.servers)
        if 0 < many * each <= planned:
            return None
        names = {"model": engine.model.id, "weight_dtype": engine.config.weight_dtype}
        gpus = (many + spares) * each if many else None
        return PlannedRival(**names, gpus_at_even_odds=(few + spares) * each, total_gpus=gpus)

    @cached_property
    def plain_router(self) -> PlannedRouter | None:
        """Chance in place of the planned router, or the load in place of prefixes where chance will not do."""
        objective, servers = self.objective, self.candidate.servers
        routers: tuple[Router, ...] = ("random", "least-loaded") if objective.router == "prefix-aware" else ("random",)
        if servers == 1 or objective.value is None or self.space.stock is not None or not objective.slos:
            return None
        if objective.by != "rate" or objective.load.classes or objective.router == "random":
            return None
        for router in routers:
            targets = replace(objective.targets or Targets(), router=router)
            behind = replace(self, objective=replace(objective, targets=targets))
            load = judged_share(self.candidate.deployment, behind.objective, servers)
            if load.meets:
                break
        else:
            servers = behind._replayed(objective.confidence, servers + 1)
        return PlannedRouter(
            router=router, targets=tuple(map(PlannedTarget.of, load.readings)), servers=servers or None
        )

    def next_run(self, worth: Callable[[PlannedRung], float]) -> tuple[NextRun, PlannedRung] | None:
        """The run that narrows the size most, by ``worth`` of sizes, and the size after it; None: none does."""
        confidence, load = self.objective.confidence, self.candidate.load
        now = next((rung for rung in self.by_confidence if rung.confidence == confidence), None)
        if now is None or load is None or self.most is None or worth(self.by_confidence[0]) <= worth(now):
            return None
        run = next_run(self.candidate.deployment, replace(load, bound_by=self.most.bound_by))
        if run is None:
            return None
        then = min(self.at(run.confidence(confidence)), self.by_confidence[0], key=worth)  # no run beats even odds
        return (run, then.model_copy(update={"confidence": confidence})) if worth(then) > worth(now) else None

    def benchmark(self) -> Load:
        """The load that the benchmark sends to the one server that it measures.

        For recorded requests random prompts of the mean lengths, with the tokens found in the prefix cache as shared
        prefix. A closed loop begins with a burst, which the targets ignore and a benchmark counts. It sends so many
        requests that the burst lies beyond the percentile, at most ``MOST_PROMPTS_PER_SLOT`` for each place.
        """
        load = self.candidate.load
        if load is None:
            return self.objective.closed_loop(self.candidate.estimate.concurrency)
        sent = load.sent.as_drawn() if load.sent.unsendable else load.sent
        prompts = self.objective.replayed_prompts or sent.num_prompts
        if sent.max_concurrency and not self.objective.replayed_prompts:
            beyond = [100 / (100 - min(slo.percentile or 0.0, 99.9)) for slo in self.objective.slos]
            per_slot = min(max(beyond, default=0.0), defaults.MOST_PROMPTS_PER_SLOT)
            prompts = max(prompts, ceil(per_slot * sent.max_concurrency))
        # prompts that share nothing take more steps than those that were searched
        prompts = min(prompts, MOST_CHUNKS // max(sent.input_len // self.candidate.config.max_num_batched_tokens, 1))
        return replace(sent, num_prompts=prompts)

    def offloading(self, load: ServedLoad) -> PlannedOffloading | None:
        """The worth of ``--kv-offloading-size`` under ``load``, and the load on up to four times as many GPUs without.

        None where host memory keeps no blocks of prompts that share prefixes.
        """
        deployment, objective, servers = self.candidate.deployment, self.objective, self.candidate.servers
        if not (deployment.config.kv_offloading_size and objective.load.reused and self.candidate.load):
            return None
        bare = deployment.with_settings(kv_offloading_size=None)
        serve = partial(share_of, bare, objective, exactly=bool(objective.slos))
        without = serve(servers)
        count: int | None = servers
        if not without.meets:
            count, _, _ = fewest_servers(serve, servers + 1, servers + 1, defaults.TIMES_WITHOUT_OFFLOADING * servers)
        gpus, targets = count and count * deployment.config.num_gpus, tuple(map(PlannedTarget.of, without.readings))
        unaided = Unaided(gpu_share=without.replay.cached_share, targets=targets, total_gpus=gpus)
        share = load.replay.host_share
        return PlannedOffloading(host_share=share, gpu_share=load.replay.cached_share - share, without=unaided)

"""Answers whose size is suspicious: what decides them, and what would change them.

- ``confidence``: more than TIMES as many GPUs as the expected value (even odds) takes.
- ``idle``: more than TIMES as many servers as there are requests in flight, or as somewhat looser targets take.
- ``wait``: a first token that comes after more than WAIT_S on average.
- ``odds``: targets that even odds miss, which refutes the answer, or meet where the answer is no.
- ``pools``: one pool for all classes that takes more GPUs than a pool for each."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal

from planner.errors import PlannerError
from planner.model import ResolvedModel, quantized_checkpoints, resolve_model
from planner.planning import defaults
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, Service
from planner.planning.predict import Reading
from planner.planning.search.comparison import Comparison
from planner.planning.search.fleet import Fleet, Fleets, Terms, divided_fleets
from planner.planning.search.plans import load_words
from planner.planning.search.search import Search
from planner.planning.search.servers import fewest_servers, share_of
from planner.planning.search.space import Candidate, Choices, Objective, Ranking
from planner.units import MS, counted, figure
from planner.workload import targets_in_words

TIMES = defaults.SUSPICIOUS_TIMES
WAIT_S = defaults.SUSPICIOUS_WAIT_S
EVEN = defaults.LADDER[0]  #: the confidence of the expected value
NARROWED = "benchmark.sh of planner recommend -o DIR, then planner calibrate DIR, narrow the interval"

Kind = Literal["confidence", "idle", "wait", "odds", "pools"]


@dataclass(frozen=True, slots=True)
class Doubt:
    kind: Kind
    gpu: str  #: profile id
    said: str  #: the figure, and what decides it
    change: str  #: an option that changes it
    refutes: bool = False  #: the expected value misses the targets

    def __str__(self) -> str:
        return f"{self.gpu}: {self.said}; {self.change}"


def doubts_about_plan(search: Search, candidate: Candidate, plan: Plan) -> Iterator[Doubt]:
    service, objective = plan.service, search.objective
    if service and objective.load.classes and service.request_rate and service.replicas > 1:
        yield from _about_pools(search, candidate, service.total_gpus)
    if service:
        yield from (sizes := tuple(_about_sizes(objective, candidate, service, plan.gpu)))
        if service.request_rate:
            flying = service.request_rate * plan.predicted["mean_e2el_ms"] * MS
            servers, alone = service.replicas - objective.spares, None if sizes else candidate
            yield from _about_idle(search, plan.gpu, servers, flying, alone)
    if (first_s := plan.predicted["mean_ttft_ms"] * MS) > WAIT_S:
        sent, change = plan.workload, "fewer concurrent requests, or more servers, would shorten it"
        most, held = sent.max_concurrency or 0, int(candidate.deployment.requests_of(objective.load))
        places = min(plan.max_num_seqs, held) * plan.data_parallel_size
        decoding_s = plan.predicted["mean_e2el_ms"] * MS - first_s  # in which a place is taken, beside the prefill
        queued = f"the KV cache, which holds {places:,}" if held < plan.max_num_seqs else f"{places:,} places"
        waits = queued if (most / places - 1) * decoding_s > first_s / 2 else "their prefill"
        cause = f"{f'{most:,} prompts' if most else 'prompts'} of {sent.input_len:,} tokens wait for {waits}"
        if most == 1:
            cause = f"the prefill of {sent.input_len:,} tokens"
            change = "more GPUs per server would shorten it: --goal min-latency"
        yield _wait(plan.gpu, first_s, cause, change)


def doubt_about_size(search: Search, candidate: Candidate, plan: Plan) -> Doubt | None:
    """The doubt about a plan beside the best, if even odds take less than half its GPUs: one replay where not."""
    service, objective, targets = plan.service, search.objective, search.objective.targets
    if not (service and service.load_asked and targets and targets.slos and targets.confidence > EVEN):
        return None
    even_odds = replace(objective, targets=replace(targets, confidence=EVEN))
    most = ceil(service.replicas / TIMES) - 1 - objective.spares
    served = partial(share_of, candidate.deployment, even_odds, exactly=True)
    count = fewest_servers(served, 1, most, most)[0] if most > 0 else None
    return _about_interval(objective, candidate, service, plan.gpu, count) if count else None


def _about_pools(search: Search, candidate: Candidate, one_pool: int) -> Iterator[Doubt]:
    gpu = candidate.profile.id
    servings = tuple(one for one in search.space.servings if one.profile.id == gpu)
    objective = replace(search.objective, headroom=0.0)  # the load of a plan includes it
    alone = replace(search, space=replace(search.space, servings=servings), objective=objective)
    each = divided_fleets(alone, Terms(), search.objective.load.classes).best
    if each and each.gpus < one_pool:
        said = f"one pool for all classes takes {counted(one_pool)}, a pool for each takes {each.gpus:,}"
        yield Doubt("pools", gpu, said, "planner fleet plans these")


def doubt_about_refusal(ranking: Ranking, objective: Objective) -> Doubt | None:
    """The doubt where no plan meets the targets with confidence, but the expected value of the closest does."""
    closest, confidence = ranking.closest, objective.confidence
    if closest is None or closest.load is None or not closest.load.stable or confidence <= EVEN:
        return None
    if any(reading.predicted_ms > reading.slo.limit_ms for reading in closest.load.readings):
        return None
    looser = met_limits(closest.load.readings, lone=objective.lone)
    size = "" if objective.lone else ", often of many servers"
    said = f"the expected value meets the targets but not at {confidence:.0%} confidence: the interval decides"
    return Doubt("odds", ranking.profile.id, said, f"--confidence {EVEN:g} or {looser} would give a plan{size}")


def doubts_about_fleets(fleets: Fleets) -> Iterator[Doubt]:
    """Yield the suspicious figures of the best of ``fleets``, and the sizes of others that the interval decides."""
    if (best := fleets.best) is None:
        return
    yield from (sizes := tuple(_about_fleet_sizes(fleets, best) if fleets.search.objective.slos else ()))
    for pool in best.pools:
        name, replay = pool.kind.profile.id, pool.load.replay
        flying = pool.demand.request_rate * float(replay.e2el_s.mean())
        servers = sum(one.servers for one in best.pools if one.place == pool.place)
        alone = pool.kind.candidate if len(best.pools) == 1 and not sizes else None
        of_pool = replace(fleets.search, objective=pool.kind.objective)
        yield from _about_idle(of_pool, name, servers, flying, alone)
        first_s = float(replay.ttft_s.mean())
        if first_s > WAIT_S:
            yield _wait(name, first_s, f"{pool.demand.name} has no target that keeps it short", "add --ttft")
    others = fleets.fleets[1:] if fleets.search.objective.slos and not fleets.search.space.coarse else ()
    yield from (doubt for one in others for doubt in _about_fleet_sizes(fleets, one) if doubt.kind == "confidence")


def doubts_about_comparison(comparison: Comparison) -> Iterator[Doubt]:
    """Yield the GPUs on which requests wait too long, each at the smallest load where they do."""
    seen: set[str] = set()
    for point in sorted(comparison.points, key=lambda point: (point.gpu, point.load)):
        first = point.latency_ms("mean_ttft_ms")
        if first and first.mid * MS > WAIT_S and point.gpu not in seen:
            seen.add(point.gpu)
            load = f"at {point.load:,g} {load_words('rate' if point.workload.open else 'concurrency')} "
            change = "fewer requests, or more GPUs (--packages), would shorten it"
            yield _wait(point.gpu, first.mid * MS, point.bound_by, change, load)


def met_limits(readings: Sequence[Reading], *, lone: bool = False) -> str:
    """Flags with limits that other draws meet too, for the targets that are missed; empty where none is."""
    # TTFT has the queue of a load that is found to TOLERANCE; a ``lone`` request meets none
    scatters = {"ttft": 1.0 if lone else 1 + 2 * defaults.TOLERANCE}
    missed = ((one.slo, ceil(one.expected_ms * scatters.get(one.slo.metric, 1))) for one in readings if not one.met)
    flags = (f"{slo.metric}={ms} of --class {slo.group}" if slo.group else f"--{slo.metric} {ms}" for slo, ms in missed)
    return " ".join(flags)


def _wait(gpu: str, first_s: float, cause: str, change: str, load: str = "") -> Doubt:
    return Doubt("wait", gpu, f"{load}the first token comes after {first_s:,.0f} s on average ({cause})", change)


def _about_idle(search: Search, gpu: str, servers: int, flying: float, candidate: Candidate | None) -> Iterator[Doubt]:
    """Yield the doubt about so many servers; ``candidate`` is None where something else decides their number."""
    asked, change, size = search.objective, "", counted(servers, "server")
    if candidate and flying < defaults.SUSPICIOUS_IN_FLIGHT * servers:
        gpus = servers * candidate.config.num_gpus
        if servers == 1 or flying < 1.0:  # one server has time for all
            change = _smaller(search, candidate, int(gpus / TIMES))
            size = candidate.profile.counted(gpus) if change else size
        if servers > 1 and not change:
            change = _looser(candidate.deployment, asked, servers)
    if not change and servers > TIMES * max(flying, 1.0):
        change = f"a looser target than {targets_in_words(asked.slos)} would take fewer"
    if change:
        said = f"{size} for {figure(flying, 2)} concurrent requests: latency decides, not throughput"
        yield Doubt("idle", gpu, said, change)


def _smaller(search: Search, candidate: Candidate, most: int) -> str:
    """Return the targets that the smallest server of the checkpoint meets, and a 4-bit one's where that is smaller."""
    asked = search.space.model
    if not search.objective.targets or search.objective.value is None or search.objective.load.classes:
        return ""
    own = _smallest(search, candidate, candidate.resolved, most)
    made = quantized_checkpoints(asked.resolved) if asked.source != "path" and not search.space.weight_dtype else ()
    narrow = (resolve_model(one.id, network=False) for one in made if one.weight_dtype.startswith("int4"))
    fewer = (_smallest(search, candidate, one, own[0] - 1 if own else most) for one in narrow)
    ways = filter(None, (own, min(filter(None, fewer), default=None)))
    return "; ".join(f"{words} would take {candidate.profile.counted(gpus)}" for gpus, _, words in ways)


def _smallest(
    search: Search, candidate: Candidate, resolved: ResolvedModel, most: int
) -> tuple[int, float, str] | None:
    """GPUs of the smallest server up to ``most`` that comes within LOOSEST of the targets, by how much, and options."""
    serving = next(one for one in search.space.servings if one.profile.id == candidate.profile.id)
    choices = Choices(search.space, search.objective, serving)
    engines = (one for one in choices.engines(resolved) if one.num_gpus == one.tensor_parallel_size <= most)
    for args in sorted(engines, key=lambda one: one.num_gpus):
        with suppress(PlannerError):
            places = min(choices.largest_batch(resolved, args), defaults.USUAL_BATCH)
            engine = choices.deployed(resolved, replace(args, max_num_seqs=max(places, 1)))
            load = share_of(engine, search.objective, 1, exactly=True)
            other = resolved.resolved if resolved.resolved != candidate.resolved.resolved else ""
            options = f"{other} {met_limits(load.readings)}".strip()
            if places and options and load.excess <= defaults.LOOSEST:
                return args.num_gpus, load.excess, options
    return None


def _looser(deployment: Deployment, objective: Objective, servers: int) -> str:
    """Return somewhat looser targets with which such engines, in larger batches, take at most half the GPUs."""
    if not objective.targets or objective.value is None or objective.load.classes:
        return ""
    slos = tuple(replace(slo, limit_ms=defaults.LOOSER * slo.limit_ms) for slo in objective.slos)
    looser, config = replace(objective, targets=replace(objective.targets, slos=slos)), deployment.config
    places = min(max(config.max_num_seqs, defaults.USUAL_BATCH), config.most_decodes)
    wide = deployment.with_settings(max_num_seqs=places)
    engine, half = wide if wide.fits else deployment, int(servers / TIMES)
    count, *_ = fewest_servers(lambda count: share_of(engine, looser, count, exactly=True), 1, half, half)
    flags = " ".join(f"--{slo.metric} {slo.limit_ms:g}" for slo in slos)
    return f"{flags} would take {deployment.profile.counted(count * config.num_gpus)}" if count else ""


def _about_sizes(objective: Objective, candidate: Candidate, service: Service, gpu: str) -> Iterator[Doubt]:
    rungs = {rung.confidence: rung for rung in service.ladder}
    even, now = rungs.get(EVEN), rungs.get(service.confidence)
    if even is None or now is None:
        return
    if not even.largest_load:
        yield _refuted(gpu, objective)
    elif objective.value is None:
        if now.largest_load and even.largest_load > TIMES * now.largest_load:
            ratio, unit = even.largest_load / now.largest_load, service.load_unit
            server = f"one server of {candidate.profile.counted(candidate.config.num_gpus)}"
            said = f"{server} carries {now.largest_load:,.3g} {unit}, the expected value is {ratio:,.1f} times that"
            change = f"--confidence {EVEN:g} takes it; {NARROWED}"
            yield Doubt("confidence", gpu, f"{said}: {_interval(service)} decides", change)
    elif even.total_gpus and now.total_gpus and now.total_gpus > TIMES * even.total_gpus:
        servers = even.total_gpus // candidate.config.num_gpus - objective.spares
        yield _about_interval(objective, candidate, service, gpu, servers)


def _about_interval(objective: Objective, candidate: Candidate, service: Service, gpu: str, even: int) -> Doubt:
    """The doubt about a size of which ``even`` servers are enough at even odds."""
    gpus = (even + objective.spares) * candidate.config.num_gpus
    looser = met_limits(share_of(candidate.deployment, objective, even, exactly=True).readings)
    size = candidate.profile.counted(service.total_gpus)
    return _too_many(gpu, size, service.total_gpus / gpus, gpus, _interval(service), looser)


def _interval(service: Service) -> str:
    tightest = max(service.targets, key=lambda target: target.expected_ms / target.limit_ms)
    return f"the interval of {service.bound_by or tightest.slo}"


def _about_fleet_sizes(fleets: Fleets, fleet: Fleet) -> Iterator[Doubt]:
    objective, even = fleets.search.objective, fleet.by_confidence[0]
    gpu = " + ".join(rented.profile.id for rented in fleet.rented)
    if even.gpus is None:
        yield _refuted(gpu, objective)
    elif fleet.gpus > TIMES * even.gpus:
        pool, looser = fleet.busiest, ""
        if len(fleet.pools) == 1:
            spares = sum(count for _, count in fleet.spares)
            servers = max(even.gpus * pool.kind.profile.parts // pool.kind.num_gpus - spares, 1)
            share = share_of(pool.kind.deployment, pool.kind.objective, servers, exactly=True)
            looser = met_limits(share.readings)
        interval = f"the interval of {pool.load.bound_by or pool.load.binding}"
        yield _too_many(gpu, counted(fleet.gpus), fleet.gpus / even.gpus, even.gpus, interval, looser)


def _too_many(gpu: str, size: str, ratio: float, even: int, interval: str, looser: str) -> Doubt:
    said = f"{size} are {ratio:,.1f} times the {even:,} of the expected value: {interval} decides"
    options = " or ".join(filter(None, (looser, f"--confidence {EVEN:g}")))
    return Doubt("confidence", gpu, said, f"{options} would take about {even:,} or fewer; {NARROWED}")


def _refuted(gpu: str, objective: Objective) -> Doubt:
    asked = f"only {objective.confidence:.0%} confidence is asked for"
    said = f"the expected value misses {targets_in_words(objective.slos)}; {asked}"
    return Doubt("odds", gpu, said, "looser targets, or another GPU, would meet them", refutes=True)

"""Fleets: the cheapest servers of each type of GPU alone, and of a mix, with what they cost and draw.

Cost spans from the cheapest offer to the dearest. The ladder says what other confidences in the targets would take.
Power is that of the boards of everything that is rented.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import get_args

from planner import progress
from planner.engine import EngineConfig
from planner.hardware import GpuProfile
from planner.planning import defaults
from planner.planning.capacity import steady_rate
from planner.planning.cost import HOUR_S, MILLION, Price, Span, power_w, price_of
from planner.planning.defaults import Objective
from planner.planning.deployment import Deployment
from planner.planning.fleet.kinds import (
    FleetRequest,
    NoServer,
    ServerKind,
    capacity_of,
    carries,
    dealt_kinds,
    rate_at,
    server_kinds,
)
from planner.planning.fleet.mix import Mix, Offer, Rent, cheapest_mix
from planner.planning.largest import smallest
from planner.planning.next_run import NextRun, next_run
from planner.planning.predict import ServedLoad
from planner.simulator import Replay
from planner.workload import MIXED_PROMPTS, Load, Router, too_rare

ROUTERS: tuple[Router, ...] = get_args(Router)


@dataclass(frozen=True)
class Pool:
    """Equal servers that serve one class."""

    demand: Load
    kind: ServerKind
    servers: int
    load: ServedLoad  #: the largest of one of them


@dataclass(frozen=True)
class Rented:
    """GPUs of one type, with what they cost."""

    profile: GpuProfile
    price: Price | None
    gpus: int  #: whole ones that are paid for

    @property
    def nodes(self) -> int:
        """Nodes that they fill, the last one perhaps in part."""
        return ceil(self.gpus / max(self.profile.gpus_per_node // self.profile.parts, 1))

    @property
    def usd_per_h(self) -> Span | None:
        """What they rent for."""
        return self.price.usd_per_h.times(self.gpus * self.profile.parts) if self.price else None

    @property
    def power_w(self) -> float | None:
        """Board power."""
        watts = power_w(self.profile)
        return watts * self.gpus * self.profile.parts if watts else None


@dataclass(frozen=True, slots=True)
class Rung:
    """What the targets take at one confidence."""

    confidence: float
    gpus: int | None  #: that are paid for; None: no number of them keeps the targets
    usd_per_h: Span | None


@dataclass(frozen=True, slots=True)
class Offloading:
    """What ``--kv-offloading-size`` is worth: shares of the prompt tokens, and the same servers without it."""

    host_share: float
    gpu_share: float
    without_gpu_share: float
    without_rate: float  #: requests per second that one of them carries; never more than with it
    without_gpus: int | None  #: that are paid for, of the same kind; None: no number keeps the targets


@dataclass(frozen=True)
class Fleet:
    """Servers that carry every class, their spares, and what is rented for them."""

    asked: FleetRequest
    pools: tuple[Pool, ...]
    spares: tuple[tuple[ServerKind, int], ...]
    rented: tuple[Rented, ...]
    proven: bool  #: whether nothing of these kinds is cheaper for certain

    @property
    def servers(self) -> int:
        """Servers, spares included."""
        return sum(pool.servers for pool in self.pools) + sum(count for _, count in self.spares)

    @property
    def gpus(self) -> int:
        """Whole GPUs that are paid for."""
        return sum(rented.gpus for rented in self.rented)

    @property
    def nodes(self) -> int:
        """Nodes, of all types together."""
        return sum(rented.nodes for rented in self.rented)

    def utilisation(self, demand: Load) -> float:
        """Share of the largest load of its pools that a class makes up; spares do not count."""
        return demand.request_rate / sum(p.servers * p.load.value for p in self.pools if p.demand is demand)

    @property
    def busiest(self) -> Pool:
        """A pool of the class that is nearest to its largest load."""
        return max(self.pools, key=lambda pool: self.utilisation(pool.demand))

    @cached_property
    def reuse(self) -> dict[Router, float]:
        """Share of the prompt tokens that comes from the prefix caches, by router; empty where it is not known."""
        (pool, *others) = self.pools
        if others or not pool.demand.reused:
            return {}
        routers = ROUTERS if pool.servers > 1 else ROUTERS[:1]
        return {router: _share_of(pool, pool.kind.deployment, router).cached_share for router in routers}

    @cached_property
    def offloading(self) -> Offloading | None:
        """What ``--kv-offloading-size`` is worth; None where host memory keeps no blocks of a known load."""
        (pool, *others), asked = self.pools, self.asked
        deployment = pool.kind.deployment
        if others or not pool.demand.reused or not deployment.config.kv_offloading_size:
            return None
        bare = replace(deployment, config=replace(deployment.config, kv_offloading_size=None))
        served = _share_of(pool, deployment, asked.router)
        rate = min(rate_at(asked, bare, pool.demand, asked.confidence), pool.load.value)
        rented = _solved(asked, self.kinds, "gpus", [(rate,)])[1] if rate else ()
        return Offloading(
            host_share=served.host_share,
            gpu_share=served.cached_share - served.host_share,
            without_gpu_share=_share_of(pool, bare, asked.router).cached_share,
            without_rate=rate,
            without_gpus=sum(part.gpus for part in rented) or None,
        )

    @property
    def power_w(self) -> float | None:
        """Board power of all that is rented; None where that of one is not known."""
        watts = [rented.power_w for rented in self.rented]
        return sum(w for w in watts if w) if all(watts) else None

    @cached_property
    def usd_per_h(self) -> Span | None:
        """What it rents for; None where a price is not known."""
        return _usd(self.rented)

    @cached_property
    def ladder(self) -> tuple[Rung, ...]:
        """What servers of the same kinds take at other confidences."""
        return tuple(self._rung(confidence) for confidence in defaults.LADDER)

    def _rung(self, confidence: float) -> Rung:
        if confidence == self.asked.confidence or not self.asked.slos:
            return Rung(confidence, self.gpus, _usd(self.rented))
        progress.say(f"{confidence:.0%} confidence on {' and '.join(kind.profile.id for kind in self.kinds)}")
        _, rented = _solved(self.asked, self.kinds, "gpus", _rates(self.asked, self.pools, confidence))
        return Rung(confidence, sum(part.gpus for part in rented) or None, _usd(rented) if rented else None)

    @cached_property
    def carries(self) -> Span | None:
        """Requests per second that the servers of the only pool carry, spares left out, with the 90 % interval.

        None for several pools.
        """
        if len(self.pools) > 1:
            return None
        (pool,), asked = self.pools, self.asked
        most, deployment, sent = pool.load.value, pool.kind.deployment, pool.demand
        if asked.slos:
            low, high = capacity_of(asked, deployment, sent).interval(most)
        else:
            low, high = (steady_rate(deployment, sent, confidence=odds) for odds in (0.95, 0.05))
        return Span(low, most, high).times(pool.servers)

    @cached_property
    def measure_next(self) -> tuple[NextRun, Rung] | None:
        """The run that is worth most, and what is expected after it; None where nothing hangs on it.

        Of a fleet with one pool: of several, each would have to be measured.
        """
        now = self._rung(self.asked.confidence)
        if len(self.pools) > 1 or not self.asked.slos or self.ladder[0].gpus == now.gpus:
            return None
        (pool,), confidence = self.pools, self.asked.confidence
        run = next_run(pool.kind.deployment, pool.load)
        if run is None:
            return None
        deployment, demand = pool.kind.deployment, pool.demand
        first = rate_at(self.asked, deployment, demand, confidence)
        gained = rate_at(self.asked, deployment, demand, run.confidence(confidence)) / first if first else 0.0
        _, rented = _solved(self.asked, self.kinds, "gpus", [(pool.load.value * max(gained, 1.0),)])
        then = Rung(confidence, sum(part.gpus for part in rented), _usd(rented))
        return (run, then) if now.gpus and then.gpus and then.gpus < now.gpus else None

    @property
    def kinds(self) -> tuple[ServerKind, ...]:
        """The kinds of servers in use, each once."""
        return tuple({pool.kind.deployment.config: pool.kind for pool in self.pools}.values())

    @property
    def usd_per_million_tok(self) -> Span | None:
        """USD for 1M output tokens at the load that is asked for; None where no price is known, or it is zero."""
        usd = self.usd_per_h
        tok_per_s = sum(demand.output_tok_per_s for demand in self.asked.demands)
        return usd.times(MILLION / HOUR_S / tok_per_s) if usd and usd.mid > 0 else None

    @property
    def tok_per_joule(self) -> float | None:
        """Output tokens for one joule at board power, at the load that is asked for."""
        tok_per_s = sum(demand.output_tok_per_s for demand in self.asked.demands)
        return tok_per_s / self.power_w if self.power_w else None

    def weight(self, objective: Objective) -> float:
        """What is minimised; infinite where it is not known."""
        if objective == "gpus":
            return self.gpus
        if objective == "watts":
            return self.power_w or inf
        usd = _usd(self.rented)
        return usd.mid if usd else inf


@dataclass(frozen=True)
class Fleets:
    """The answer: each GPU alone, best first, and a mix where that is better than all of them."""

    asked: FleetRequest
    single: tuple[Fleet, ...]
    mix: Fleet | None
    objective: Objective  #: what was minimised: without any price, GPUs
    refused: tuple[NoServer, ...]
    shapes: tuple[Fleet | None, Fleet | None] | None = None  #: of several classes: a pool for each, and one for all

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """All that there are, the best first."""
        return (self.mix, *self.single) if self.mix else self.single

    @property
    def best(self) -> Fleet | None:
        """The fleet to rent."""
        return next(iter(self.fleets), None)


def plan_fleets(asked: FleetRequest) -> Fleets:
    """Fleets for the load; of each GPU the better of two shapes.

    Each class gets servers of its own, or every server takes all classes. Raises InputError for what the user did.
    """
    if len(asked.demands) == 1 and asked.demands[0].reused:
        return _dealt(asked)
    apart = fleets_of(asked, *server_kinds(asked))
    if len(asked.demands) == 1 or too_rare(asked.demands, MIXED_PROMPTS):
        return apart
    mixed = replace(asked, demands=(Load.classes_of(asked.demands, name="all"),))
    one_pool = fleets_of(mixed, *server_kinds(mixed))
    return replace(better(apart, one_pool), shapes=(apart.best, one_pool.best))


def _dealt(asked: FleetRequest) -> Fleets:
    """Fleets for requests whose prompts have something in common: what a server finds depends on what it is sent.

    Of each GPU alone, and of as many servers as the requests are dealt to.
    """
    single: list[Fleet] = []
    refused: list[NoServer] = []
    objective = asked.objective
    for profile in asked.gpus:
        one = replace(asked, gpus=(profile,))
        kinds, none = dealt_kinds(one)
        refused += none
        found = [fleets_of(_dealt_to(one, kind.candidate.servers), [kind]) for kind in kinds]
        if not found:
            continue
        fleets = min(found, key=lambda each: each.best.weight(each.objective) if each.best else inf)
        single += fleets.single
        refused += fleets.refused
        objective = fleets.objective
    return _ranked(asked, single, None, objective, refused)


def _dealt_to(asked: FleetRequest, servers: int) -> FleetRequest:
    """With the requests that one of ``servers`` gets."""
    (demand,) = asked.demands
    return replace(asked, demands=(demand.dealt(servers, asked.router),))


def better(one: Fleets, other: Fleets) -> Fleets:
    """Of each GPU the fleet that has less of what is minimised, the first where both have as much."""
    objective = one.objective
    by_gpu: dict[str, Fleet] = {}
    for fleet in (*one.single, *other.single):
        gpu = fleet.rented[0].profile.id
        if gpu not in by_gpu or fleet.weight(objective) < by_gpu[gpu].weight(objective):
            by_gpu[gpu] = fleet
    mixes = [fleet for fleet in (one.mix, other.mix) if fleet]
    mix = min(mixes, key=lambda fleet: fleet.weight(objective), default=None)
    refused = [gone for gone in one.refused if gone.profile.id not in by_gpu]
    return _ranked(one.asked, by_gpu.values(), mix, objective, refused)


def _ranked(
    asked: FleetRequest, single: Iterable[Fleet], mix: Fleet | None, objective: Objective, refused: Iterable[NoServer]
) -> Fleets:
    """The answer in its order; a mix that is no better than the best of one GPU is none."""
    ordered = tuple(sorted(single, key=lambda fleet: (fleet.weight(objective), fleet.gpus)))
    if mix and ordered and mix.weight(objective) >= ordered[0].weight(objective) * (1 - 1e-9):
        mix = None
    return Fleets(asked, ordered, mix, objective, tuple(refused))


def fleets_of(asked: FleetRequest, kinds: Sequence[ServerKind], refused: Sequence[NoServer] = ()) -> Fleets:
    """Fleets for the load, of these kinds of servers; ``refused`` are the GPUs that have none."""
    refused = list(refused)
    objective = asked.objective
    priced = {kind.profile.id for kind in kinds if price_of(kind.profile, asked.prices)}
    if objective == "usd" and not priced:
        objective = "gpus"
    single = []
    for profile in dict.fromkeys(kind.profile.id for kind in kinds):
        own = [kind for kind in kinds if kind.profile.id == profile]
        # one type of GPU needs no price: its own fewest GPUs are its cheapest
        fleet = _fleet(asked, own, "gpus")
        if fleet:
            single.append(fleet)
        else:
            refused.append(NoServer(own[0].profile, _why_no_fleet(asked, own)))
    known = [kind for kind in kinds if objective != "usd" or kind.profile.id in priced]
    mix = _fleet(asked, known, objective) if len({kind.profile.id for kind in known}) > 1 else None
    return _ranked(asked, single, mix, objective, refused)


def _fleet(asked: FleetRequest, kinds: Sequence[ServerKind], objective: Objective) -> Fleet | None:
    """The cheapest fleet of these kinds; None where they do not carry every class."""
    mix, rented = _solved(asked, kinds, objective, [kind.capacity for kind in kinds])
    if mix is None:
        return None
    pools = tuple(
        Pool(demand, kind, mix.servers[c][k], load)
        for c, demand in enumerate(asked.demands)
        for k, kind in enumerate(kinds)
        if mix.servers[c][k] and (load := kind.loads[c])
    )
    spares = tuple((kind, count) for kind, count in zip(kinds, mix.spares, strict=True) if count)
    return Fleet(asked, pools, spares, rented, mix.proven)


def _share_of(pool: Pool, deployment: Deployment, router: Router) -> Replay:
    """What one server of a pool serves of a known load, dealt by ``router``."""
    part = pool.demand.dealt(pool.servers, router, defaults.TRACE_PROMPTS)
    return deployment.replay(part.at_rate(pool.demand.request_rate / pool.servers, part.count))


def _solved(
    asked: FleetRequest, kinds: Sequence[ServerKind], objective: Objective, capacities: Sequence[tuple[float, ...]]
) -> tuple[Mix | None, tuple[Rented, ...]]:
    """The cheapest mix of ``kinds`` with these capacities, and what is rented for it."""
    profiles = list({kind.profile.id: kind.profile for kind in kinds}.values())
    places = {profile.id: index for index, profile in enumerate(profiles)}
    rents = [_rent(asked, profile, objective) for profile in profiles]
    offers = [
        Offer(places[kind.profile.id], kind.num_gpus, capacity)
        for kind, capacity in zip(kinds, capacities, strict=True)
    ]
    mix = cheapest_mix(asked.loads, offers, rents, asked.n_plus)
    rented = tuple(
        Rented(profile, price_of(profile, asked.prices), units * rent.gpus // profile.parts)
        for profile, rent, units in zip(profiles, rents, mix.units if mix else (), strict=bool(mix))
        if units
    )
    return mix, rented


def _rates(asked: FleetRequest, pools: Sequence[Pool], confidence: float) -> list[tuple[float, ...]]:
    """Capacities of the kinds in use for the classes that they serve, at another confidence.

    Of a single pool nothing but the number of servers follows from it, so with less confidence that number is searched.
    """
    if len(pools) == 1 and asked.slos and confidence < asked.confidence:
        return [(asked.loads[0] / _fewest(asked, pools[0], confidence),)]
    found: dict[EngineConfig, list[float]] = {}
    for pool in pools:
        capacity = found.setdefault(pool.kind.deployment.config, [0.0] * len(asked.demands))
        most = rate_at(asked, pool.kind.deployment, pool.demand, confidence)
        # bisection stops a little short: more confidence never carries more
        bound = max if confidence < asked.confidence else min
        capacity[asked.demands.index(pool.demand)] = bound(most, pool.load.value)
    return [tuple(capacity) for capacity in found.values()]


def _fewest(asked: FleetRequest, pool: Pool, confidence: float) -> int:
    """Servers that carry the class of a pool with less ``confidence``; never more than the pool has."""
    (load,) = asked.loads
    return smallest(
        lambda servers: carries(asked, pool.kind.deployment, pool.demand, load / servers, confidence), 1, pool.servers
    )


def _rent(asked: FleetRequest, profile: GpuProfile, objective: Objective) -> Rent:
    """What is rented at once of one type of GPU, and what it costs in the currency of the objective."""
    gpus = profile.gpus_per_node if asked.rented_by == "node" else profile.parts
    price = price_of(profile, asked.prices)
    weight = {
        "gpus": gpus / profile.parts,
        "watts": (power_w(profile) or 0.0) * gpus,
        "usd": price.usd_per_h.mid * gpus if price else inf,
    }[objective]
    stock = asked.stock.get(profile.id, asked.stock.get(profile.whole, inf))
    return Rent(weight, gpus, stock if stock == inf else stock * profile.parts // gpus)


def _why_no_fleet(asked: FleetRequest, kinds: Sequence[ServerKind]) -> str:
    for c, demand in enumerate(asked.demands):
        if not any(kind.capacity[c] for kind in kinds):
            return f"{demand.name}: no server keeps the targets"
    return "the load needs more GPUs than --stock has"


def _usd(rented: Sequence[Rented]) -> Span | None:
    spans = [part.usd_per_h for part in rented]
    if any(span is None for span in spans):
        return None
    known = [span for span in spans if span]
    return Span(sum(s.low for s in known), sum(s.mid for s in known), sum(s.high for s in known))

"""Fleets: the cheapest servers of each type of GPU, and of a mix, with their cost and power.

The engines that carry each class on the fewest GPUs are tried on the other classes; ``mix`` picks how many of each to
rent. Classes get servers of their own or share all servers, whichever is cheaper. Power is that of all boards rented.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, inf
from statistics import fmean
from typing import get_args

from planner import progress
from planner.engine import EngineConfig
from planner.hardware import GpuProfile
from planner.planning import defaults
from planner.planning.capacity import Capacity, Steady
from planner.planning.cost import MILLION_PER_S, Rented, power_w, price_of
from planner.planning.defaults import Objective as Minimised
from planner.planning.defaults import RentedBy
from planner.planning.deployment import Deployment
from planner.planning.largest import ROUNDING
from planner.planning.plan import PlannedOffloading, PlannedRouter, PlannedRung
from planner.planning.predict import ServedLoad
from planner.planning.search.comparison import Departures
from planner.planning.search.mix import Mix, Offer, Rent, cheapest_mix
from planner.planning.search.plans import for_users
from planner.planning.search.search import Search
from planner.planning.search.servers import NextRun, Servers
from planner.planning.search.space import Candidate, Ranking, Refused
from planner.units import DAY_S, Interval
from planner.workload import MIXED_PROMPTS, Load, Router, Targets, too_rare

ROUTERS: tuple[Router, ...] = get_args(Router)


@dataclass(frozen=True)
class Terms:
    """Terms of a rental: the quantity to minimise, the billing unit and the stock."""

    minimise: Minimised = "usd"
    rent: RentedBy = "gpu"
    stock: Mapping[str, int] = field(default_factory=dict)  #: most whole GPUs, by profile id


@dataclass(frozen=True)
class Kind(Servers):
    """One engine, and the largest load of one server of it for each class; None: it misses the targets."""

    ranking: Ranking  #: that it is of
    loads: dict[int, ServedLoad | None]  #: by the place of the class
    below: dict[int, float] = field(default_factory=dict)  #: bounds: behind a router fewer servers carry less each

    @cached_property
    def departures(self) -> tuple[str, ...]:
        """Departures of the line for its users from the recipe of the model, each with the reason."""
        served = for_users(self.space, self.objective, self.candidate)
        return tuple(Departures(self.space, self.objective, self.ranking, served).of())

    @property
    def deployment(self) -> Deployment:
        return self.candidate.deployment

    @property
    def profile(self) -> GpuProfile:
        return self.candidate.profile

    @property
    def num_gpus(self) -> int:
        return self.candidate.config.num_gpus

    @property
    def key(self) -> tuple[str, EngineConfig]:
        return self.profile.id, self.candidate.config  # GPUs alike may have equal settings

    @property
    def rates(self) -> tuple[float, ...]:
        """Requests per second of each class, which take the servers that were searched; 0: it cannot serve it."""
        loads = sorted(self.loads.items())
        return tuple(min(load.value, self.below.get(place, inf)) if load else 0.0 for place, load in loads)


@dataclass(frozen=True)
class Pool:
    """Equal servers that serve one class."""

    place: int  #: of the class
    demand: Load  #: headroom included
    kind: Kind
    servers: int
    load: ServedLoad  #: the largest of one of them


@dataclass(frozen=True, slots=True)
class Rung:
    """GPUs and rent at one confidence in the targets."""

    confidence: float
    gpus: int | None  #: that are paid for, in stock or not; None: no number of them meets the targets
    usd_per_h: Interval | None


@dataclass(frozen=True)
class Fleet:
    """Servers that carry every class, their spares, and the GPUs that are rented for them."""

    solver: "_Solver"
    pools: tuple[Pool, ...]
    spares: tuple[tuple[Kind, int], ...]
    rented: tuple[Rented, ...]
    proven: bool  #: whether nothing of these kinds is cheaper for certain

    @property
    def servers(self) -> int:
        return sum(pool.servers for pool in self.pools) + sum(count for _, count in self.spares)

    @property
    def gpus(self) -> int:
        return sum(rented.gpus for rented in self.rented)

    @property
    def nodes(self) -> int:
        return sum(rented.nodes for rented in self.rented)

    def utilisation(self, pool: Pool) -> float:
        """Share of the largest load of its pools that the class of ``pool`` makes up; spares do not count."""
        most = sum(one.servers * one.load.value for one in self.pools if one.place == pool.place)
        return pool.demand.request_rate / (1 + self.solver.headroom) / most

    @property
    def used(self) -> float | None:
        """Share of the largest load of the busiest pool; None where that load was not searched."""
        objective, space = self.solver.objectives[0], self.solver.search.space
        searched = space.stock is not None or not (space.coarse or objective.load.reused)
        return self.utilisation(self.busiest) if searched else None

    @property
    def busiest(self) -> Pool:
        """A pool of the class that is nearest to its largest load."""
        return max(self.pools, key=self.utilisation)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple({pool.kind.key: pool.kind for pool in self.pools}.values())

    @property
    def power_w(self) -> float | None:
        """Board power of all that is rented; None where that of one is not known."""
        watts = [rented.power_w for rented in self.rented]
        return sum(w for w in watts if w) if all(watts) else None

    @cached_property
    def usd_per_h(self) -> Interval | None:
        return _usd(self.rented)

    @property
    def request_rate(self) -> float:
        return sum(demand.request_rate for demand in self.solver.demands) / (1 + self.solver.headroom)

    @property
    def requests_in_flight(self) -> float:
        """Requests in flight on average: users who wait for an answer."""
        return sum(pool.load.in_flight * pool.servers * self.utilisation(pool) for pool in self.pools)

    @property
    def sessions_at_once(self) -> float | None:
        load = self.solver.search.objective.load
        return load.sessions_at_once(self.request_rate, self.requests_in_flight)

    @property
    def output_tok_per_s(self) -> float:
        return sum(demand.output_tok_per_s for demand in self.solver.demands) / (1 + self.solver.headroom)

    @property
    def output_tok_per_day(self) -> float:
        return self.output_tok_per_s * DAY_S

    @property
    def usd_per_million_tok(self) -> Interval | None:
        """USD per 1M output tokens at the asked load; None where no price is known, or it is zero."""
        usd = self.usd_per_h
        return usd.scaled(MILLION_PER_S / self.output_tok_per_s) if usd and usd.mid > 0 else None

    @property
    def tok_per_joule(self) -> float | None:
        """Output tokens for one joule at board power, at the asked load."""
        return self.output_tok_per_s / self.power_w if self.power_w else None

    def weight(self, minimise: Minimised) -> float:
        """The quantity that is minimised; infinite where it is not known."""
        weights = {"gpus": self.gpus, "watts": self.power_w, "usd": self.usd_per_h.mid if self.usd_per_h else None}
        return inf if (known := weights[minimise]) is None else known

    @property
    def _only(self) -> Pool | None:
        return self.pools[0] if len(self.pools) == 1 else None

    @cached_property
    def by_confidence(self) -> tuple[Rung, ...]:
        """GPUs at 50, 80 and 95 % confidence, of servers of the same kinds."""
        return tuple(self._at(confidence) for confidence in defaults.LADDER)

    def _at(self, confidence: float) -> Rung:
        if confidence == self.solver.confidence or not self.solver.objectives[0].slos:
            return Rung(confidence, self.gpus, self.usd_per_h)
        progress.say(f"{confidence:.0%} confidence on {' and '.join(kind.profile.id for kind in self.kinds)}")
        capacities = {kind.key: [0.0] * len(self.solver.demands) for kind in self.kinds}
        for pool in self.pools:
            capacities[pool.kind.key][pool.place] = self._carried(pool, self.solver.sized(pool).at(confidence))
        return self._rented(confidence, [tuple(capacity) for capacity in capacities.values()])

    @cached_property
    def with_margin(self) -> int | None:
        """GPUs with the headroom and the spares of ``defaults.MARGIN``; None where a margin was asked for."""
        search, (headroom, spares) = self.solver.search, defaults.MARGIN
        if search.objective.headroom or search.objective.spares or search.space.stock is not None:
            return None
        spared = copy(self.solver)
        spared.search = replace(search, objective=replace(search.objective, spares=spares))
        carried = [tuple(each / (1 + headroom) for each in kind.rates) for kind in self.kinds]
        return replace(self, solver=spared)._rented(self.solver.confidence, carried).gpus

    def _carried(self, pool: Pool, size: PlannedRung) -> float:
        """Load of one server, as little above the pool's share as so many servers take."""
        if size.total_gpus is None or self._only is None:
            return size.largest_load
        servers = size.total_gpus // pool.kind.num_gpus - self.solver.search.objective.spares
        return max(size.largest_load, pool.demand.request_rate / servers)

    def _rented(self, confidence: float, capacities: Sequence[tuple[float, ...]]) -> Rung:
        solve, terms = partial(self.solver.solved, self.kinds, "gpus", capacities), self.solver.terms
        rented = solve(terms)[1] or solve(replace(terms, stock={}))[1]
        return Rung(confidence, sum(part.gpus for part in rented) or None, _usd(rented) if rented else None)

    @cached_property
    def carries(self) -> Interval | None:
        """Requests per second of the only pool of servers, with the 90 % interval; None where it is not searched."""
        if (pool := self._only) is None:
            return None
        servers = self.solver.sized(pool)
        if servers.objective.slos:
            most, interval = servers.most, servers.interval
            return Interval(most.value, *interval).scaled(pool.servers) if most and interval else None
        deployment, most = pool.kind.candidate.deployment, servers.most or pool.load
        low, high = map(Steady.of(deployment, most.prediction.as_found).rate, (0.95, 0.05))
        return Interval(most.value, low, high).scaled(pool.servers)

    @cached_property
    def measure_next(self) -> tuple[NextRun, Rung] | None:
        """The run that narrows the size most, and the size expected after it; None where it would change nothing."""
        pool = self._only
        if pool is None or not self.solver.objectives[0].slos or self.by_confidence[0].gpus == self.gpus:
            return None
        narrowing = self.solver.sized(pool).next_run(lambda size: -(size.total_gpus or inf))
        if narrowing is None:
            return None
        run, size = narrowing
        then = self._rented(size.confidence, [(self._carried(pool, size),)])
        return (run, then) if then.gpus and then.gpus < self.gpus else None

    @cached_property
    def reuse(self) -> dict[Router, float]:
        """Share of the prompt tokens that comes from the prefix caches, by router; empty where it is not known."""
        pool = self._only
        if pool is None or not pool.demand.reused:
            return {}
        routers = ROUTERS if pool.servers > 1 else (self.solver.search.objective.router,)
        candidate, load = pool.kind.candidate, pool.kind.objective.load
        shares = {router: load.share_of(candidate.servers, router, defaults.TRACE_PROMPTS) for router in routers}
        return {router: candidate.deployment.replay(share).cached_share for router, share in shares.items()}

    @cached_property
    def plain_router(self) -> PlannedRouter | None:
        """A plainer router between the servers of the only pool; None for several pools."""
        return self.solver.sized(self._only).plain_router if self._only else None

    @cached_property
    def offloading(self) -> tuple[PlannedOffloading, float, int | None] | None:
        """The worth of ``--kv-offloading-size``; without it, requests per second of a server, and GPUs to pay for.

        None where host memory keeps no blocks of shared prefixes."""
        pool = self._only
        found = pool.kind.offloading(pool.load) if pool else None
        if pool is None or found is None:
            return None
        servers = (found.without.total_gpus or 0) // pool.kind.num_gpus
        rate = pool.demand.request_rate / servers if servers else 0.0
        return found, rate, self._rented(self.solver.confidence, [(rate,)]).gpus if rate else None


@dataclass(frozen=True)
class Fleets:
    """Fleets of each GPU alone, best first, and of a mix where that is better than all of them."""

    search: Search
    terms: Terms
    demands: tuple[Load, ...]  #: the classes, at the asked rates
    single: tuple[Fleet, ...]
    mix: Fleet | None
    minimised: Minimised  #: without any price, GPUs
    refused: tuple[Refused, ...]
    shapes: tuple[Fleet | None, Fleet | None] | None = None  #: of several classes: a pool for each, and one for all

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        return (self.mix, *self.single) if self.mix else self.single  # best first

    @property
    def best(self) -> Fleet | None:
        return next(iter(self.fleets), None)

    @property
    def mean_usd(self) -> float:
        """Mean USD per hour of one GPU, which stands in for a price that is not known; 1 where none is."""
        return fmean([fleet.usd_per_h.mid / fleet.gpus for fleet in self.single if fleet.usd_per_h] or [1.0])


def plan_fleets(search: Search, terms: Terms = Terms(), classes: Sequence[Load] = ()) -> Fleets:
    """Plan fleets for the load of ``search``: of each GPU the better of two shapes.

    ``classes`` are the parts that may get servers of their own, by default those of the load."""
    search = replace(search, objective=replace(search.objective, goal="balanced"))
    load, more = search.objective.load, 1 + search.objective.headroom
    demands = tuple(classes) or load.classes or (load,)
    one_pool = _Solver(search, terms, (times(load, more),))
    if search.space.stock is not None:
        return _largest(search, terms)
    if len(demands) == 1:
        return _in_order(one_pool.fleets(demands))
    divided = divided_fleets(search, terms, demands)
    if too_rare(demands, MIXED_PROMPTS):
        return divided
    shared, minimise = _in_order(one_pool.fleets(demands)), divided.minimised
    by_gpu: dict[str, Fleet] = {}
    for fleet in (*divided.single, *shared.single):
        best = by_gpu.setdefault(fleet.rented[0].profile.id, fleet)
        if (fleet.weight(minimise), fleet.gpus) < (best.weight(minimise), best.gpus):
            by_gpu[fleet.rented[0].profile.id] = fleet
    mix = min(filter(None, (divided.mix, shared.mix)), key=lambda fleet: fleet.weight(minimise), default=None)
    refused = tuple(gone for gone in divided.refused if gone.gpu not in by_gpu)
    better = _in_order(replace(divided, single=tuple(by_gpu.values()), mix=mix, refused=refused))
    return replace(better, shapes=(divided.best, shared.best))


def divided_fleets(search: Search, terms: Terms, classes: tuple[Load, ...]) -> Fleets:
    """Plan a pool of servers for each of ``classes``."""
    demands = tuple(times(one, 1 + search.objective.headroom) for one in classes)
    return _in_order(_Solver(search, terms, demands).fleets(classes))


def _largest(search: Search, terms: Terms) -> Fleets:
    fleets: list[Fleet] = []
    refused: list[Refused] = []
    for ranking in search.run():
        candidate = ranking.best
        if candidate is None or candidate.load is None:
            refused.append(Refused(ranking.profile.id, ranking.why_none))
            continue
        rate = candidate.servers * candidate.load.value
        load = search.objective.load.at_rate(rate, search.objective.load.count)
        of_gpu = replace(search, objective=replace(search.objective, load=load))
        solver = _Solver(of_gpu, terms, (load,))
        kind = Kind(search.space, solver.objectives[0], candidate, ranking, {0: candidate.load})
        fleets += filter(None, [solver._fleet([kind], "gpus")])
    fleets.sort(key=lambda fleet: -fleet.request_rate)
    demands = (times(fleet.solver.demands[0], 1 / (1 + fleet.solver.headroom)) for fleet in fleets[:1])
    return Fleets(search, terms, tuple(demands), tuple(fleets), None, terms.minimise, tuple(refused))


def times(load: Load, factor: float) -> Load:
    """Return ``load`` at ``factor`` times its rate, its classes likewise."""
    if load.classes:
        classes = [replace(one, request_rate=one.request_rate * factor) for one in load.classes]
        return Load.classes_of(classes, load.num_prompts, seed=load.seed, burstiness=load.burstiness, name=load.name)
    return load if factor == 1 or not load.open else load.at_rate(load.request_rate * factor, load.count)


class _Solver:
    def __init__(self, search: Search, terms: Terms, demands: tuple[Load, ...]) -> None:
        self.search, self.terms, self.demands = search, terms, demands
        self.objectives = [replace(search.objective, load=one, targets=self._targets(one)) for one in demands]
        self.confidence, self.headroom = search.objective.confidence, search.objective.headroom

    def _targets(self, demand: Load) -> Targets:
        """The targets of servers that serve one class, or all classes together."""
        asked = self.search.objective
        targets, slos = asked.targets or Targets(), asked.slos
        if demand.name in {one.name for one in asked.load.classes} and any(slo.group for slo in slos):
            slos = tuple(replace(slo, group="") for slo in slos if slo.group in ("", demand.name))
        return replace(targets, slos=slos, by="rate", value=demand.request_rate)

    def fleets(self, demands: tuple[Load, ...]) -> Fleets:
        """The best fleet of each GPU and the mix; ``demands``: the classes at the asked rates."""
        rankings = [replace(self.search, objective=objective).run() for objective in self.objectives]
        single: list[Fleet] = []
        refused: list[Refused] = []
        kinds: list[Kind] = []
        for serving, *of_classes in zip(self.search.space.servings, *rankings, strict=True):
            own = self._kinds(of_classes)
            kinds += own
            # one load gets equal servers, which a router keeps equally busy; several classes may mix kinds
            choices = [[kind] for kind in own] if len(self.demands) == 1 else [own[:1], own]
            fleets = [fleet for some in choices if some and (fleet := self._fleet(some, "gpus"))]
            if fleets:
                single.append(min(fleets, key=lambda fleet: fleet.gpus))
            else:
                refused.append(Refused(serving.profile.id, self._why_none(own, of_classes)))
        minimise = self.terms.minimise
        priced = [kind for kind in kinds if price_of(kind.profile, self.search.space.prices)]
        if minimise == "usd" and kinds and not priced:
            minimise = "gpus"
        known = priced if minimise == "usd" else kinds
        mixes = len({kind.profile.id for kind in known}) > 1 and not self.demands[0].reused
        mix = self._fleet(known, minimise) if mixes else None
        return Fleets(self.search, self.terms, demands, tuple(single), mix, minimise, tuple(refused))

    def sized(self, pool: Pool) -> Servers:
        objective, candidate = self.objectives[pool.place], pool.kind.candidate
        if pool.kind.objective is objective:
            return pool.kind
        capacity = Capacity(candidate.deployment, pool.load.sent, objective.targets or Targets(), known=[pool.load])
        alone = max(pool.servers, ceil(pool.demand.request_rate / pool.load.value - ROUNDING))  # in its class
        own = replace(candidate, servers=alone, load=pool.load, capacity=capacity)
        return Servers(self.search.space, objective, own)

    def _kinds(self, rankings: Sequence[Ranking]) -> list[Kind]:
        """The cheapest engines of one GPU for each class, with the largest load of each class on one server."""
        kinds: dict[EngineConfig, Kind] = {}
        most = defaults.FLEET_ENGINES if len(rankings) == 1 else defaults.CLASS_ENGINES
        for place, (objective, ranking) in enumerate(zip(self.objectives, rankings, strict=True)):
            for candidate in ranking.candidates[:most]:
                kind = Kind(self.search.space, objective, candidate, ranking, {})
                # of shared prefixes it is the load of so many servers
                load = candidate.load if objective.load.reused else kind.most or candidate.load
                of_class = kinds.setdefault(candidate.config, kind)
                of_class.loads[place] = load
                of_class.below[place] = objective.load.request_rate / (candidate.servers - 0.5)
        for kind in kinds.values():
            for place in set(range(len(rankings))) - kind.loads.keys():
                kind.loads[place] = self._carried(kind.candidate, place)
        return list(kinds.values())

    def _carried(self, candidate: Candidate, place: int, servers: int = 0) -> ServedLoad | None:
        """Largest load of a class on one of ``servers``; None where it misses the targets, or holds no request."""
        objective, deployment = self.objectives[place], candidate.deployment
        longest = objective.load.longest_len
        if longest > deployment.config.max_model_len or deployment.requests_held(longest) < 1:
            return None
        steady = Steady.of(deployment, objective.load).rate(self.confidence)
        load = objective.dealt(servers or ceil(objective.load.request_rate / steady))
        return Capacity(deployment, load, objective.targets or Targets()).largest()

    def _fleet(self, kinds: Sequence[Kind], minimise: Minimised) -> Fleet | None:
        for _ in range(defaults.MIX_ROUNDS):
            mix, rented = self.solved(kinds, minimise, [kind.rates for kind in kinds], self.terms)
            if mix is None:
                return None
            # the servers of a small pool are less evenly busy than those of the one pool that was searched
            counts = {(c, k): n for c, row in enumerate(mix.servers) for k, n in enumerate(row) if 0 < n < sum(row)}
            loads = {(c, k): self._carried(kinds[k].candidate, c, n) for (c, k), n in counts.items()}
            if loads:
                kinds = [
                    replace(kind, loads=kind.loads | own, below=kind.below | dict.fromkeys(own, inf))
                    for k, kind in enumerate(kinds)
                    for own in [{c: load for (c, of), load in loads.items() if of == k}]
                ]
            carried = (sum(n * kinds[k].rates[c] for k, n in enumerate(row)) for c, row in enumerate(mix.servers))
            if all(rate >= (1 - ROUNDING) * one.request_rate for rate, one in zip(carried, self.demands, strict=True)):
                break
        else:
            return None
        pools = tuple(
            Pool(c, demand, kind, mix.servers[c][k], load)
            for c, demand in enumerate(self.demands)
            for k, kind in enumerate(kinds)
            if mix.servers[c][k] and (load := kind.loads[c])
        )
        spares = tuple((kind, count) for kind, count in zip(kinds, mix.spares, strict=True) if count)
        return Fleet(self, pools, spares, rented, mix.proven)

    def solved(
        self, kinds: Sequence[Kind], minimise: Minimised, capacities: Sequence[tuple[float, ...]], terms: Terms
    ) -> tuple[Mix | None, tuple[Rented, ...]]:
        """The cheapest mix of ``kinds`` with these capacities, and the GPUs that are rented for it."""
        profiles = {kind.profile.id: kind.profile for kind in kinds}
        prices = {name: price_of(profile, self.search.space.prices) for name, profile in profiles.items()}
        places, rents = {name: place for place, name in enumerate(profiles)}, list[Rent]()
        for name, profile in profiles.items():
            gpus = profile.gpus_per_node if terms.rent == "node" else profile.parts
            price, package = prices[name], name if name in terms.stock else profile.whole
            stock = terms.stock.get(package, inf)
            weight = {
                "gpus": gpus / profile.parts,
                "watts": (power_w(profile) or 0.0) * gpus,
                "usd": price.usd_per_h.mid * gpus if price else inf,
            }[minimise]
            rents.append(Rent(weight, gpus, stock if stock == inf else stock * profile.parts // gpus, package))
        pairs = zip(kinds, capacities, strict=True)
        offers = [Offer(places[kind.profile.id], kind.num_gpus, capacity) for kind, capacity in pairs]
        mix = cheapest_mix([one.request_rate for one in self.demands], offers, rents, self.search.objective.spares)
        rented = tuple(
            Rented(profile, prices[profile.id], units * rent.gpus)
            for profile, rent, units in zip(profiles.values(), rents, mix.units if mix else (), strict=bool(mix))
            if units
        )
        return mix, rented

    def _why_none(self, kinds: Sequence[Kind], rankings: Sequence[Ranking]) -> str:
        if not kinds:
            pairs = zip(self.demands, rankings, strict=True)
            return "; ".join(f"{demand.name}: {ranking.why_none}" for demand, ranking in pairs)
        for c, demand in enumerate(self.demands):
            if not any(kind.rates[c] for kind in kinds):
                return f"{demand.name}: no server meets the targets"
        return "the load needs more GPUs than --stock has"


def _in_order(fleets: Fleets) -> Fleets:
    """The fleets in their order, a GPU without a price at the mean of the others; a mix only where it saves enough."""
    single, mix, minimise = fleets.single, fleets.mix, fleets.minimised
    usd = fleets.mean_usd

    def weight(fleet: Fleet) -> float:
        known = fleet.weight(minimise)
        return fleet.gpus * usd if minimise == "usd" and known == inf else known

    ordered = tuple(sorted(single, key=lambda fleet: (weight(fleet), fleet.gpus)))
    least = weight(ordered[0]) * (1 - defaults.MIX_GAIN) if ordered else inf
    if mix and ordered and (len(mix.rented) == 1 or mix.weight(minimise) >= least):
        mix = None
    return replace(fleets, single=ordered, mix=mix)


def _usd(rented: Sequence[Rented]) -> Interval | None:
    spans = [part.usd_per_h for part in rented]
    return None if None in spans else Interval.sum(filter(None, spans))

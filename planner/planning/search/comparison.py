"""GPUs side by side on equal hardware: throughput, cost and bottleneck of each, and who leads at which load.

Equal hardware is as many whole GPUs of each type, under equal servers of the best legal TP size for each load. A plan
departs from the recipe of its model by words left out, set otherwise or added, each with the reason."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from math import ceil, inf
from operator import attrgetter
from typing import Any

from planner import engine, progress
from planner.engine import legal_tensor_parallel_sizes
from planner.errors import IllegalPlanError, PlannerError, brief
from planner.hardware import GpuProfile, load_all
from planner.planning import defaults
from planner.planning.advice import TO_CAPTURE, captures_by_context
from planner.planning.capacity import at_concurrency, in_flight, most_held, steady_per_s
from planner.planning.cost import MILLION_PER_S, Price, Rented, interval_of, price_of
from planner.planning.defaults import CERTAIN, EQUAL, TOLERANCE, Per
from planner.planning.deployment import Deployment
from planner.planning.predict import Prediction, find_limit
from planner.planning.search.space import Candidate, Merit, Objective, Ranking, Refused, Space
from planner.planning.serving import Serving
from planner.planning.uncertainty import Forecast
from planner.units import GIB, HOUR_S, Interval, percent
from planner.workload import Load


@dataclass(frozen=True)
class Question:
    """A model with its settings, and the GPUs of each type."""

    serving: Serving  #: on any of the GPUs
    per: Per = "package"
    share: int | None = None  #: whole GPUs of each type, or logical ones; None: the fewest on which all hold the model
    sizes: tuple[int, ...] = ()  #: tensor-parallel sizes to try; empty: all that are legal

    def rented(self, profile: GpuProfile, share: int = 1, price: Price | None = None) -> Rented:
        """A whole node, or ``share`` GPUs as ``per`` counts them."""
        if self.per == "node":
            return Rented(profile, price, profile.gpus_per_node)
        return Rented(profile, price, share * (profile.parts if self.per == "package" else 1))


def find_engines(question: Question, rented: Rented, longest_len: int) -> list[Deployment] | Refused:
    """The engines, one for each tensor-parallel size, that hold one request of ``longest_len`` tokens."""
    serving, profile, num_gpus = question.serving, rented.profile, rented.num_gpus
    reasons, engines = ["no tensor-parallel size is legal"], list[Deployment]()
    unvalidated = serving.args.allow_unvalidated
    legal = legal_tensor_parallel_sizes(serving.model, profile, allow_unvalidated=unvalidated, fp8_blocks="refined")
    powers = [size for size in legal if size & (size - 1) == 0 and size <= num_gpus]
    for size in question.sizes or powers or (1,):  # the last is refused in the engine's own words
        try:
            deployment = serving.changed(profile=profile, tensor_parallel_size=size).deployment
        except PlannerError as error:
            reasons.append(error.cause)
            continue
        if deployment.config.num_gpus > num_gpus:
            reasons.append(f"one server takes {deployment.config.num_gpus} GPUs, there are {num_gpus}")
        elif deployment.requests_held(longest_len) < 1:
            stage = deployment.budget.binding
            weights, left = stage.weights.loaded_bytes / GIB, max(stage.available.mid, 0) / GIB
            reasons.append(f"TP {size}: {weights:.1f} GiB of weights on each GPU leave {left:.1f} GiB for the KV cache")
        else:
            engines.append(deployment)
    return engines or Refused(profile.id, reasons[-1])


def find_share(question: Question, profiles: Sequence[GpuProfile], longest_len: int) -> int:
    """GPUs for each type: the fewest, a power of two, on which all types hold the model that do so within a node."""
    shares = [question.share or 1]
    for profile in () if question.share else profiles:
        share = 1
        while (rented := question.rented(profile, share)).num_gpus <= profile.gpus_per_node:
            if not isinstance(find_engines(question, rented, longest_len), Refused):
                shares.append(share)
                break
            share *= 2
    return max(shares)


LATENCIES = tuple(f"{statistic}_{metric}_ms" for metric in ("ttft", "tpot", "e2el") for statistic in ("mean", "p99"))


@dataclass(frozen=True)
class ComparedPoint:
    """One type of GPU under one load. Means are over all requests, the 99th percentile is the busiest server's."""

    per: Per
    rented: Rented
    candidate: Candidate  #: the servers, and the closed form of the busiest
    workload: Load
    served: tuple[tuple[int, Prediction], ...]  #: the busiest servers first: how many get an equal share, and one's
    tried: tuple[Candidate, ...]  #: every tensor-parallel size, this one too

    @property
    def gpu(self) -> str:
        return self.rented.profile.id

    @property
    def load(self) -> float:
        return self.workload.value

    @property
    def busiest(self) -> Prediction:
        return self.served[0][1]

    @property
    def counted_gpus(self) -> float:
        """GPUs in figures per GPU: whole ones, or with ``per`` of ``gpu`` logical ones."""
        return self.rented.num_gpus / (1 if self.per == "gpu" else self.rented.profile.parts)

    @property
    def idle_gpus(self) -> int:
        return self.rented.num_gpus - self.candidate.num_gpus

    @cached_property
    def keeps_up(self) -> bool:
        """True if no queue grows without end; a closed loop always keeps up."""
        share = self.busiest.load
        return not share.open or share.request_rate <= steady_per_s(self.candidate.deployment, share) * (1 + TOLERANCE)

    @cached_property
    def tok_per_s(self) -> Interval:
        """Output tokens per second of all servers; of an open loop that keeps up, as many as are asked for."""
        if self.workload.open and self.keeps_up:
            return Interval.exact(self.workload.output_tok_per_s)
        return Interval.sum(interval_of(one.result, "output_throughput").scaled(count) for count, one in self.served)

    @property
    def tok_per_s_per_gpu(self) -> Interval:
        """Output tokens per second and GPU, whole or logical as ``per`` says."""
        return self.tok_per_s.scaled(1 / self.counted_gpus)

    @property
    def tok_per_s_per_user(self) -> Interval | None:
        """Output tokens per second of one request, in an open loop of its mean E2EL; None likewise."""
        if self.workload.max_concurrency is not None:
            return self.tok_per_s.scaled(1 / self.workload.max_concurrency)
        e2el_ms, each = self.latency_ms("mean_e2el_ms"), self.workload.output_tok_per_s / self.workload.request_rate
        return Interval.exact(each * 1e3).over(e2el_ms) if e2el_ms else None

    @property
    def usd_per_million_tok(self) -> Interval | None:
        """USD per 1M output tokens; None where no price is known, or it is zero."""
        usd = self.rented.usd_per_h
        return usd.scaled(MILLION_PER_S).over(self.tok_per_s) if usd and usd.mid else None

    @property
    def tok_per_usd(self) -> Interval | None:
        """Output tokens for one USD; None likewise."""
        usd = self.rented.usd_per_h
        return self.tok_per_s.scaled(HOUR_S).over(usd) if usd and usd.low else None

    @property
    def tok_per_joule(self) -> Interval | None:
        """Output tokens for one joule at board power; None where the power is not known."""
        watts = self.rented.power_w
        return self.tok_per_s.scaled(1 / watts) if watts else None

    def forecast(self, span: Interval | None, *, per_user: bool = False) -> Forecast | None:
        """The middle of ``span``, a rate, as uncertain as the throughput; ``per_user`` of an open loop as mean E2EL."""
        if span is None or not self.keeps_up:
            return None
        queued = per_user and self.workload.max_concurrency is None
        key, power = ("mean_e2el_ms", -1.0) if queued else ("output_throughput", 1.0)
        return Forecast.of(span.mid, self.busiest.uncertainty, key, power)

    def latency_ms(self, key: str) -> Interval | None:
        """Such as ``mean_ttft_ms``; None where a queue grows without end."""
        if not self.keeps_up:
            return None
        if not key.startswith("mean_"):
            return interval_of(self.busiest.result, key)
        rates = [count * one.result["request_throughput"] for count, one in self.served]
        means = zip(self.served, rates, strict=True)
        return Interval.sum(interval_of(one.result, key).scaled(rate / sum(rates)) for (_, one), rate in means)

    @cached_property
    def bound_by(self) -> str:
        if not self.keeps_up:
            return "queueing: more arrives than is served"
        return find_limit(self.candidate.deployment, self.busiest.replay, self.busiest.load)

    @cached_property
    def latencies(self) -> dict[str, Interval | None]:
        return {key: self.latency_ms(key) for key in LATENCIES}


def _best_point(question: Question, rented: Rented, engines: Sequence[Deployment], workload: Load) -> ComparedPoint:
    def slowness(point: ComparedPoint) -> tuple[bool, float, float]:
        e2el = point.latency_ms("mean_e2el_ms")
        return not point.keeps_up, e2el.mid if e2el else inf, -point.tok_per_s.mid

    tried = tuple(_candidate(question, rented, engine, workload) for engine in engines)
    points = list[ComparedPoint]()
    for one in sorted(tried, key=lambda one: one.e2el_s)[: defaults.COMPARED_FINALISTS]:
        shares = dealt(one.deployment, workload, one.servers)
        served = tuple((servers, Prediction.of(one.deployment, share)) for servers, share in shares)
        points.append(ComparedPoint(question.per, rented, one, workload, served, tried))
    return min(points, key=slowness)


def _candidate(question: Question, rented: Rented, deployment: Deployment, workload: Load) -> Candidate:
    """Return the servers that the GPUs hold. Requests beyond the busiest one's KV cache wait, in E2EL alone."""
    servers = rented.num_gpus // deployment.config.num_gpus
    share = dealt(deployment, workload, servers)[0][1]
    held = most_held(deployment, share)
    flying = share.max_concurrency or in_flight(deployment, share, share.request_rate)
    served = at_concurrency(deployment, share, min(flying, held))
    overload = flying / held if share.max_concurrency else share.request_rate / steady_per_s(deployment, share)
    queued = replace(served, e2el_s=served.e2el_s * max(overload, 1.0))
    return Candidate(question.serving.resolved, deployment, queued, servers=servers)


def dealt(deployment: Deployment, workload: Load, servers: int) -> list[tuple[int, Load]]:
    """``workload`` dealt evenly to ``servers``, those with most first: how many get the same share, and that share.

    Servers that get nothing are left out."""

    def sent(each: Load, flying: float) -> Load:
        enough = max(defaults.LEAST_SEARCH_PROMPTS, round(defaults.PROMPTS_PER_SLOT * flying))
        asked = max(round(workload.num_prompts / servers), 1) if workload.num_prompts > 1 else enough
        return replace(each, num_prompts=asked)

    each = workload.share_of(servers)
    if workload.max_concurrency is None:  # beyond full batches only the queue grows
        flying = in_flight(deployment, each, min(each.request_rate, steady_per_s(deployment, each)))
        return [(servers, sent(each, flying))]
    small, more = divmod(workload.max_concurrency, servers)
    sizes = (small + 1, more), (small, servers - more)
    return [(count, sent(replace(each, max_concurrency=n), n)) for n, count in sizes if n and count]


Figure = Callable[[ComparedPoint], Forecast | None]
At = Callable[[ComparedPoint], float]
#: Figures that points are ordered by, largest first: heading -> figure; None for who does not keep up.
METRICS: Mapping[str, Figure] = {
    "tokens/s per user": lambda point: point.forecast(point.tok_per_s_per_user, per_user=True),
    "tokens/s per GPU": lambda point: point.forecast(point.tok_per_s_per_gpu),
    "tokens per USD": lambda point: point.forecast(point.tok_per_usd),
    "tokens per joule": lambda point: point.forecast(point.tok_per_joule),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """The GPUs at one place of an axis, the best first."""

    at: float
    order: tuple[str, ...]
    probability: float  #: that measurements of the first and the second lie in this order; 1 where one is alone
    equal: tuple[str, ...]  #: the first and those equal to it

    @property
    def tied(self) -> bool:
        return len(self.equal) > 1

    @property
    def certain(self) -> bool:
        return self.probability >= CERTAIN

    @property
    def leader(self) -> str:
        if not self.tied:
            return self.order[0]
        both = f"{', '.join(self.equal[:-1])} and {self.equal[-1]}"
        return f"{'all GPUs' if len(self.equal) == len(self.order) > 2 else both} alike"


@dataclass(frozen=True, slots=True)
class Flip:
    """Two GPUs that change places along the axis."""

    before: str  #: ahead at ``until`` and for smaller values
    after: str  #: ahead at ``since``
    until: float
    since: float
    probabilities: tuple[float, float]  #: of ``before`` ahead at ``until``, and of ``after`` ahead at ``since``

    @property
    def certain(self) -> bool:
        return min(self.probabilities) >= CERTAIN


def _places(points: Sequence[ComparedPoint], at: At, figure: Figure) -> dict[float, dict[str, Forecast]]:
    """The forecasts by GPU at each place of the axis ``at``, ascending. Who lacks the figure is left out."""
    places: dict[float, dict[str, Forecast]] = {}
    for point in sorted(points, key=at):
        if forecast := figure(point):
            places.setdefault(at(point), {})[point.gpu] = forecast
    return places


def standings(points: Sequence[ComparedPoint], at: At, figure: Figure) -> list[Standing]:
    """The order at each place of the axis ``at``, ascending. Who lacks the figure is left out."""
    found = []
    for value, forecasts in _places(points, at, figure).items():
        order = tuple(sorted(forecasts, key=lambda gpu: -forecasts[gpu].value))
        first = forecasts[order[0]]
        odds = first.beats(forecasts[order[1]]) if len(order) > 1 else 1.0
        found.append(Standing(value, order, odds, tuple(gpu for gpu in order if _equal(first, forecasts[gpu]))))
    return found


def flips(points: Sequence[ComparedPoint], at: At, figure: Figure) -> Iterator[Flip]:
    """Every pair of GPUs that changes places between two neighbouring values of the axis, in its order."""
    places = _places(points, at, figure)
    for one, other in combinations(dict.fromkeys(point.gpu for point in points), 2):
        ahead: tuple[float, float] | None = None  # where, and the odds that ``one`` leads there
        for value, forecasts in places.items():
            if one not in forecasts or other not in forecasts or _equal(forecasts[one], forecasts[other]):
                continue
            odds = forecasts[one].beats(forecasts[other])
            if ahead and (ahead[1] > 0.5) != (odds > 0.5):
                names = (other, one) if odds > 0.5 else (one, other)
                before, since = (max(share, 1 - share) for share in (ahead[1], odds))
                yield Flip(*names, ahead[0], value, (before, since))
            ahead = value, odds


def describe_order(axis: str, places: Sequence[Standing]) -> str:
    """The leaders and their odds in one line: ``b200 up to concurrency 32 (62%), mi355x from 64 on (93%)``."""
    runs = [(leader, list(group)) for leader, group in groupby(places, key=attrgetter("leader"))]
    if len(runs) == 1:
        where = f" at every {axis}" if len(places) > 1 else ""
        verb = "lead" if places[0].tied else "leads"
        return f"{runs[0][0]} {verb}{where}{_odds_in_words(places)}".replace(" alike lead", " are equal")
    words = []
    for index, (leader, group) in enumerate(runs):
        first, last = f"{group[0].at:,g}", f"{group[-1].at:,g}"
        where = f"at {first}" if first == last else f"from {first} to {last}"
        where = f"up to {axis} {last}" if index == 0 else f"from {first} on" if index == len(runs) - 1 else where
        words.append(f"{leader} {where}{_odds_in_words(group)}")
    return ", ".join(words)


def _odds_in_words(group: Sequence[Standing]) -> str:
    """The probability that the first is ahead of the second, from the least to the most."""
    odds = sorted(standing.probability for standing in group if len(standing.order) > 1)
    if not odds or group[0].tied:
        return ""
    return f" ({' to '.join(dict.fromkeys((percent(odds[0]), percent(odds[-1]))))})"


def _equal(one: Forecast, other: Forecast) -> bool:
    return abs(one.value - other.value) <= EQUAL * max(one.value, other.value)


@dataclass(frozen=True, slots=True)
class Axis:
    """The points along which one thing changes and the rest of the load stays."""

    name: str  #: concurrency, request rate, input length, output length
    fixed: str  #: the rest of the load, in words
    at: At
    points: tuple[ComparedPoint, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The order in one metric along one axis."""

    metric: str
    axis: Axis
    standings: tuple[Standing, ...]
    flips: tuple[Flip, ...]

    @property
    def words(self) -> str:
        return describe_order(self.axis.name, self.standings)


@dataclass(frozen=True)
class Comparison:
    """Equal hardware side by side, load by load."""

    question: Question
    share: int  #: GPUs of each type, whole or logical as ``per`` says; ``node`` does not use it
    workloads: tuple[Load, ...]
    points: tuple[ComparedPoint, ...]
    refused: tuple[Refused, ...]

    def orders(self) -> Iterator[Order]:
        """Each metric along each axis that has more than one value; along one load where there is just one."""
        for axis in self._axes():
            for metric, figure in METRICS.items():
                points = [one for one in axis.points if metric != "tokens per USD" or self.ranks_usd(one)]
                places = tuple(standings(points, axis.at, figure))
                if places and max(len(standing.order) for standing in places) > 1:
                    yield Order(metric, axis, places, tuple(flips(points, axis.at, figure)))

    def ranks_usd(self, point: ComparedPoint) -> bool:
        """False for the cost of a card of one's own where others have a rent."""
        owned = {one.gpu: one.rented.price.origin.endswith("owned") for one in self.points if one.rented.price}
        return point.gpu in owned and (not owned[point.gpu] or all(owned.values()))

    def _axes(self) -> Iterator[Axis]:
        loads = list(dict.fromkeys(w.value for w in self.workloads))
        lengths = list(dict.fromkeys((w.input_len, w.output_len) for w in self.workloads))
        closed = self.workloads[0].max_concurrency is not None
        for length in lengths if len(loads) > 1 or len(lengths) == 1 else ():
            chosen = tuple(p for p in self.points if (p.workload.input_len, p.workload.output_len) == length)
            name = "concurrency" if closed else "request rate"
            yield Axis(name, f"{length[0]:,} in / {length[1]:,} out", attrgetter("load"), chosen)
        for load in loads if len(lengths) > 1 else ():
            chosen = tuple(p for p in self.points if p.load == load)
            inputs = len({p.workload.input_len for p in chosen}) > 1
            name = "input length" if inputs else "output length"
            fixed = f"concurrency {load:,g}" if closed else f"{load:g} requests/s"
            yield Axis(name, fixed, attrgetter("workload.input_len" if inputs else "workload.output_len"), chosen)


def compare_hardware(
    question: Question, profiles: Sequence[GpuProfile], loads: Sequence[Load], prices: Mapping[str, float] | None = None
) -> Comparison:
    """Every GPU under every load on equal hardware; ``prices`` as for ``cost.price_of``.

    A load is that of all servers together. ``num_prompts`` of 1 means as many as a steady state needs."""
    longest = max(workload.max_total_len for workload in loads)
    share = find_share(question, profiles, longest) if question.per != "node" else 1
    points: list[ComparedPoint] = []
    refused: list[Refused] = []
    for profile in progress.each(profiles, lambda profile: profile.id):
        rented = question.rented(profile, share, price_of(profile, prices))
        engines = find_engines(question, rented, longest)
        if isinstance(engines, Refused):
            refused.append(engines)
        else:
            points += [_best_point(question, rented, engines, load) for load in loads]
    return Comparison(question, share, tuple(loads), tuple(points), tuple(refused))


def compare_partitions(
    serving: Serving, whole: GpuProfile, workload: Load
) -> tuple[list[ComparedPoint], list[Refused]]:
    """A node of whole GPUs and the same node in CPX modes under one load, most tokens/s first; and what cannot run.

    Each partition gets a server of its own; of whole GPUs each gets one, or the node a single one."""
    points: list[ComparedPoint] = []
    refused: list[Refused] = []
    parts = [(profile, profile.partition) for profile in load_all(partitions=True) if profile.partition]
    for profile in (whole, *(one for one, part in parts if (part.of, part.compute_mode) == (whole.id, "CPX"))):
        num_gpus = profile.gpus_per_node
        as_one = profile is whole and num_gpus in legal_tensor_parallel_sizes(serving.model, whole)
        for size in (1, num_gpus) if as_one else (1,):
            most = ceil((workload.max_concurrency or 1) / (num_gpus // size))
            context = defaults.round_context(workload.max_total_len)
            settings = serving.changed(max_num_seqs=most, max_model_len=context)
            asked = Question(settings, per="node", sizes=(size,))
            found = compare_hardware(asked, [profile], [workload])
            points += found.points
            refused += found.refused
    return sorted(points, key=lambda point: -point.tok_per_s.mid), refused


_LAYOUT = engine.tagged("axes")
#: Settings that are named where only the plan has them; a recipe without a TP size leaves it to the GPU.
_ADDED = (*_LAYOUT[1:], "kv_cache_dtype", "speculative_config", "block_size")


class Departures:
    """The recipe of the model beside the engine that a search chose; ``why``: the reason for settings it left alone."""

    def __init__(self, space: Space, objective: Objective, ranking: Ranking, winner: Candidate, why: str = "") -> None:
        self.space, self.objective, self.ranking, self.winner, self.why = space, objective, ranking, winner, why
        self.served, self.version, profile = winner.resolved.resolved, winner.config.version, winner.profile
        options, self.env = engine.stated_words((self.served, space.model.resolved), profile)
        argv = ["vllm", "serve", self.served, *options]
        self.line = engine.read_line(argv, self.version, env=self.env, platform=profile.platform)
        self.refused = {problem.word.split()[0]: problem.cause for problem in self.line.problems}

    def of(self) -> Iterator[str]:
        """Yield ``--option value, not value (reason)`` for its line; nothing for a model without a recipe."""
        config, recipe = self.winner.config, recipe_of(self.winner.deployment)
        argv, env = engine.serve_argv(config, self.served, extra=recipe.flags), recipe.env | config.env
        stated, planned = self.line.options, engine.read_line(argv, self.version).options
        if stated and not engine.stated_words((self.served,), self.winner.profile)[0]:
            yield f"model {self.served}, not {self.space.model.resolved} (the recipe has no such checkpoint)"
        named = {engine.flag_of(name): getattr(config, name) for name in engine.tagged("logged")}
        has = {**{flag: "" if value is True else str(value) for flag, value in named.items() if value}, **planned}
        for option, value in stated.items():
            if option not in has and value != "auto":
                yield f"without {_word(option, value)} ({self._why(option)})"
            elif not _covers(has.get(option, "auto"), value):
                yield f"{_word(option, has[option])}, not {brief(value)} ({self._why(option)})"
        for option in map(engine.flag_of, _ADDED if stated else ()):
            if option not in stated and planned.get(option, "auto") != "auto":
                yield f"adds {_word(option, planned[option])} ({self._why(option)})"
        missing = {name: value for name, value in self.env.items() if env.get(name) != value}
        yield from (f"without {name}={value} ({self._why(name)})" for name, value in missing.items())

    def _why(self, word: str) -> str:
        name, config = word.removeprefix("--").replace("-", "_"), self.winner.config
        if config.tensor_parallel_size == 1 and word in self.env and word not in engine.without_sums(self.env):
            return "TP 1 sums nothing over GPUs"
        if getattr(self.space.args, name, None) != getattr(engine.EngineArgs(), name, None):
            return "as asked"
        if name == "enable_expert_parallel" and config.num_gpus == 1:
            return "one GPU holds all experts"
        model, profile = self.winner.resolved.model, self.winner.profile
        mtp = next(engine.searched_drafts(model, self.served, self.version, profile), None)
        if mtp and name == "speculative_config" and '"method":"mtp"' in self.line.options.get(word, ""):
            wanted = {**config.settings("axes"), name: mtp}
            return f"{mtp.words}: {_result(self.objective, self.ranking, self.winner, wanted) or 'not searched'}"
        if name == "kv_cache_dtype":
            wanted = {**config.settings("axes"), name: self.line.args.kv_cache_dtype}
        elif name in _LAYOUT:
            wanted, sized = self.line.args.settings("axes"), engine.flag_of(_LAYOUT[0]) in self.line.options
            wanted[_LAYOUT[0]] = wanted[_LAYOUT[0]] if sized else config.num_gpus // self.line.args.num_gpus
        else:
            needed = engine.recipe_release(self.winner.deployment.model)
            stated = word in self.line.options or word in self.env
            if word in self.env and self.version.release < needed:
                return f"the recipe is for vLLM {engine.release_text(needed)} and later"
            return self.refused.get(word) or self.why or engine.reason_beside_recipe(word, added=not stated)
        return f"the recipe's: {_result(self.objective, self.ranking, self.winner, wanted) or self._unsearched(wanted)}"

    def _unsearched(self, wanted: Mapping[str, Any]) -> str:
        serving = next(one for one in self.space.servings if one.profile.id == self.winner.profile.id)
        try:
            _ = serving.changed(resolved=self.winner.resolved, args=replace(self.space.args, **wanted)).deployment
        except IllegalPlanError as error:
            return error.cause
        return "not searched"


def departures_in(comparison: Comparison) -> Iterator[tuple[ComparedPoint, tuple[str, ...]]]:
    """Yield each point that is compared, and where its engine departs from the recipe, each with the reason."""
    for point in comparison.points:
        serving, served = comparison.question.serving.changed(profile=point.rented.profile), point.candidate
        ranking = Ranking(serving.profile, serving.version, point.tried, ())
        asked = Space((serving,)), Objective("min-latency", point.workload)
        yield point, tuple(Departures(*asked, ranking, served, "vLLM's default").of())


def beside_recipe(departures: Sequence[str]) -> list[str]:
    """Return the line that lists the departures, those of one kind and reason together; nothing without any."""
    alike: dict[tuple[str, str], str] = {}
    for words, _, reason in (one.partition(" (") for one in departures):
        key = kind, _ = words.partition(" ")[0], reason
        alike[key] = f"{alike[key]} and {words.removeprefix(f'{kind} ')}" if key in alike else words
    lines = [f"{words} ({reason}" for (_, reason), words in alike.items()]
    return [f"differs from the model's vLLM recipe: {'; '.join(lines)}"] if lines else []


def _result(objective: Objective, ranking: Ranking, winner: Candidate, wanted: Mapping[str, Any]) -> str:
    """Return what the best settings with ``wanted`` come to; empty if not searched. KV dtypes: as asked or resolved."""
    resolved, served = {**wanted}, winner.resolved.resolved
    if wanted.get("kv_cache_dtype") == "auto":
        resolved["kv_cache_dtype"] = winner.config.dtype

    def fits(settings: Any) -> bool:
        return {name: getattr(settings, name) for name in wanted} in (wanted, resolved)

    same = next((one for one in ranking.candidates if one.resolved.resolved == served and fits(one.config)), None)
    lost = (one.reason for one in ranking.rejected if one.model == served and fits(one))
    result = re.sub(r" \([^)]*\)", "", next(lost, ""))
    if same and same.load:
        result = f"{winner.profile.counted(same.num_gpus)}, against {winner.profile.counted(winner.num_gpus)}"
    elif same:
        merit = Merit.among(ranking.candidates, objective.goal)
        result = f"{merit.words(same)} against {merit.words(winner)}"
    as_many = re.fullmatch(r"(\d+ \w+), against \1", result)
    bounded = re.sub(r"^(.* per GPU) at best", r"at most \1", re.sub(r"^(\d+ \w+) at best", r"at least \1", result))
    return f"{as_many[1]} as well" if as_many else bounded


def _covers(planned: Any, stated: Any) -> bool:
    """True if a plan's value is the recipe's; of JSON, if it has the keys that the recipe states."""
    if isinstance(planned, str) and isinstance(stated, str) and planned[:1] == stated[:1] == "{":
        planned, stated = json.loads(planned), engine.without_sums(json.loads(stated))
    if isinstance(planned, Mapping) and isinstance(stated, Mapping):
        return all(_covers(planned.get(key), value) for key, value in stated.items())
    return bool(planned == stated)


def _word(option: str, value: str) -> str:
    return f"{option} {brief(value)}".rstrip()


def recipe_of(deployment: Deployment) -> engine.Recipe:
    config = deployment.config
    model, size = deployment.model, config.tensor_parallel_size
    cuts = engine.cuts_expert_blocks(model, engine.Layout.of(config))
    recipe = engine.recipe_for(
        model, deployment.profile, config.version, engine=config.engine, tensor_parallel_size=size, cuts_blocks=cuts
    )
    if captures_by_context(config):
        recipe.flags[TO_CAPTURE.removeprefix("--")] = config.max_model_len
    return recipe

"""GPUs side by side on equal hardware: throughput, cost and bottleneck of each, and who leads at which load.

Equal hardware is as many whole GPUs of each type, under equal servers of the best legal TP size for each load.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from math import ceil, inf
from operator import attrgetter

from planner import progress
from planner.engine import legal_tensor_parallel_sizes
from planner.errors import PlannerError
from planner.hardware import GpuProfile, load_all
from planner.planning import defaults
from planner.planning.capacity import at_concurrency, in_flight, most_held, steady_per_s
from planner.planning.cost import MILLION_PER_S, Price, interval_of, power_w, price_of
from planner.planning.defaults import CERTAIN, EQUAL, TOLERANCE, Per
from planner.planning.deployment import Deployment
from planner.planning.predict import Estimate, Prediction
from planner.planning.serving import Serving
from planner.planning.uncertainty import Forecast
from planner.simulator import Replay
from planner.timing import OperatorKind, StepBreakdown, step_collectives, step_operators
from planner.units import GIB, HOUR_S, Interval, counted, percent
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
    limit, preempted = find_limit(record.deployment, record.replay, record.load), int(record.replay.preemptions.sum())
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


@dataclass(frozen=True)
class Question:
    """A model with its settings, and the GPUs of each type."""

    serving: Serving  #: on any of the GPUs
    per: Per = "package"
    share: int | None = None  #: whole GPUs of each type, or logical ones; None: the fewest on which all hold the model
    sizes: tuple[int, ...] = ()  #: tensor-parallel sizes to try; empty: all that are legal


@dataclass(frozen=True)
class Setup:
    """GPUs of one type, and the equal servers on them that share a load."""

    deployment: Deployment
    num_gpus: int  #: logical GPUs that are paid for
    servers: int
    counted_gpus: float  #: GPUs in figures per GPU: whole ones, or with ``per`` of ``gpu`` logical ones

    @property
    def profile(self) -> GpuProfile:
        return self.deployment.profile

    @property
    def idle_gpus(self) -> int:
        return self.num_gpus - self.servers * self.deployment.config.num_gpus


@dataclass(frozen=True, slots=True)
class Refused:
    """A GPU without an answer, and why."""

    gpu: str
    reason: str


def find_setups(question: Question, profile: GpuProfile, num_gpus: int, longest_len: int) -> list[Setup] | Refused:
    """Every way to put servers that hold one request of ``longest_len`` tokens on ``num_gpus`` logical GPUs."""
    serving, reasons, setups = question.serving, ["no tensor-parallel size is legal"], list[Setup]()
    unvalidated = serving.args.allow_unvalidated
    legal = legal_tensor_parallel_sizes(serving.model, profile, allow_unvalidated=unvalidated, fp8_blocks="refined")
    powers = [size for size in legal if size & (size - 1) == 0 and size <= num_gpus]
    counted = num_gpus if question.per == "gpu" else num_gpus / profile.parts
    for size in question.sizes or powers or (1,):  # the last is refused in the engine's own words
        try:
            deployment = serving.changed(profile=profile, tensor_parallel_size=size).deployment
        except PlannerError as error:
            reasons.append(error.cause)
            continue
        servers = num_gpus // deployment.config.num_gpus
        if not servers:
            reasons.append(f"one server takes {deployment.config.num_gpus} GPUs, there are {num_gpus}")
        elif deployment.requests_held(longest_len) < 1:
            stage = deployment.budget.binding
            weights, left = stage.weights.loaded_bytes / GIB, max(stage.available.mid, 0) / GIB
            reasons.append(f"TP {size}: {weights:.1f} GiB of weights on each GPU leave {left:.1f} GiB for the KV cache")
        else:
            setups.append(Setup(deployment, num_gpus, servers, counted))
    return setups or Refused(profile.id, reasons[-1])


def find_share(question: Question, profiles: Sequence[GpuProfile], longest_len: int) -> int:
    """GPUs for each type: the fewest, a power of two, on which all types hold the model that do so within a node."""
    shares = [question.share or 1]
    for profile in () if question.share else profiles:
        share = 1
        while (num_gpus := count_gpus(question, profile, share)) <= profile.gpus_per_node:
            if not isinstance(find_setups(question, profile, num_gpus, longest_len), Refused):
                shares.append(share)
                break
            share *= 2
    return max(shares)


def count_gpus(question: Question, profile: GpuProfile, share: int) -> int:
    if question.per == "node":
        return profile.gpus_per_node
    return share * (profile.parts if question.per == "package" else 1)


LATENCIES = tuple(f"{statistic}_{metric}_ms" for metric in ("ttft", "tpot", "e2el") for statistic in ("mean", "p99"))


@dataclass(frozen=True, slots=True)
class Share:
    """The load of each of several equal servers."""

    servers: int
    workload: Load


@dataclass(frozen=True)
class ComparedPoint:
    """One setup under one load. Means are over all requests, the 99th percentile is the busiest server's."""

    setup: Setup
    workload: Load
    price: Price | None
    shares: tuple[Share, ...]
    predictions: tuple[Prediction, ...]
    tried: tuple[tuple[Setup, Estimate], ...] = ()  #: every setup, this one too, at the load of its busiest server

    @property
    def gpu(self) -> str:
        return self.setup.profile.id

    @property
    def load(self) -> float:
        return self.workload.value

    @cached_property
    def keeps_up(self) -> bool:
        """True if no queue grows without end; a closed loop always keeps up."""
        deployment, share = self.setup.deployment, self.shares[0].workload
        return not self.workload.open or share.request_rate <= steady_per_s(deployment, share) * (1 + TOLERANCE)

    @cached_property
    def tok_per_s(self) -> Interval:
        """Output tokens per second of all servers; of an open loop that keeps up, as many as are asked for."""
        if self.workload.open and self.keeps_up:
            return Interval.exact(self.workload.output_tok_per_s)
        pairs = zip(self.shares, self.predictions, strict=True)
        return Interval.sum(interval_of(one.result, "output_throughput").scaled(share.servers) for share, one in pairs)

    @property
    def tok_per_s_per_gpu(self) -> Interval:
        """Output tokens per second and GPU, whole or logical as ``per`` says."""
        return self.tok_per_s.scaled(1 / self.setup.counted_gpus)

    @property
    def tok_per_s_per_user(self) -> Interval | None:
        """Output tokens per second of one request, in an open loop of its mean E2EL; None likewise."""
        if self.workload.max_concurrency is not None:
            return self.tok_per_s.scaled(1 / self.workload.max_concurrency)
        e2el_ms, each = self.latency_ms("mean_e2el_ms"), self.workload.output_tok_per_s / self.workload.request_rate
        return Interval.exact(each * 1e3).over(e2el_ms) if e2el_ms else None

    @property
    def usd_per_h(self) -> Interval | None:
        return self.price.usd_per_h.scaled(self.setup.num_gpus) if self.price else None

    @property
    def usd_per_million_tok(self) -> Interval | None:
        """USD per 1M output tokens; None where no price is known, or it is zero."""
        usd = self.usd_per_h
        return usd.scaled(MILLION_PER_S).over(self.tok_per_s) if usd and usd.mid else None

    @property
    def tok_per_usd(self) -> Interval | None:
        """Output tokens for one USD; None likewise."""
        usd = self.usd_per_h
        return self.tok_per_s.scaled(HOUR_S).over(usd) if usd and usd.low else None

    @property
    def power_w(self) -> float | None:
        watts = power_w(self.setup.profile)
        return watts * self.setup.num_gpus if watts else None

    @property
    def tok_per_joule(self) -> Interval | None:
        """Output tokens for one joule at board power; None where the power is not known."""
        return self.tok_per_s.scaled(1 / self.power_w) if self.power_w else None

    def forecast(self, span: Interval | None, *, per_user: bool = False) -> Forecast | None:
        """The middle of ``span``, a rate, as uncertain as the throughput; ``per_user`` of an open loop as mean E2EL."""
        if span is None or not self.keeps_up:
            return None
        queued = per_user and self.workload.max_concurrency is None
        key, power = ("mean_e2el_ms", -1.0) if queued else ("output_throughput", 1.0)
        return Forecast.of(span.mid, self.predictions[0].uncertainty, key, power)

    def latency_ms(self, key: str) -> Interval | None:
        """Such as ``mean_ttft_ms``; None where a queue grows without end."""
        if not self.keeps_up:
            return None
        results = [prediction.result for prediction in self.predictions]
        if not key.startswith("mean_"):
            return interval_of(results[0], key)
        pairs = zip(self.shares, results, strict=True)
        rates = [share.servers * result["request_throughput"] for share, result in pairs]
        means = zip(results, rates, strict=True)
        return Interval.sum(interval_of(result, key).scaled(rate / sum(rates)) for result, rate in means)

    @cached_property
    def bound_by(self) -> str:
        if not self.keeps_up:
            return "queueing: more arrives than is served"
        share, served = self.shares[0].workload, self.predictions[0].replay
        return find_limit(self.setup.deployment, served, share)

    @cached_property
    def latencies(self) -> dict[str, Interval | None]:
        return {key: self.latency_ms(key) for key in LATENCIES}


def measure_point(setup: Setup, workload: Load, price: Price | None = None) -> ComparedPoint:
    shares = dealt(setup.deployment, workload, setup.servers)
    predictions = tuple(Prediction.of(setup.deployment, share.workload) for share in shares)
    return ComparedPoint(setup, workload, price, shares, predictions)


def _best_point(setups: Sequence[Setup], workload: Load, price: Price | None) -> ComparedPoint:
    def slowness(point: ComparedPoint) -> tuple[bool, float, float]:
        e2el = point.latency_ms("mean_e2el_ms")
        return not point.keeps_up, e2el.mid if e2el else inf, -point.tok_per_s.mid

    tried = tuple((setup, _closed_form(setup, workload)) for setup in setups)
    finalists = sorted(tried, key=lambda one: one[1].e2el_s)[: defaults.COMPARED_FINALISTS]
    return replace(min((measure_point(setup, workload, price) for setup, _ in finalists), key=slowness), tried=tried)


def _closed_form(setup: Setup, workload: Load) -> Estimate:
    """The busiest server; what the KV cache does not hold waits its turn, which is in E2EL alone."""
    deployment, share = setup.deployment, dealt(setup.deployment, workload, setup.servers)[0].workload
    held = most_held(deployment, share)
    flying = share.max_concurrency or in_flight(deployment, share, share.request_rate)
    served = at_concurrency(deployment, share, min(flying, held))
    overload = flying / held if share.max_concurrency else share.request_rate / steady_per_s(deployment, share)
    return replace(served, e2el_s=served.e2el_s * max(overload, 1.0))


def dealt(deployment: Deployment, workload: Load, servers: int) -> tuple[Share, ...]:
    """``workload`` dealt evenly to ``servers``, the busiest first; servers that get nothing are left out."""

    def share(each: Load, flying: float, count: int) -> Share:
        enough = max(defaults.LEAST_SEARCH_PROMPTS, round(defaults.PROMPTS_PER_SLOT * flying))
        asked = max(round(workload.num_prompts / servers), 1) if workload.num_prompts > 1 else enough
        return Share(count, replace(each, num_prompts=asked))

    each = workload.share_of(servers)
    if workload.max_concurrency is None:  # beyond full batches only the queue grows
        flying = in_flight(deployment, each, min(each.request_rate, steady_per_s(deployment, each)))
        return (share(each, flying, servers),)
    small, more = divmod(workload.max_concurrency, servers)
    sizes = [(small + 1, more), (small, servers - more)]
    return tuple(share(replace(each, max_concurrency=n), n, count) for n, count in sizes if n and count)


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
        owned = {one.gpu: one.price.origin.endswith("owned") for one in self.points if one.price}
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
        setups = find_setups(question, profile, count_gpus(question, profile, share), longest)
        if isinstance(setups, Refused):
            refused.append(setups)
            continue
        price = price_of(profile, prices)
        points += [_best_point(setups, workload, price) for workload in loads]
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
            setups = find_setups(asked, profile, num_gpus, workload.max_total_len)
            if isinstance(setups, Refused):
                refused.append(setups)
            else:
                points += [measure_point(setup, workload) for setup in setups]
    return sorted(points, key=lambda point: -point.tok_per_s.mid), refused

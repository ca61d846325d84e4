"""GPUs side by side on equal hardware: who leads, and where the order flips as concurrency, rate or length grow.

An order comes with the probability that measurements have it too: errors that two GPUs share cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from math import ceil
from operator import attrgetter

from planner import progress
from planner.engine import legal_tensor_parallel_sizes
from planner.hardware import GpuProfile, load_all
from planner.planning import defaults
from planner.planning.compared_point import (
    ComparedPoint,
    Question,
    RefusedGpu,
    best_point,
    count_gpus,
    find_setups,
    find_share,
    measure_point,
)
from planner.planning.cost import price_of
from planner.planning.defaults import CERTAIN, EQUAL
from planner.planning.odds import Forecast, percent
from planner.planning.serving import Serving
from planner.workload import Load

Figure = Callable[[ComparedPoint], Forecast | None]
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
    tied: bool  #: first and second are equal

    @property
    def certain(self) -> bool:
        return self.probability >= CERTAIN


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


def standings(points: Sequence[ComparedPoint], at: Callable[[ComparedPoint], float], figure: Figure) -> list[Standing]:
    """The order at each place of the axis ``at``, ascending. Who lacks the figure is left out."""
    places = []
    for value, group in groupby(sorted(points, key=at), key=at):
        forecasts = {point.gpu: forecast for point in group if (forecast := figure(point))}
        order = tuple(sorted(forecasts, key=lambda gpu: -forecasts[gpu].value))
        if len(order) > 1:
            first, second = forecasts[order[0]], forecasts[order[1]]
            places.append(Standing(value, order, first.beats(second), _equal(first, second)))
        elif order:
            places.append(Standing(value, order, 1.0, tied=False))
    return places


def flips(points: Sequence[ComparedPoint], at: Callable[[ComparedPoint], float], figure: Figure) -> Iterator[Flip]:
    """Every pair of GPUs that changes places between two neighbouring values of the axis, in its order."""
    by_place: dict[float, dict[str, Forecast]] = {}
    for point in sorted(points, key=at):
        if forecast := figure(point):
            by_place.setdefault(at(point), {})[point.gpu] = forecast
    for one, other in combinations(dict.fromkeys(point.gpu for point in points), 2):
        ahead: tuple[float, float] | None = None  # where, and the odds that ``one`` leads there
        for value, forecasts in by_place.items():
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
    runs = [(leader, list(group)) for leader, group in groupby(places, key=_leader)]
    if len(runs) == 1:
        where = f" at every {axis}" if len(places) > 1 else ""
        verb = "lead" if places[0].tied else "leads"
        return f"{runs[0][0]} {verb}{where}{_odds_in_words(places)}".replace(" alike lead", " lead alike")
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
    least, most = percent(odds[0]), percent(odds[-1])
    return f" ({least})" if least == most else f" ({least} to {most})"


def _leader(standing: Standing) -> str:
    return f"{standing.order[0]} and {standing.order[1]} alike" if standing.tied else standing.order[0]


def _equal(one: Forecast, other: Forecast) -> bool:
    return abs(one.value - other.value) <= EQUAL * max(one.value, other.value)


@dataclass(frozen=True, slots=True)
class Axis:
    """The points along which one thing changes and the rest of the load stays."""

    name: str  #: concurrency, request rate, input length, output length
    fixed: str  #: the rest of the load, in words
    at: Callable[[ComparedPoint], float]
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
    refused: tuple[RefusedGpu, ...]

    def orders(self) -> Iterator[Order]:
        """Each metric along each axis that has more than one value; along one load where there is just one."""
        for axis in self._axes():
            for metric, figure in METRICS.items():
                places = tuple(standings(axis.points, axis.at, figure))
                if places and max(len(standing.order) for standing in places) > 1:
                    yield Order(metric, axis, places, tuple(flips(axis.points, axis.at, figure)))

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
            at = attrgetter("workload.input_len" if inputs else "workload.output_len")
            yield Axis(name, fixed, at, chosen)


def compare_hardware(
    question: Question,
    profiles: Sequence[GpuProfile],
    workloads: Sequence[Load],
    prices: Mapping[str, float] | None = None,
) -> Comparison:
    """Every GPU under every load on equal hardware; ``prices`` as for ``cost.price_of``.

    A load is that of all servers together. ``num_prompts`` of 1 means as many as a steady state needs.
    """
    longest = max(workload.max_total_len for workload in workloads)
    share = find_share(question, profiles, longest) if question.per != "node" else 1
    points: list[ComparedPoint] = []
    refused: list[RefusedGpu] = []
    for profile in progress.each(profiles, lambda profile: profile.id):
        setups = find_setups(question, profile, count_gpus(question, profile, share), longest)
        if isinstance(setups, RefusedGpu):
            refused.append(setups)
            continue
        price = price_of(profile, prices)
        points += [best_point(setups, workload, price) for workload in workloads]
    return Comparison(question, share, tuple(workloads), tuple(points), tuple(refused))


def compare_partitions(
    serving: Serving, whole: GpuProfile, workload: Load
) -> tuple[list[ComparedPoint], list[RefusedGpu]]:
    """A node of whole GPUs and the same node in CPX modes under one load, most tokens/s first; and what cannot run.

    Each partition gets a server of its own. Of whole GPUs each gets one, or the node gets a single one. A server runs
    as many requests at once as it gets of the load.
    """
    points: list[ComparedPoint] = []
    refused: list[RefusedGpu] = []
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
            if isinstance(setups, RefusedGpu):
                refused.append(setups)
            else:
                points += [measure_point(setup, workload) for setup in setups]
    return sorted(points, key=lambda point: -point.tok_per_s.mid), refused

"""GPUs side by side: every GPU under every load, those that cannot take part, and who leads where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.compare.machine import Question, Refused, fair_share, machines, units_of
from planner.compare.order import METRICS, Flip, Standing, flips, standings
from planner.compare.point import Point, best_point
from planner.cost import price_of
from planner.hardware import GpuProfile
from planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Axis:
    """The points along which one thing changes and the rest of the load stays."""

    name: str  #: concurrency, request rate, input length, output length
    fixed: str  #: the rest of the load, in words
    at: Callable[[Point], float]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Who leads in one metric along one axis."""

    metric: str
    axis: Axis
    standings: tuple[Standing, ...]
    flips: tuple[Flip, ...]


@dataclass(frozen=True)
class Comparison:
    """Points of equal hardware, load by load."""

    question: Question
    share: int  #: packages (of ``gpu``: logical GPUs) of each; of no meaning for ``node``
    workloads: tuple[Workload, ...]
    points: tuple[Point, ...]
    refused: tuple[Refused, ...]

    def orders(self) -> Iterator[Order]:
        """Each metric along each axis that has more than one value; along one load where there is just one."""
        for axis in self._axes():
            for metric, figure in METRICS.items():
                found = tuple(standings(axis.points, axis.at, figure))
                if found and max(len(standing.order) for standing in found) > 1:
                    yield Order(metric, axis, found, tuple(flips(axis.points, axis.at, figure)))

    def _axes(self) -> Iterator[Axis]:
        loads = list(dict.fromkeys(_load(w) for w in self.workloads))
        lengths = list(dict.fromkeys((w.input_len, w.output_len) for w in self.workloads))
        closed = self.workloads[0].max_concurrency is not None
        for length in lengths if len(loads) > 1 or len(lengths) == 1 else ():
            chosen = tuple(p for p in self.points if (p.workload.input_len, p.workload.output_len) == length)
            name = "concurrency" if closed else "request rate"
            yield Axis(name, f"{length[0]:,} in / {length[1]:,} out", lambda point: point.load, chosen)
        for load in loads if len(lengths) > 1 else ():
            chosen = tuple(p for p in self.points if _load(p.workload) == load)
            inputs = len({p.workload.input_len for p in chosen}) > 1
            name = "input length" if inputs else "output length"
            fixed = f"concurrency {load:,g}" if closed else f"{load:g} requests/s"
            yield Axis(name, fixed, _input_len if inputs else _output_len, chosen)


def compare(
    question: Question,
    profiles: Sequence[GpuProfile],
    workloads: Sequence[Workload],
    prices: Mapping[str, float] | None = None,
) -> Comparison:
    """Every GPU under every load on equal hardware; ``prices`` as for ``cost.price_of``.

    Closed loops are of all servers together, as rates are. ``num_prompts`` of 1 means as many as a steady state needs.
    """
    longest = max(workload.max_total_len for workload in workloads)
    share = fair_share(question, profiles, longest) if question.per != "node" else 1
    points: list[Point] = []
    refused: list[Refused] = []
    for profile in profiles:
        found = machines(question, profile, units_of(question, profile, share), longest)
        if isinstance(found, Refused):
            refused.append(found)
            continue
        price = price_of(profile, prices)
        points += [best_point(found, workload, price) for workload in workloads]
    return Comparison(question, share, tuple(workloads), tuple(points), tuple(refused))


def _load(workload: Workload) -> float:
    return workload.max_concurrency or workload.request_rate


def _input_len(point: Point) -> float:
    return point.workload.input_len


def _output_len(point: Point) -> float:
    return point.workload.output_len

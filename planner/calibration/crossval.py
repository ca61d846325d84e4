"""How far off the fit is where it has not looked: errors of runs that were left out, and intervals from them.

An interval must know how familiar a configuration is. So runs are left out in six ways, each of which leaves the
fit as familiar with them as the interval is for::

    setting       this model on this GPU in this version at this TP was measured, under another load
    combination   the GPU was measured with this model in this precision, in another version or at another TP
    parts         the GPU and the model were measured, but not together
    gpu           the GPU was measured, the model was not
    architecture  the GPU was not measured, but others of its architecture may have been
    nothing       no GPU of its architecture was
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from planner.calibration.effects import Design
from planner.calibration.fit import Problem
from planner.calibration.leaveout import LeaveOut
from planner.calibration.observed import Floats, Observed
from planner.calibration.structure import STRUCTURE, Line
from planner.calibration.terms import Terms
from planner.efficiency import Familiarity, Spread

COVERAGE = 0.90
#: Runs of one group err alike, so that quantiles of some groups are too narrow for another one: taken as wide as this,
#: intervals from other groups cover ``COVERAGE`` of a group (``benchmarks/accuracy.py`` measures it).
BAND_OF_GROUPS = 0.95
BAND_OF_RUNS = 0.92  #: likewise of single runs
#: Fewer errors than this say nothing of their tails.
LEAST_ROWS = 20
#: Tails of few rows are luck: an interval is drawn towards that of the pool around it (GPUs that are linked alike, and
#: then all runs) as if so many of those were in it.
DRAWN_ROWS = 50
#: Circumstances in which errors are wide or narrow: the engine's era and whether there are experts, the GPU, how GPUs
#: are linked. Of those that hold for a run, the mean of the logarithms is taken (``Calibration.interval``).
SCOPES = (("era", "kind"), ("architecture", "gpu"), ("links", "platform"))
Where = tuple[tuple[str, str], ...]
Pools = dict[tuple[str, Where], NDArray[np.int64]]
Bounds = tuple[float, float]

#: What is left out together, for each familiarity.
LEFT_OUT: dict[Familiarity, Callable[[Observed], Hashable]] = {
    "setting": lambda one: one.run_id,
    "combination": lambda one: one.group,
    "parts": lambda one: (one.circumstances["gpu"], one.circumstances["shape"]),
    "gpu": lambda one: one.circumstances["shape"],
    "architecture": lambda one: one.circumstances["gpu"],
    "nothing": lambda one: one.circumstances["architecture"],
}


def cross_validate(
    observed: Sequence[Observed],
    structure: Sequence[Line] = STRUCTURE,
    left_out: Callable[[Observed], Hashable] = LEFT_OUT["combination"],
) -> Floats:
    """log(predicted / measured) of every metric, each by a fit that saw no run of the same ``left_out`` group."""
    return leave_out(observed, structure).errors([left_out(one) for one in observed])


def leave_out(observed: Sequence[Observed], structure: Sequence[Line] = STRUCTURE) -> LeaveOut:
    """The fit to everything, and from it those without some of the runs."""
    problem = Problem(Terms(observed), Design(observed, structure))
    return LeaveOut(problem, problem.solve(np.ones(problem.terms.num_metrics, dtype=bool), uncertain=False))


def spreads(terms: Terms, errors_without: Mapping[Familiarity, Floats]) -> tuple[tuple[Spread, ...], dict[str, float]]:
    """Intervals by metric, familiarity and ``SCOPES``; and the median error of each metric of a known combination.

    ``errors_without``: log(predicted / measured) of every metric of ``terms``, left out in each way.
    """
    found: list[Spread] = []
    median_error: dict[str, float] = {}
    for familiarity, errors in errors_without.items():
        bands = Bands(terms, errors, familiarity)
        for (metric, when), members in bands.pools.items():
            if bounds := bands.bounds(metric, when):
                low, high = bounds
                lo, hi = round(min(exp(low), 1.0), 3), round(max(exp(high), 1.0), 3)
                found.append(
                    Spread(metric=metric, familiarity=familiarity, when=dict(when), rows=len(members), lo=lo, hi=hi)
                )
            if familiarity == "combination" and not when:
                median_error[metric] = round(float(np.median(np.abs(np.expm1(errors[members])))), 4)
    return tuple(found), median_error


class Bands:
    """Bounds of the errors of each pool: its own tails, drawn towards those of the pool around it."""

    def __init__(self, terms: Terms, errors: Floats, familiarity: Familiarity) -> None:
        self.errors, self.familiarity = errors, familiarity
        self.pools = error_pools(terms)
        self.around = {key: _around(key, self.pools) for key in self.pools}
        keys = [str(LEFT_OUT[familiarity](terms.observed[run])) for run in terms.metric_run.tolist()]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        #: number of what each metric is left out together with
        self.group: NDArray[np.int64] = np.array([number[key] for key in keys])
        self._known: dict[tuple[str, Where, int], Bounds | None] = {}

    def bounds(self, metric: str, when: Where, unseen: int = -1) -> Bounds | None:
        """Logarithms of measured / predicted, without the group ``unseen``; None where too few are left."""
        key = (metric, when, unseen)
        if key not in self._known:
            self._known[key] = self._bounds(*key)
        return self._known[key]

    def _bounds(self, metric: str, when: Where, unseen: int) -> Bounds | None:
        members = self.pools[metric, when]
        members = members[self.group[members] != unseen]
        if len(members) < LEAST_ROWS:
            return None
        own = tails(metric, self.errors[members], self.familiarity)
        around = self.around[metric, when]
        outer = None if around is None else self.bounds(metric, around, unseen)
        return drawn(own, len(members), outer) if outer else own


def _around(key: tuple[str, Where], pools: Pools) -> Where | None:
    """The smallest larger pool of the same metric that holds all of pool ``key``: GPUs linked alike, or all runs."""
    metric, _ = key
    inside = frozenset(pools[key].tolist())
    larger = {
        other: members
        for (name, other), members in pools.items()
        if name == metric and len(members) > len(inside) and inside.issubset(members.tolist())
    }
    return min(larger, key=lambda other: len(larger[other]), default=None)


def error_pools(terms: Terms) -> Pools:
    """Which metrics are of one kind: of all runs, and of those in each circumstance of ``SCOPES``."""
    found: dict[tuple[str, Where], list[int]] = defaultdict(list)
    for number, (run, metric) in enumerate(zip(terms.metric_run.tolist(), terms.metric_names, strict=True)):
        for when in ((), *_places(terms.observed[run])):
            found[metric, when].append(number)
    return {key: np.array(numbers) for key, numbers in found.items()}


def _places(one: Observed) -> list[Where]:
    return [tuple((key, one.circumstances[key]) for key in scope) for scope in SCOPES]


def tails(metric: str, errors: Floats, familiarity: Familiarity) -> Bounds:
    """Between which logarithms of measured / predicted measurements lie, from ``errors`` of ``metric``."""
    band = BAND_OF_RUNS if familiarity == "setting" else BAND_OF_GROUPS
    # a throughput was observed as a duration: its error has the other sign
    logs = errors if metric == "output_throughput" else -errors
    low, high = np.quantile(logs, [(1 - band) / 2, (1 + band) / 2]).tolist()
    return low, high


def drawn(own: Bounds, rows: int, around: Bounds) -> Bounds:
    """``own`` bounds, of so many rows, drawn towards those of a larger pool."""
    share = rows / (rows + DRAWN_ROWS)
    low, high = (share * mine + (1 - share) * other for mine, other in zip(own, around, strict=True))
    return low, high


def held_out_intervals(terms: Terms, errors: Floats, familiarity: Familiarity) -> list[tuple[float, float]]:
    """For each metric the interval that all runs but those left out with it give: (lo, hi) of measured / predicted."""
    bands = Bands(terms, errors, familiarity)
    found = []
    for run, metric, own in zip(terms.metric_run.tolist(), terms.metric_names, bands.group.tolist(), strict=True):
        everywhere = bands.bounds(metric, (), own)
        if everywhere is None:
            found.append((0.0, float("inf")))
            continue
        places = [bands.bounds(metric, when, own) for when in _places(terms.observed[run])]
        low, high = np.mean([place for place in places if place] or [everywhere], axis=0).tolist()
        found.append((min(1.0, exp(low)), max(1.0, exp(high))))
    return found

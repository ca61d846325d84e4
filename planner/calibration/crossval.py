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
#: Tails of few rows are luck: an interval is drawn towards that of all runs as if so many of those were in it.
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
    pools = error_pools(terms)
    found: list[Spread] = []
    median_error: dict[str, float] = {}
    for familiarity, errors in errors_without.items():
        for (metric, when), members in pools.items():
            if len(members) >= LEAST_ROWS:
                everywhere = tails(metric, errors[pools[metric, ()]], familiarity)
                low, high = drawn(tails(metric, errors[members], familiarity), len(members), everywhere)
                lo, hi = round(min(exp(low), 1.0), 3), round(max(exp(high), 1.0), 3)
                found.append(
                    Spread(metric=metric, familiarity=familiarity, when=dict(when), rows=len(members), lo=lo, hi=hi)
                )
            if familiarity == "combination" and not when:
                median_error[metric] = round(float(np.median(np.abs(np.expm1(errors[members])))), 4)
    return tuple(found), median_error


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


def drawn(own: Bounds, rows: int, everywhere: Bounds) -> Bounds:
    """``own`` bounds, of so many rows, drawn towards those of all runs."""
    share = rows / (rows + DRAWN_ROWS)
    low, high = (share * mine + (1 - share) * all_ for mine, all_ in zip(own, everywhere, strict=True))
    return low, high


def held_out_intervals(terms: Terms, errors: Floats, familiarity: Familiarity) -> list[tuple[float, float]]:
    """For each metric the interval that all runs but those left out with it give: (lo, hi) of measured / predicted."""
    pools = error_pools(terms)
    keys = [str(LEFT_OUT[familiarity](terms.observed[run])) for run in terms.metric_run.tolist()]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    left_out = np.array([number[key] for key in keys])
    known: dict[tuple[str, Where, int], tuple[Bounds, int] | None] = {}

    def without(metric: str, when: Where, own: int) -> tuple[Bounds, int] | None:
        if (metric, when, own) not in known:
            members = pools[metric, when]
            others = members[left_out[members] != own]
            enough = len(others) >= LEAST_ROWS
            known[metric, when, own] = (tails(metric, errors[others], familiarity), len(others)) if enough else None
        return known[metric, when, own]

    found = []
    for run, metric, own in zip(terms.metric_run.tolist(), terms.metric_names, left_out.tolist(), strict=True):
        everywhere = without(metric, (), own)
        if everywhere is None:
            found.append((0.0, float("inf")))
            continue
        places = [without(metric, when, own) for when in _places(terms.observed[run])]
        bounds = [drawn(*place, everywhere[0]) for place in places if place] or [everywhere[0]]
        low, high = np.mean(bounds, axis=0).tolist()
        found.append((min(1.0, exp(low)), max(1.0, exp(high))))
    return found

"""How far off the fit is where it has not looked: errors of runs that were left out, and intervals from them.

An interval must know how familiar a configuration is. So runs are left out in five ways, each of which leaves the
fit as familiar with them as the interval is for::

    combination   the GPU was measured with this model in this precision, in another version or at another TP
    parts         the GPU and the model were measured, but not together
    gpu           the GPU was measured, the model was not
    architecture  the GPU was not measured, but others of its architecture may have been
    nothing       no GPU of its architecture was
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.calibration.effects import Design
from planner.calibration.fit import Problem
from planner.calibration.observed import Floats, Observed
from planner.calibration.structure import STRUCTURE, Line
from planner.calibration.terms import Terms
from planner.efficiency import Familiarity, Spread

FOLDS = 5
ITERATIONS = 6
COVERAGE = 0.90
#: Fewer errors than this say nothing of their tails.
LEAST_ROWS = 12

#: What is left out together, for each familiarity.
LEFT_OUT: dict[Familiarity, Callable[[Observed], Hashable]] = {
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
    *,
    problem: Problem | None = None,
    seed: int = 0,
) -> Floats:
    """log(predicted / measured) of every metric, each by a fit that saw no run of the same ``left_out`` group."""
    problem = problem or Problem(Terms(observed), Design(observed, structure))
    everything = np.ones(problem.terms.num_metrics, dtype=bool)
    start = problem.solve(everything, uncertain=False).factors
    fold = _folds([left_out(one) for one in observed], seed)[problem.terms.metric_run]
    errors = np.full(problem.terms.num_metrics, np.nan)
    for number in range(FOLDS):
        unseen = fold == number
        # half way back to the priors: near enough to converge soon, too far to remember what it saw
        fitted = problem.solve(~unseen, (start + problem.design.mean) / 2, iterations=ITERATIONS, uncertain=False)
        errors[unseen] = problem.errors(fitted)[unseen]
    return errors


def _folds(groups: Sequence[Hashable], seed: int) -> NDArray[np.int64]:
    """A fold for each group, at random but the same every time."""
    names = sorted({str(group) for group in groups})
    np.random.default_rng(seed).shuffle(names)
    number = {name: i % FOLDS for i, name in enumerate(names)}
    return np.array([number[str(group)] for group in groups], dtype=np.int64)


def spreads(
    observed: Sequence[Observed], structure: Sequence[Line] = STRUCTURE
) -> tuple[tuple[Spread, ...], dict[str, float]]:
    """Intervals by metric and familiarity; and the median error of each metric of a known combination."""
    problem = Problem(Terms(observed), Design(observed, structure))
    names = problem.terms.metric_names
    found, median_error = [], {}
    for familiarity, left_out in LEFT_OUT.items():
        errors = cross_validate(observed, structure, left_out, problem=problem)
        by_metric: dict[str, list[float]] = defaultdict(list)
        for name, error in zip(names, errors.tolist(), strict=True):
            by_metric[name].append(error)
        for name, values in by_metric.items():
            if len(values) < LEAST_ROWS:
                continue
            # a throughput was observed as a duration: its error has the other sign
            ratio = np.array(values) if name == "output_throughput" else -np.array(values)
            lo, hi = np.exp(np.quantile(ratio, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))
            found.append(
                Spread(
                    metric=name,
                    familiarity=familiarity,
                    lo=round(float(min(lo, 1)), 3),
                    hi=round(float(max(hi, 1)), 3),
                    rows=len(values),
                )
            )
            if familiarity == "combination":
                median_error[name] = round(float(np.median(np.abs(np.expm1(ratio)))), 4)
    return tuple(found), median_error

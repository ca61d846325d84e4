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
from collections.abc import Callable, Hashable, Sequence
from math import exp

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
LEAST_ROWS = 25
#: Circumstances in which errors are wide or narrow: the engine's era, and whether there are experts.
SCOPE = ("era", "kind")
Where = tuple[tuple[str, str], ...]

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
    """Intervals by metric, familiarity and ``SCOPE``; and the median error of each metric of a known combination."""
    problem = Problem(Terms(observed), Design(observed, structure))
    found: list[Spread] = []
    median_error: dict[str, float] = {}
    for familiarity, left_out in LEFT_OUT.items():
        errors = cross_validate(observed, structure, left_out, problem=problem)
        for (metric, when), ratios in _measured_over_predicted(problem.terms, errors).items():
            if len(ratios) >= LEAST_ROWS:
                found.append(_spread(metric, familiarity, dict(when), ratios))
            if familiarity == "combination" and not when:
                median_error[metric] = round(float(np.median(np.abs(1 / np.array(ratios) - 1))), 4)
    return tuple(found), median_error


def _measured_over_predicted(terms: Terms, errors: Floats) -> dict[tuple[str, Where], list[float]]:
    """Ratios of every metric, of all runs and of those in each circumstance of ``SCOPE``."""
    found: dict[tuple[str, Where], list[float]] = defaultdict(list)
    for run, metric, error in zip(terms.metric_run.tolist(), terms.metric_names, errors.tolist(), strict=True):
        # a throughput was observed as a duration: its error has the other sign
        ratio = exp(error if metric == "output_throughput" else -error)
        circumstances = terms.observed[run].circumstances
        found[metric, ()].append(ratio)
        found[metric, tuple((key, circumstances[key]) for key in SCOPE)].append(ratio)
    return found


def _spread(metric: str, familiarity: Familiarity, when: dict[str, str], ratios: list[float]) -> Spread:
    low, high = np.quantile(ratios, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]).tolist()
    lo, hi = round(min(low, 1.0), 3), round(max(high, 1.0), 3)
    return Spread(metric=metric, familiarity=familiarity, when=when, lo=lo, hi=hi, rows=len(ratios))

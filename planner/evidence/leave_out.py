"""Fits without some of the runs, found from the fit to all of them.

A fit is the optimum of a sum over rows (metrics of runs) of weight x residual^2, and of a prior. Taking the rows R away
moves it, to first order, by (Woodbury)::

    step = A^-1 J_R' (W_R^-1 - J_R A^-1 J_R')^-1 r_R            A = J' W J + prior, at the fit to everything

so that hundreds of fits cost little more than one. Each is then evaluated exactly, on the runs that it did not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import exp, log
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from planner.evidence.effects import Design, StructureLine
from planner.evidence.evaluation import Case, case_of, predict, resent
from planner.evidence.fitting import LARGEST_STEP, EfficiencyFit, FitProblem
from planner.evidence.observe import Floats, Observed
from planner.evidence.runs import MeasuredRun
from planner.evidence.terms import Terms
from planner.timing import Calibration, Proximity, Spread, load_calibration


class LeaveOut:
    """The normal equations of ``problem`` where ``fitted``, the fit to all runs, has its optimum."""

    def __init__(self, problem: FitProblem, fitted: EfficiencyFit) -> None:
        self.problem, self.factors = problem, fitted.factors
        terms, design = problem.terms, problem.design
        predicted, derivative = terms.log_metrics(design.log_values(fitted.factors))
        self.rows = problem.rows
        self._jacobian = design.jacobian(derivative[self.rows], terms.metric_run[self.rows])
        self._left: Floats = (predicted - terms.log_measured)[self.rows]
        sigma = problem.sigma[self.rows]
        robust = (1 + (self._left / sigma) ** 2) ** -0.5
        self._weight: Floats = robust / (problem.shares(self.rows) * sigma**2)
        weighted = self._jacobian * self._weight[:, None]
        self._factor = cho_factor(weighted.T @ self._jacobian + np.diag(design.sd**-2))
        drawn = (self.factors - design.mean) / design.sd**2
        step = -cho_solve(self._factor, weighted.T @ self._left + drawn)  # what the iteration stopped short of
        step = np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        self.factors, self._left = self.factors + step, self._left + self._jacobian @ step

    def factors_without(self, rows: NDArray[np.int64]) -> Floats:
        """Factors of the fit that does not see ``rows``, places in ``self.rows``."""
        unseen = self._jacobian[rows]
        moved = cho_solve(self._factor, unseen.T)
        inner = np.diag(1 / self._weight[rows]) - unseen @ moved
        step: Floats = moved @ np.linalg.solve(inner, self._left[rows])
        return self.factors + np.clip(step, -LARGEST_STEP, LARGEST_STEP)  # beyond, nothing is linear

    def refit(self) -> EfficiencyFit:
        """The fit to all runs."""
        everything = np.ones(self.problem.terms.num_metrics, dtype=bool)
        return self.problem.solve(everything, self.factors, iterations=5)

    def members(self, keys: Sequence[Hashable]) -> Iterable[list[int]]:
        """The numbers of the runs of each key, of which every run has one."""
        found: dict[Hashable, list[int]] = defaultdict(list)
        for run, key in enumerate(keys):
            found[key].append(run)
        return found.values()

    def fit_without(self, runs: Sequence[int]) -> EfficiencyFit:
        """The fit that does not see ``runs``."""
        rows = np.flatnonzero(np.isin(self.problem.terms.metric_run[self.rows], runs))
        factors = self.factors_without(rows)
        return EfficiencyFit(self.problem.design, factors, np.zeros_like(factors), float("nan"))

    def errors(self, keys: Sequence[Hashable]) -> Floats:
        """log(predicted / measured) of every metric, by a fit without the runs of the same key."""
        terms, design = self.problem.terms, self.problem.design
        found = np.full(terms.num_metrics, np.nan)
        for runs in self.members(keys):
            values = design.log_values(self.fit_without(runs).factors)
            predicted, _ = Terms([terms.observed[run] for run in runs]).log_metrics(values[runs])
            metrics = np.flatnonzero(np.isin(terms.metric_run, runs))
            found[metrics] = predicted - terms.log_measured[metrics]
        return found


# --- intervals from the errors of runs that were left out
#
# An interval depends on how near measured runs are. So runs are left out in six ways, one for each proximity::
#
#     setting       this model was measured on this GPU in this version at this TP, under another load
#     combination   the GPU was measured with this model in this precision, in another version or at another TP
#     parts         the GPU and the model were measured, but not together
#     gpu           the GPU was measured, the model was not
#     architecture  the GPU was not measured, others of its architecture may have been
#     nothing       no GPU of its architecture was measured

#: Runs of one group err alike, so quantiles over some groups are too narrow for another one. With this band, intervals
#: from other groups cover 90 % of a group (``benchmarks/accuracy.py`` measures it).
BAND_OF_GROUPS = 0.95
BAND_OF_RUNS = 0.92  #: the same for single runs
LEAST_ROWS = 20  #: errors that tails are read off
#: Rows of the pool around (GPUs with the same links, then all runs) that a pool is averaged with: few rows have random
#: tails.
DRAWN_ROWS = 50
LEAST_FACTOR = 0.001  #: that an interval is written with
#: Covariates that errors are pooled by: generation and experts, GPU, links. Of the pools of a run the mean of the
#: logarithms counts (``Calibration.interval``).
SCOPES = (("generation", "kind"), ("architecture", "gpu"), ("links", "platform"))
Where = tuple[tuple[str, str], ...]
Pools = dict[tuple[str, Where], NDArray[np.int64]]
Bounds = tuple[float, float]

#: What is left out together for each proximity.
LEFT_OUT: dict[Proximity, Callable[[Observed], Hashable]] = {
    "setting": lambda one: one.run_id,
    "combination": lambda one: one.group,
    "parts": lambda one: (one.covariates["gpu"], one.covariates["shape"]),
    "gpu": lambda one: one.covariates["shape"],
    "architecture": lambda one: one.covariates["gpu"],
    "nothing": lambda one: one.covariates["architecture"],
}


def cross_validate(
    observed: Sequence[Observed],
    structure: Sequence[StructureLine] | None = None,
    left_out: Callable[[Observed], Hashable] = LEFT_OUT["combination"],
) -> Floats:
    """log(predicted / measured) of every metric, each by a fit without the runs of its ``left_out`` group."""
    return leave_out(observed, structure).errors([left_out(one) for one in observed])


def leave_out(observed: Sequence[Observed], structure: Sequence[StructureLine] | None = None) -> LeaveOut:
    """The fit to all runs, and from it those without some of them."""
    problem = FitProblem(Terms(observed), Design(observed, structure))
    everything = np.ones(problem.terms.num_metrics, dtype=bool)
    start = problem.design.factors_of(load_calibration().effects)
    return LeaveOut(problem, problem.solve(everything, start, uncertain=False))


def spreads(terms: Terms, errors_without: Mapping[Proximity, Floats]) -> tuple[tuple[Spread, ...], dict[str, float]]:
    """Intervals by metric, proximity and ``SCOPES``; and the median error of each metric at proximity "combination".

    ``errors_without``: log(predicted / measured) of every metric of ``terms`` for each proximity.
    """
    found: list[Spread] = []
    median_error: dict[str, float] = {}
    for proximity, errors in errors_without.items():
        bands = Bands(terms, errors, proximity)
        for (metric, when), members in bands.pools.items():
            if bounds := bands.bounds(metric, when):
                low, high = bounds
                lo, hi = max(round(min(exp(low), 1.0), 3), LEAST_FACTOR), round(max(exp(high), 1.0), 3)
                found.append(
                    Spread(metric=metric, proximity=proximity, when=dict(when), rows=len(members), lo=lo, hi=hi)
                )
            if proximity == "combination" and not when:
                median_error[metric] = round(float(np.median(np.abs(np.expm1(errors[members])))), 4)
    return tuple(found), median_error


class Bands:
    """Bounds of the errors of each pool: its own tails, averaged with those of the pool around it."""

    def __init__(self, terms: Terms, errors: Floats, proximity: Proximity) -> None:
        self.errors, self.proximity = errors, proximity
        self.pools = error_pools(terms)
        self.around = {key: _around(key, self.pools) for key in self.pools}
        keys = [str(LEFT_OUT[proximity](terms.observed[run])) for run in terms.metric_run.tolist()]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        #: number of the group that each metric is left out with
        self.group: NDArray[np.int64] = np.array([number[key] for key in keys])
        self._known: dict[tuple[str, Where, int], Bounds | None] = {}

    def bounds(self, metric: str, when: Where, unseen: int = -1) -> Bounds | None:
        """Logarithms of measured / predicted, without the group ``unseen``; None where too few rows are left."""
        key = (metric, when, unseen)
        if key not in self._known:
            self._known[key] = self._bounds(*key)
        return self._known[key]

    def _bounds(self, metric: str, when: Where, unseen: int) -> Bounds | None:
        members = self.pools[metric, when]
        members = members[self.group[members] != unseen]
        if len(members) < LEAST_ROWS:
            return None
        own = tails(metric, self.errors[members], self.proximity)
        around = self.around[metric, when]
        outer = None if around is None else self.bounds(metric, around, unseen)
        return drawn(own, len(members), outer) if outer else own


def _around(key: tuple[str, Where], pools: Pools) -> Where | None:
    """The smallest larger pool of the same metric that holds all of pool ``key``: the same links, or all runs."""
    metric, _ = key
    inside = frozenset(pools[key].tolist())
    larger = {
        other: members
        for (name, other), members in pools.items()
        if name == metric and len(members) > len(inside) and inside.issubset(members.tolist())
    }
    return min(larger, key=lambda other: len(larger[other]), default=None)


def error_pools(terms: Terms) -> Pools:
    """The numbers of each metric: of all runs, and of those with the same covariates of ``SCOPES``."""
    found: dict[tuple[str, Where], list[int]] = defaultdict(list)
    for number, (run, metric) in enumerate(zip(terms.metric_run.tolist(), terms.metric_names, strict=True)):
        for when in ((), *_places(terms.observed[run])):
            found[metric, when].append(number)
    return {key: np.array(numbers) for key, numbers in found.items()}


def _places(one: Observed) -> list[Where]:
    return [tuple((key, one.covariates[key]) for key in scope) for scope in SCOPES]


def tails(metric: str, errors: Floats, proximity: Proximity) -> Bounds:
    """The logarithms of measured / predicted that measurements lie between, from ``errors`` of ``metric``."""
    band = BAND_OF_RUNS if proximity == "setting" else BAND_OF_GROUPS
    # a throughput was observed as a duration: its error has the other sign
    logs = errors if metric == "output_throughput" else -errors
    low, high = np.quantile(logs, [(1 - band) / 2, (1 + band) / 2]).tolist()
    return low, high


def drawn(own: Bounds, rows: int, around: Bounds) -> Bounds:
    """``own`` bounds, of so many rows, averaged with those of a larger pool."""
    share = rows / (rows + DRAWN_ROWS)
    low, high = (share * mine + (1 - share) * other for mine, other in zip(own, around, strict=True))
    return low, high


def held_out_intervals(terms: Terms, errors: Floats, proximity: Proximity) -> list[tuple[float, float]]:
    """For each metric (lo, hi) of measured / predicted, from all runs but those left out with it."""
    bands = Bands(terms, errors, proximity)
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


# --- errors by replay: ``LeaveOut.errors`` keeps the steps of the fit to all runs, here the queue follows the new fit

#: What stands for a metric in runs that lack it, as in ``observe``.
STANDS_IN = {"output_throughput": "total_token_throughput", "avg_latency_s": "output_throughput"}


def replayed_errors(
    without: LeaveOut, runs: Iterable[MeasuredRun], left_out: Callable[[Observed], Hashable], *, processes: int = 1
) -> Floats:
    """log(predicted / measured) of every metric, each by a fit without the runs of its ``left_out`` group.

    Throughputs count as durations. ``runs`` holds at least those that were observed. With several ``processes`` the
    groups are dealt out among them.
    """
    runs, terms = list(runs), without.problem.terms
    replayer = _Replayer(without, {run.run_id: run for run in runs}, resent(runs))
    members = list(without.members([left_out(one) for one in terms.observed]))
    found = np.full(terms.num_metrics, np.nan)
    if processes == 1:
        parts = [replayer.errors(members)]
    else:
        fork = get_context("fork")  # what a process needs is there already
        with ProcessPoolExecutor(processes, fork, initializer=_share, initargs=(replayer,)) as pool:
            parts = list(pool.map(_shared_errors, [members[place::processes] for place in range(processes)]))
    for part in parts:
        for metric, error in part.items():
            found[metric] = error
    return found


@dataclass(frozen=True)
class _Replayer:
    """Replays runs with fits that did not see them."""

    without: LeaveOut
    runs: Mapping[str, MeasuredRun]
    resent: frozenset[str]

    def errors(self, members: Iterable[list[int]]) -> dict[int, float]:
        """Errors of the metrics of the runs in ``members``, by the number of the metric."""
        terms, found = self.without.problem.terms, {}
        for numbers in members:
            effects = self.without.fit_without(numbers).effects()
            calibration = Calibration(name="held out", fitted_on="the other runs", effects=effects)
            for number in numbers:
                run = self.runs[terms.observed[number].run_id]
                case = case_of(run, resent=run.run_id in self.resent)
                predicted = predict(_with(case, calibration))
                for metric in np.flatnonzero(terms.metric_run == number).tolist():
                    found[metric] = _log_error(run, terms.metric_names[metric], predicted)
        return found


_SHARED: list[_Replayer] = []  # of a process of the pool


def _share(replayer: _Replayer) -> None:
    _SHARED[:] = [replayer]


def _shared_errors(members: Sequence[list[int]]) -> dict[int, float]:
    return _SHARED[0].errors(members)


def _with(case: Case, calibration: Calibration) -> Case:
    return replace(case, deployment=replace(case.deployment, calibration=calibration))


def _log_error(run: MeasuredRun, metric: str, predicted: dict[str, float]) -> float:
    name = metric if metric in run.metrics else STANDS_IN[metric]
    error = log(predicted[name] / run.metrics[name])
    return -error if name.endswith("throughput") else error

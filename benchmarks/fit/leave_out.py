"""Fits without some of the runs, found from the fit to all of them.

A fit is the optimum of a sum over rows (metrics of runs) of weight x residual^2, and of a prior. Taking the rows R away
moves it, to first order, by (Woodbury)::

    step = A^-1 J_R' (W_R^-1 - J_R A^-1 J_R')^-1 r_R            A = J' W J + prior, at the fit to everything

so that hundreds of fits cost little more than one. A group of many runs moves it far: from the step on it is fitted
again. Each fit is then evaluated exactly, on the runs that it did not see.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from fit.design import Design, StructureLine, effects_of, posterior, unlearnt
from planner.evidence.evaluation import Case, case_of, figures_in_columns, resent, simulate
from planner.evidence.fitting import LARGEST_STEP, FitProblem, FitState, Fitted, load_structure, scatter_of
from planner.evidence.observations import Floats, Observed, Terms, observe
from planner.evidence.runs import MeasuredRun
from planner.timing import LEVELS, Calibration, Effect, Scatter, load_calibration
from planner.timing.belief import Belief

#: A factor of which runs teach a smaller share has no place in a fit: its prediction is the prior, and it keeps its
#: deviation. The share follows from what was run and not from what was measured, so the result of a run that is left
#: out has no say.
LEAST_LEARNT = 0.2
#: Groups of so many runs are fitted again: one step misses the median prediction of such a source by up to 13 %, and of
#: pairs with fewer runs by at most 0.3 %.
REFITTED_RUNS = 20


@dataclass(frozen=True, slots=True)
class Miss:
    """One figure of one run, as the fit without the run's group predicts it."""

    run: int  #: its number among those observed
    metric: str  #: as observed: a run without an output throughput has a total one in its place
    error: float  #: log(predicted / measured)
    deviation: float  #: predicted standard deviation of the logarithm, towards the measurement, without noise
    inside: bool | None = None  #: of a figure that no fit sees: whether it lies in the interval by the shipped scatters


class LeaveOut:
    """The normal equations of ``problem`` where ``fitted``, the fit to all runs, has its optimum."""

    def __init__(self, problem: FitProblem, design: Design, fitted: Fitted) -> None:
        self.problem, self.design, self.factors = problem, design, fitted.factors
        terms = problem.terms
        predicted, derivative = terms.log_metrics(design.log_values(fitted.factors))
        self.rows = problem.rows
        self._jacobian = design.jacobian(derivative[self.rows], terms.metric_run[self.rows])
        self._left: Floats = (predicted - terms.log_measured)[self.rows]
        sigma = problem.sigma[self.rows]
        robust = (1 + (self._left / sigma) ** 2) ** -0.5
        self._weight: Floats = robust / (problem.shares(self.rows) * sigma**2)
        weighted = self._jacobian * self._weight[:, None]
        self._factor = cho_factor(weighted.T @ self._jacobian + np.diag(design.sd**-2))

    @property
    def observed(self) -> Sequence[Observed]:
        """The runs that it is fitted to."""
        return self.problem.terms.observed

    def factors_without(self, rows: NDArray[np.int64]) -> Floats:
        """Factors of the fit that does not see ``rows``, places in ``self.rows``."""
        unseen = self._jacobian[rows]
        moved = cho_solve(self._factor, unseen.T)
        inner = np.diag(1 / self._weight[rows]) - unseen @ moved
        step: Floats = moved @ np.linalg.solve(inner, self._left[rows])
        return self.factors + np.clip(step, -LARGEST_STEP, LARGEST_STEP)  # beyond, nothing is linear

    def refit(self) -> tuple[Effect, ...]:
        """The factors of the fit to all runs."""
        return effects_of(self.design, Fitted(self.factors, covariance=self.covariance))

    def members(self, keys: Sequence[Hashable]) -> Iterable[list[int]]:
        """The numbers of the runs of each key, of which every run has one."""
        found: dict[Hashable, list[int]] = defaultdict(list)
        for run, key in enumerate(keys):
            found[key].append(run)
        return found.values()

    def fit_without(self, runs: Sequence[int]) -> Fitted:
        """The fit that does not see ``runs``."""
        stepped = self.factors_without(self._rows_of(runs))
        if len(runs) < REFITTED_RUNS:
            return Fitted(stepped)
        seen = ~np.isin(self.problem.terms.metric_run, runs)
        near = self.problem.solve(seen, stepped, iterations=12, settled=2e-4, uncertain=False).factors
        return Fitted(*_quasi_newton(self.problem, self.rows[seen[self.rows]], near, WIDTHS[-1]))

    def belief_without(self, runs: Sequence[int]) -> Belief:
        """What that fit leaves known of the factors."""
        rows = self._rows_of(runs)
        unseen = self._jacobian[rows]
        moved = cho_solve(self._factor, unseen.T)
        inner = np.diag(1 / self._weight[rows]) - unseen @ moved
        share, directions = np.linalg.eigh((inner + inner.T) / 2)
        root = directions / np.sqrt(np.maximum(share, 1e-9))
        return unlearnt(self.belief, self.design, moved @ root)

    @cached_property
    def belief(self) -> Belief:
        """What the fit to all runs leaves known of the factors."""
        return posterior(self.design, self.covariance)

    @cached_property
    def covariance(self) -> Floats:
        """Of the columns of the design, by the fit to all runs."""
        found: Floats = cho_solve(self._factor, np.eye(len(self.factors)))
        return found

    def _rows_of(self, runs: Sequence[int]) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.problem.terms.metric_run[self.rows], runs))

    def errors(self, keys: Sequence[Hashable]) -> Floats:
        """log(predicted / measured) of every metric, by a fit without the runs of the same key."""
        found = np.full(self.problem.terms.num_metrics, np.nan)
        for runs in self.members(keys):
            metrics, predicted, _ = self._predicted(runs)
            found[metrics] = predicted - self.problem.terms.log_measured[metrics]
        return found

    def _predicted(self, runs: Sequence[int]) -> tuple[NDArray[np.int64], Floats, Floats]:
        """The metrics of ``runs``, their logarithms by the fit that does not see them, and the derivatives."""
        terms, design = self.problem.terms, self.design
        values = design.predicted_log_values(self.fit_without(runs).factors)
        metrics = np.flatnonzero(np.isin(terms.metric_run, runs))
        return metrics, *Terms([terms.observed[run] for run in runs]).log_metrics(values[runs])

    def misses(self, keys: Sequence[Hashable]) -> list[Miss]:
        """Every metric by a fit without the runs of the same key, over the steps that the fit to all runs took."""
        terms, found = self.problem.terms, []
        for runs in self.members(keys):
            belief = self.belief_without(runs)
            for metric, log_s, slope in zip(*self._predicted(runs), strict=True):
                name, run = terms.metric_names[metric], int(terms.metric_run[metric])
                error = float(log_s - terms.log_measured[metric])
                known = belief.of(terms.observed[run].covariates)
                deviation = known.variance(slope) ** 0.5
                found.append(Miss(run, name, -error if name == "output_throughput" else error, deviation))
        return sorted(found, key=_place)


def case_under(fits: Calibration | None, run: MeasuredRun, *, resent: bool = False) -> Case:
    """The engine and the load of ``run``, predicted by ``fits``."""
    case = case_of(run, resent=resent)
    return replace(case, deployment=replace(case.deployment, calibration=fits))


# --- what is left out together, and what that asks


#: By name: a new load on a known setting; a known GPU and model in another combination; a GPU and a model that were
#: not measured together; a model, a GPU, an architecture and a source that were never seen.
LEFT_OUT: dict[str, Callable[[Observed], Hashable]] = {
    "load": lambda one: one.run_id,
    "combination": lambda one: one.group,
    "pair": lambda one: (one.covariates["gpu"], one.covariates["shape"]),
    "model": lambda one: one.covariates["shape"],
    "gpu": lambda one: one.covariates["gpu"],
    "architecture": lambda one: one.covariates["architecture"],
    "source": lambda one: one.source,
}


def leave_out_of(runs: Iterable[MeasuredRun], *, processes: int = 1) -> tuple[LeaveOut, list[tuple[MeasuredRun, str]]]:
    """The fit to ``thinned(runs)``, and those that cannot be replayed with the reason; ``processes`` replay them."""
    runs = list(runs)
    observed, refused = observe(thinned(runs), processes=processes, seen=resent(runs))
    return leave_out(observed), refused


def leave_out(observed: Sequence[Observed], structure: Sequence[StructureLine] | None = None) -> LeaveOut:
    """The fit to all runs, and from it those without some of them.

    It has the factors of which the runs take the share ``LEAST_LEARNT`` of the variance away.
    """
    terms, shipped = Terms(observed), load_calibration().effects
    full = Design(observed, structure)
    known = LeaveOut(FitProblem(terms, full), full, Fitted(full.factors_of(shipped))).covariance
    taken = 1 - np.diag(known) / full.sd**2
    wanted = {
        part.key
        for column, share in zip(full.columns, taken, strict=True)
        if share > LEAST_LEARNT
        for part in column.parts
    }
    design = Design(observed, structure, wanted=wanted)
    problem = FitProblem(terms, design)
    starts = design.factors_of(shipped), np.zeros_like(design.sd)  # whose optima differ by 20 to 40 of 5,900
    return LeaveOut(problem, design, min((optimum(problem, start) for start in starts), key=lambda one: one.cost))


def thinned(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """``runs`` with at most as many of each source as ``structure.toml`` says, evenly spaced in their order."""
    most: int = load_structure()["source"]["runs"]
    of_source: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        of_source[run.family].append(run)
    found = []
    for members in of_source.values():
        count = min(most, len(members))
        found += [members[round(place * (len(members) - 1) / max(count - 1, 1))] for place in range(count)]
    return found


# --- the optimum: steps have kinks where two costs are alike, at which Gauss-Newton zigzags. So a quasi-Newton method
# goes on, in coordinates in which the normal equations are those of a sphere


#: The loss turns from quadratic to linear at so many sigmas, in one fit after the other: few optima are left.
WIDTHS = (8.0, 2.0, 1.0)
ROUNDS, ITERATIONS, SETTLED = 4, 30, 1e-4


def optimum(problem: FitProblem, start: Floats) -> Fitted:
    """The fit to all runs, from ``start``."""
    factors, every = start, np.ones(problem.terms.num_metrics, dtype=bool)
    for width in WIDTHS:
        factors = problem.solve(every, factors, width=width, settled=1e-3, iterations=8, uncertain=False).factors
        last = np.inf
        for _ in range(ROUNDS):
            factors, cost = _quasi_newton(problem, problem.rows, factors, width)
            if last - cost < SETTLED * cost:
                break
            last = cost
    return Fitted(factors, cost)


def _quasi_newton(problem: FitProblem, rows: NDArray[np.int64], start: Floats, width: float) -> tuple[Floats, float]:
    state = FitState(problem, rows, start, width)
    root = cholesky(state.normal()[0], lower=True)

    def moved(to: Floats) -> Floats:
        by: Floats = solve_triangular(root, to, lower=True, trans="T")
        return start + by

    def cost(to: Floats) -> tuple[float, Floats]:
        state.move(moved(to))
        return state.cost, solve_triangular(root, 2 * state.gradient(), lower=True)

    options = {"maxiter": ITERATIONS, "maxcor": ITERATIONS, "ftol": SETTLED / 10}
    found = minimize(cost, np.zeros_like(start), jac=True, method="L-BFGS-B", options=options)
    return moved(found.x), float(found.fun)


# --- errors by replay: ``LeaveOut.errors`` keeps the steps of the fit to all runs, here the queue follows the new fit

#: What stands for a metric in runs that lack it, as in ``observe``.
STANDS_IN = {"output_throughput": "total_token_throughput", "avg_latency_s": "output_throughput"}
#: Figures that no fit sees.
GAPS = ("mean_itl_ms", "median_itl_ms", "p99_itl_ms")


def replayed_misses(
    without: LeaveOut,
    runs: Iterable[MeasuredRun],
    left_out: Callable[[Observed], Hashable],
    *,
    processes: int = 1,
    uncertain: bool = False,
    gaps: bool = False,
) -> list[Miss]:
    """Every figure of every run, each by a fit without the runs of its ``left_out`` group.

    ``runs`` holds at least those that were observed. With several ``processes`` the groups are dealt out among them.
    Unless ``uncertain``, deviations are zero. With ``gaps`` those of ``GAPS`` too.
    """
    runs = list(runs)
    _ = without.belief if uncertain else None  # once, before there are several processes
    replayer = _Replayer(without, {run.run_id: run for run in runs}, resent(runs), uncertain, gaps)
    members = list(without.members([left_out(one) for one in without.observed]))
    if processes == 1:
        return sorted(replayer.misses(members), key=_place)
    fork = get_context("fork")  # what a process needs is there already
    with ProcessPoolExecutor(processes, fork, initializer=_share, initargs=(replayer,)) as pool:
        parts = pool.map(_shared_misses, [members[place::processes] for place in range(processes)])
        return sorted((miss for part in parts for miss in part), key=_place)


def _place(miss: Miss) -> tuple[int, str]:
    return miss.run, miss.metric


@dataclass(frozen=True)
class _Replayer:
    """Replays runs with fits that did not see them."""

    without: LeaveOut
    runs: Mapping[str, MeasuredRun]
    resent: frozenset[str]
    uncertain: bool
    gaps: bool = False

    def misses(self, members: Iterable[list[int]]) -> list[Miss]:
        """Those of the runs in ``members``."""
        return [miss for numbers in members for miss in self._of_group(numbers)]

    def _of_group(self, numbers: list[int]) -> Iterator[Miss]:
        observed = self.without.observed
        calibration = held_out(self.without, numbers, uncertain=self.uncertain)
        for number in numbers:
            run = self.runs[observed[number].run_id]
            case = case_under(calibration, run, resent=run.run_id in self.resent)
            prediction = simulate(case)
            predicted = figures_in_columns(case, prediction)
            for metric in observed[number].metrics:
                name = metric.name if metric.name in run.metrics else STANDS_IN[metric.name]
                error = log(predicted[name] / run.metrics[name])
                deviations = prediction.uncertainty.deviations(name) if self.uncertain else (0.0, 0.0)
                yield Miss(number, metric.name, error, deviations[error < 0])
            for name in GAPS if self.gaps else ():
                if name in run.metrics and name in predicted:
                    factors = prediction.uncertainty.factors(name) if self.uncertain else None
                    off = run.metrics[name] / predicted[name]
                    yield Miss(number, name, -log(off), 0.0, factors and factors[0] <= off <= factors[1])


def held_out(without: LeaveOut, runs: Sequence[int], *, uncertain: bool = True) -> Calibration:
    """The fits that do not see ``runs``, with the scatters that we ship."""
    return Calibration(
        name="held out",
        fitted_on="the other runs",
        effects=effects_of(without.design, without.fit_without(runs)),
        scatters=load_calibration().scatters,
        belief=without.belief_without(runs) if uncertain else None,
    )


_SHARED: list[_Replayer] = []  # of a process of the pool


def _share(replayer: _Replayer) -> None:
    _SHARED[:] = [replayer]


def _shared_misses(members: Sequence[list[int]]) -> list[Miss]:
    return _SHARED[0].misses(members)


# --- how far measurements lie from predictions

#: Kinds of figures with fewer misses have no scatter of their own.
LEAST_ROWS = 40
#: Standard deviation over the median of the absolute values, of a normal distribution.
DEVIATION_OF_MEDIAN = 1.4826
LEAST_NOISE = 0.02


def scatters(observed: Sequence[Observed], misses: Sequence[Miss], *others: Sequence[Miss]) -> dict[str, Scatter]:
    """Noise and reach of each kind of figure, from ``misses`` with deviations.

    The noise is what makes half of the errors lie within the predicted deviation that half of them should; the reach
    is read off the errors over the whole deviations, so that each level holds (split conformal prediction). With
    ``others``, misses where something else was left out, each level holds for each of them.
    """
    by_kind = [_by_kind(observed, one) for one in (misses, *others)]
    found = {}
    for kind, members in sorted(by_kind[0].items()):
        if len(members) < LEAST_ROWS:
            continue
        error, variance = _errors(members)
        noise = max((DEVIATION_OF_MEDIAN * np.median(error)) ** 2 - np.median(variance), LEAST_NOISE**2) ** 0.5
        errors = [_errors(one[kind]) for one in by_kind]
        reach = np.max([np.quantile(e / np.sqrt(v + noise**2), LEVELS) for e, v in errors], axis=0)
        found[kind] = Scatter(noise=round(float(noise), 4), reach=tuple(np.round(reach, 3)), rows=len(members))
    return found


def _by_kind(observed: Sequence[Observed], misses: Sequence[Miss]) -> dict[str, list[Miss]]:
    kinds: dict[str, list[Miss]] = defaultdict(list)
    for miss in misses:
        kinds[scatter_of(observed[miss.run], miss.metric)].append(miss)
    return kinds


def _errors(misses: Sequence[Miss]) -> tuple[Floats, Floats]:
    """Absolute errors, and predicted variances."""
    return np.abs([miss.error for miss in misses]), np.square([miss.deviation for miss in misses])

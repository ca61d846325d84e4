"""Fits without some of the runs, found from the fit to all of them.

A fit is the optimum of a sum over rows (metrics of runs) of weight x residual^2, and of a prior. Taking the rows R away
moves it, to first order, by (Woodbury)::

    step = A^-1 J_R' (W_R^-1 - J_R A^-1 J_R')^-1 r_R            A = J' W J + prior, at the fit to everything

so that hundreds of fits cost little more than one. Each is then evaluated exactly, on nothing but the runs that it did
not see.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from planner.calibration.fit import GROUP_SD, Fit, Problem
from planner.calibration.observed import Floats
from planner.calibration.terms import Terms

#: Rounds in which the weights of the robust loss and what a group's runs share are found together.
ROUNDS = 3


class LeaveOut:
    """The normal equations of ``problem`` where ``fitted``, the fit to all runs, has its optimum."""

    def __init__(self, problem: Problem, fitted: Fit) -> None:
        self.problem, self.factors = problem, fitted.factors
        terms, design = problem.terms, problem.design
        predicted, derivative = terms.log_metrics(design.log_values(fitted.factors))
        self.rows = np.flatnonzero(np.isfinite(problem.sigma))
        runs = terms.metric_run[self.rows]
        self._jacobian = np.hstack([design.jacobian(derivative[self.rows], runs), _members(problem, runs)])
        self._residual = (predicted - terms.log_measured)[self.rows]
        self._solve(runs)

    def _solve(self, runs: NDArray[np.int64]) -> None:
        """Weights of the rows, and the residuals that remain beside what the runs of each group share."""
        design, sigma = self.problem.design, self.problem.sigma[self.rows]
        groups = self._jacobian.shape[1] - len(design.sd)
        prior = np.concatenate([design.sd**-2, np.full(groups, GROUP_SD**-2)])
        drawn = np.concatenate([prior[: len(design.sd)] * (self.factors - design.mean), np.zeros(groups)])
        per_run = Counter(runs.tolist())
        share = np.array([per_run[run] for run in runs.tolist()], dtype=np.float64)
        residual = self._residual
        for _ in range(ROUNDS):
            self._weight: Floats = (1 + (residual / sigma) ** 2) ** -0.5 / (share * sigma**2)
            weighted = self._jacobian * self._weight[:, None]
            self._factor = cho_factor(weighted.T @ self._jacobian + np.diag(prior))
            step = -cho_solve(self._factor, weighted.T @ self._residual + drawn)
            residual = self._residual + self._jacobian @ step
        self._left = residual

    def factors_without(self, rows: NDArray[np.int64]) -> Floats:
        """Factors of the fit that does not see ``rows``, places in ``self.rows``."""
        unseen = self._jacobian[rows]
        moved = cho_solve(self._factor, unseen.T)
        inner = np.diag(1 / self._weight[rows]) - unseen @ moved
        step: Floats = moved @ np.linalg.solve(inner, self._left[rows])
        return self.factors + step[: len(self.factors)]

    def fits(self, keys: Sequence[Hashable]) -> Iterator[tuple[list[int], Fit]]:
        """For each of ``keys``, one of each run: the numbers of its runs, and the fit that saw none of them."""
        members: dict[Hashable, list[int]] = defaultdict(list)
        for run, key in enumerate(keys):
            members[key].append(run)
        for runs in members.values():
            rows = np.flatnonzero(np.isin(self.problem.terms.metric_run[self.rows], runs))
            factors = self.factors_without(rows)
            yield runs, Fit(self.problem.design, factors, np.zeros_like(factors), float("nan"))

    def errors(self, keys: Sequence[Hashable]) -> Floats:
        """log(predicted / measured) of every metric, by a fit that saw no run with the same one of ``keys``."""
        terms, design = self.problem.terms, self.problem.design
        found = np.full(terms.num_metrics, np.nan)
        for runs, fitted in self.fits(keys):
            values = design.log_values(fitted.factors)
            predicted, _ = Terms([terms.observed[run] for run in runs]).log_metrics(values[runs])
            metrics = np.flatnonzero(np.isin(terms.metric_run, runs))
            found[metrics] = predicted - terms.log_measured[metrics]
        return found


def _members(problem: Problem, runs: NDArray[np.int64]) -> Floats:
    """One column for each group: 1 in its rows."""
    groups = [problem.terms.observed[run].group for run in runs.tolist()]
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    members = np.zeros((len(groups), len(number)))
    members[np.arange(len(groups)), [number[group] for group in groups]] = 1.0
    return members

"""The fit: maximum a posteriori of the factors, by Gauss-Newton with a robust loss on the log-ratio.

::

    minimise   sum over metrics of w^2 rho((log predicted + u(group) - log measured) / sigma(metric))
             + sum over factors of ((factor - mean) / sd)^2  +  sum over groups of (u / sd of a group)^2

with rho(r) = 2 (sqrt(1 + r^2) - 1), which is quadratic near 0 and linear beyond, so that a wrong row pulls little.
``u`` is what all runs of one group share beyond the covariates (a build, a driver, a machine). It is fitted so that
fifty runs of one group do not count as fifty independent ones, and then dropped. ``w`` shares the weight of a run
between its metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from planner.evidence.effects import Design, StructureLine, load_structure
from planner.evidence.observe import Floats, Observed
from planner.evidence.terms import Terms
from planner.timing import Effect

LARGEST_STEP = 0.7  #: of the logarithm of a factor, in one iteration
#: Factors whose logarithm is smaller are not written to a file.
NEGLIGIBLE = 0.004


@dataclass(frozen=True)
class EfficiencyFit:
    """Fitted factors: their logarithms, and standard deviations of these."""

    design: Design
    factors: Floats
    sd: Floats
    cost: float

    def effects(self) -> tuple[Effect, ...]:
        """The factors that differ from 1, as a file holds them."""
        found = []
        for column, log_factor, sd in zip(self.design.columns, self.factors.tolist(), self.sd.tolist(), strict=True):
            rows = int(column.runs.sum())
            for part, part_log in column.split(log_factor):
                if abs(part_log) < NEGLIGIBLE:
                    continue
                unseen = max(part.sd**2 - part.sd**4 / column.variance, 0.0)  # what its column does not determine
                part_sd = (unseen + (sd * part.sd**2 / column.variance) ** 2) ** 0.5
                factor = round(float(np.exp(part_log)), 4)
                found.append(Effect(target=part.target, when=part.when, factor=factor, sd=round(part_sd, 3), rows=rows))
        return tuple(found)


def fit_efficiencies(
    observed: Sequence[Observed],
    structure: Sequence[StructureLine] | None = None,
    base: Sequence[Effect] = (),
    *,
    iterations: int = 15,
) -> EfficiencyFit:
    """Fit the factors of ``structure``, by default ours, to ``observed``, starting from the fit ``base``."""
    problem = FitProblem(Terms(observed), Design(observed, structure, base))
    return problem.solve(np.ones(problem.terms.num_metrics, dtype=bool), iterations=iterations)


class FitProblem:
    """Runs and factors: a fit to all of the runs, or to some."""

    def __init__(self, terms: Terms, design: Design) -> None:
        self.terms, self.design = terms, design
        structure = load_structure()
        self.sigma: Floats = np.array([structure.sigma.get(name, np.nan) for name in terms.metric_names])
        self.group_sd = structure.group_sd

    def solve(
        self, used: NDArray[np.bool_], start: Floats | None = None, *, iterations: int = 15, uncertain: bool = True
    ) -> EfficiencyFit:
        """Fit to the metrics that are ``used`` and have a sigma."""
        rows = np.flatnonzero(used & np.isfinite(self.sigma))
        state = _State(self, rows, self.design.mean.copy() if start is None else start)
        for _ in range(iterations):
            before = state.cost
            if not state.improve() or before - state.cost < 1e-4 * state.cost:
                break
        sd = state.uncertainty() if uncertain else np.zeros_like(self.design.sd)
        return EfficiencyFit(self.design, state.factors, sd, state.cost)

    def shares(self, runs: NDArray[np.int64]) -> Floats:
        """How many share the weight of one metric: those of its run, times the crowd of its source.

        ``runs``: the run of each metric.
        """
        metrics = Counter(runs.tolist())
        crowd = Counter(self.terms.observed[run].source for run in metrics)
        most = load_structure().source_runs
        each = {run: of * max(1.0, crowd[self.terms.observed[run].source] / most) for run, of in metrics.items()}
        return np.array([each[run] for run in runs.tolist()])

    def errors(self, fitted: EfficiencyFit) -> Floats:
        """log(predicted / measured) of every metric."""
        predicted, _ = self.terms.log_metrics(self.design.log_values(fitted.factors))
        return predicted - self.terms.log_measured


class _State:
    """The current point of the iteration."""

    def __init__(self, problem: FitProblem, rows: NDArray[np.int64], factors: Floats) -> None:
        self.problem, self.rows = problem, rows
        terms = problem.terms
        self.runs = terms.metric_run[rows]
        groups = [terms.observed[run].group for run in self.runs]
        number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
        self.group = np.array([number[group] for group in groups])
        self.weight: Floats = problem.shares(self.runs) ** -0.5
        self.sigma = problem.sigma[rows]
        self.factors, self.offsets = factors, np.zeros(len(number))
        self.damping = 1e-3
        self.cost, self.residual, self.derivative = self._evaluate(self.factors, self.offsets)

    def _evaluate(self, factors: Floats, offsets: Floats) -> tuple[float, Floats, Floats]:
        problem, design = self.problem, self.problem.design
        predicted, derivative = problem.terms.log_metrics(design.log_values(factors))
        measured = problem.terms.log_measured[self.rows]
        residual = (predicted[self.rows] + offsets[self.group] - measured) / self.sigma
        loss = (self.weight**2 * 2 * (np.sqrt(1 + residual**2) - 1)).sum()
        drawn = (((factors - design.mean) / design.sd) ** 2).sum() + ((offsets / problem.group_sd) ** 2).sum()
        return float(loss + drawn), residual, derivative[self.rows]

    def _normal(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Blocks of the normal equations: factors, factors x groups, groups; and both gradients."""
        design = self.problem.design
        weight = self.weight * (1 + self.residual**2) ** -0.25  # of the quadratic that touches the loss here
        jacobian = design.jacobian(self.derivative, self.runs) * (weight / self.sigma)[:, None]
        members = np.zeros((len(self.rows), len(self.offsets)))
        members[np.arange(len(self.rows)), self.group] = weight / self.sigma
        residual = weight * self.residual
        block = jacobian.T @ jacobian + np.diag(design.sd**-2)
        gradient = jacobian.T @ residual + (self.factors - design.mean) / design.sd**2
        group_block = (members**2).sum(0) + self.problem.group_sd**-2
        group_gradient = members.T @ residual + self.offsets / self.problem.group_sd**2
        return block, jacobian.T @ members, group_block, gradient, group_gradient

    def improve(self) -> bool:
        """One damped Gauss-Newton step; False where none lowers the cost."""
        block, cross, group_block, gradient, group_gradient = self._normal()
        for _ in range(6):
            damped = block + self.damping * np.diag(np.diag(block))
            reduced = damped - (cross / group_block) @ cross.T
            step = cho_solve(cho_factor(reduced), cross @ (group_gradient / group_block) - gradient)
            step = np.clip(step, -LARGEST_STEP, LARGEST_STEP)
            factors = self.factors + step
            offsets = self.offsets - (group_gradient + cross.T @ step) / group_block
            cost, residual, derivative = self._evaluate(factors, offsets)
            if cost < self.cost:
                self.factors, self.offsets, self.damping = factors, offsets, self.damping / 5
                self.cost, self.residual, self.derivative = cost, residual, derivative
                return True
            self.damping = max(10 * self.damping, 1e-2)
        return False

    def uncertainty(self) -> Floats:
        """Standard deviation of each factor's logarithm, from the curvature at the optimum."""
        block, cross, group_block, _, _ = self._normal()
        reduced = block - (cross / group_block) @ cross.T
        covariance = cho_solve(cho_factor(reduced), np.eye(len(reduced)))
        return np.sqrt(np.diag(covariance))

"""The fit: maximum a posteriori of the factors, by Gauss-Newton with a robust loss on the log-ratio.

::

    minimise   sum over metrics of w^2 rho((log predicted - log measured) / sigma(metric))
             + sum over factors of ((factor - mean) / sd)^2

with rho(r) = 2 (sqrt(1 + r^2) - 1), which is quadratic near 0 and linear beyond, so that a wrong row pulls little.
``w`` shares the weight of a run between its metrics of one kind (prefill, or decode), and that of a source between
its runs. At the optimum the loss is a quadratic in the factors: the fit is the mean of a normal distribution of them
(Laplace's approximation), and the deviations of ``structure.toml`` are those under which the measurements are most
likely (``planner/evidence/deviations.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from planner.evidence.effects import Design, load_structure
from planner.evidence.observe import Floats, Observed
from planner.evidence.terms import Terms
from planner.timing import Effect

LARGEST_STEP = 0.7  #: of the logarithm of a factor, in one iteration
#: Factors whose logarithm is smaller are not written to a file.
NEGLIGIBLE = 0.004


class Columns(Protocol):
    """What a fit determines: logarithms of factors, each of which is drawn towards 0."""

    sd: Floats  #: before any run

    def log_values(self, factors: Floats) -> Floats:
        """Logarithm of every efficiency of every run, (runs, parameters)."""
        ...

    def jacobian(self, derivative: Floats, metric_run: NDArray[np.int64]) -> Floats:
        """Derivative of every metric by every factor, from those by the efficiencies of its run."""
        ...


ColumnsT = TypeVar("ColumnsT", bound=Columns)


@dataclass(frozen=True)
class EfficiencyFit(Generic[ColumnsT]):
    """Fitted factors: their logarithms, and the covariance of these; empty where it was not asked for."""

    design: ColumnsT
    factors: Floats
    cost: float
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def sd(self) -> Floats:
        """Standard deviations of the logarithms; zeros without their covariance."""
        return np.sqrt(np.diag(self.covariance)) if self.covariance.size else np.zeros_like(self.factors)

    def effects(self: EfficiencyFit[Design]) -> tuple[Effect, ...]:
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


class FitProblem(Generic[ColumnsT]):
    """Runs and factors: a fit to all of the runs, or to some."""

    def __init__(self, terms: Terms, design: ColumnsT, sigma: Mapping[str, float] | None = None) -> None:
        """``sigma``: scatter of each kind of metric (``scatter_of``), by default ours."""
        self.terms, self.design = terms, design
        known = load_structure().sigma if sigma is None else sigma
        kinds = zip(terms.metric_run.tolist(), terms.metric_names, strict=True)
        #: of each metric; nan where it is not fitted to
        self.sigma: Floats = np.array([known.get(scatter_of(terms.observed[run], name), np.nan) for run, name in kinds])
        self.rows: NDArray[np.int64] = np.flatnonzero(np.isfinite(self.sigma))

    def solve(
        self, used: NDArray[np.bool_], start: Floats | None = None, *, iterations: int = 40, uncertain: bool = True
    ) -> EfficiencyFit[ColumnsT]:
        """Fit to the metrics that are ``used`` and have a sigma."""
        rows = self.rows[used[self.rows]]
        state = _State(self, rows, np.zeros_like(self.design.sd) if start is None else start)
        for _ in range(iterations):
            before = state.cost
            if not state.improve() or before - state.cost < 2e-5 * state.cost:
                break
        covariance = state.covariance() if uncertain else np.zeros((0, 0))
        return EfficiencyFit(self.design, state.factors, state.cost, covariance)

    def shares(self, rows: NDArray[np.int64]) -> Floats:
        """How many share the weight of each metric of ``rows``: those of its run and kind, times its source's crowd."""
        terms = self.terms
        runs = terms.metric_run[rows].tolist()
        kinds = [(run, of_prefill(terms.metric_names[row])) for run, row in zip(runs, rows.tolist(), strict=True)]
        metrics = Counter(kinds)
        crowd = Counter(terms.observed[run].source for run in set(runs))
        most = load_structure().source_runs
        return np.array([metrics[kind] * max(1.0, crowd[terms.observed[kind[0]].source] / most) for kind in kinds])

    def errors(self, fitted: EfficiencyFit[ColumnsT]) -> Floats:
        """log(predicted / measured) of every metric."""
        predicted, _ = self.terms.log_metrics(self.design.log_values(fitted.factors))
        return predicted - self.terms.log_measured


def scatter_of(one: Observed, metric: str) -> str:
    """The entry of ``sigma`` in ``structure.toml`` for a metric of a run: queues of random arrivals scatter more."""
    return f"poisson_{metric}" if one.arrival == "poisson" and of_prefill(metric) else metric


def of_prefill(metric: str) -> bool:
    """Whether a metric is mostly of prefill and waiting, not of decode."""
    return "ttft" in metric


class _State(Generic[ColumnsT]):
    """The current point of the iteration."""

    def __init__(self, problem: FitProblem[ColumnsT], rows: NDArray[np.int64], factors: Floats) -> None:
        self.problem, self.rows = problem, rows
        self.runs = problem.terms.metric_run[rows]
        self.weight: Floats = problem.shares(rows) ** -0.5
        self.sigma = problem.sigma[rows]
        self.factors = factors
        self.damping = 1e-3
        self.cost, self.residual, self.derivative = self._evaluate(factors)

    def _evaluate(self, factors: Floats) -> tuple[float, Floats, Floats]:
        problem, design = self.problem, self.problem.design
        predicted, derivative = problem.terms.log_metrics(design.log_values(factors))
        residual = (predicted - problem.terms.log_measured)[self.rows] / self.sigma
        loss = (self.weight**2 * 2 * (np.sqrt(1 + residual**2) - 1)).sum()
        drawn = ((factors / design.sd) ** 2).sum()
        return float(loss + drawn), residual, derivative[self.rows]

    def _normal(self) -> tuple[Floats, Floats]:
        """Matrix and gradient of the normal equations."""
        design = self.problem.design
        weight = self.weight * (1 + self.residual**2) ** -0.25  # of the quadratic that touches the loss here
        jacobian = design.jacobian(self.derivative, self.runs) * (weight / self.sigma)[:, None]
        block = jacobian.T @ jacobian + np.diag(design.sd**-2)
        return block, jacobian.T @ (weight * self.residual) + self.factors / design.sd**2

    def improve(self) -> bool:
        """One damped Gauss-Newton step; False where none lowers the cost."""
        block, gradient = self._normal()
        for _ in range(9):
            damped = block + self.damping * np.diag(np.diag(block))
            step = -cho_solve(cho_factor(damped), gradient)
            factors = self.factors + np.clip(step, -LARGEST_STEP, LARGEST_STEP)
            cost, residual, derivative = self._evaluate(factors)
            if cost < self.cost:
                self.factors, self.damping = factors, self.damping / 5
                self.cost, self.residual, self.derivative = cost, residual, derivative
                return True
            self.damping = max(10 * self.damping, 1e-2)
        return False

    def covariance(self) -> Floats:
        """Of the logarithms of the factors, from the curvature at the optimum."""
        block, _ = self._normal()
        found: Floats = cho_solve(cho_factor(block), np.eye(len(block)))
        return found

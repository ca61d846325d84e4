"""How much efficiencies differ between runs: the deviations of ``structure.toml``, by marginal likelihood.

The factors of a line are draws from one normal distribution. With the measurements a linear function of the factors
near the fit, the probability of all measurements has a closed form once the factors are integrated out::

    -2 log p(y) = y' W y - b' f + log det(J' W J + 1 / V) + log det V        b = J' W y,  f = (J' W J + 1 / V)^-1 b

V holds the variance of each factor, W the weights of the fit. It is what one data set says against too free a line as
well as too stiff a one ("evidence" in MacKay, Neural Computation 4(3), 1992; Rasmussen and Williams, "Gaussian
Processes for Machine Learning", 2006, chapter 5), and no left-out run is needed for it. Lines that few runs speak of
keep what is assumed of them, within a factor of about 1.6. Lines with one deviation are held at it: the file says why.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from fit.design import Design, Structure
from planner.evidence.fitting import FitProblem, Fitted, scatter_of
from planner.evidence.observations import Floats, Terms

#: Standard deviation of the logarithm of a line's deviation around the assumed one.
HYPERPRIOR_SD = 0.5
#: Bounds of a deviation.
LEAST_SD, MOST_SD = 0.005, 1.0
#: Standard deviation over the median of the absolute values, of a normal distribution.
DEVIATION_OF_MEDIAN = 1.4826


def learn_deviations(terms: Terms, structure: Structure, rounds: int = 3) -> Structure:
    """``structure`` with the deviations and scatters that make the measurements of ``terms`` most likely."""
    start: Floats | None = None
    for _ in range(rounds):
        design = Design(terms.observed, structure.lines)
        problem = FitProblem(terms, design, structure.sigma)
        fitted = problem.solve(np.ones(terms.num_metrics, dtype=bool), start, iterations=6, uncertain=False)
        structure = _Evidence(problem, design, fitted, structure).improved()
        start = fitted.factors
    return structure


class _Evidence:
    """The linear model around ``fitted``."""

    def __init__(self, problem: FitProblem, design: Design, fitted: Fitted, structure: Structure) -> None:
        self.problem, self.structure = problem, structure
        terms, rows = problem.terms, problem.rows
        predicted, derivative = terms.log_metrics(design.log_values(fitted.factors))
        jacobian = design.jacobian(derivative[rows], terms.metric_run[rows])
        residual = (predicted - terms.log_measured)[rows]
        robust = (1 + (residual / problem.sigma[rows]) ** 2) ** -0.5
        weight = robust / (problem.shares(rows) * problem.sigma[rows] ** 2)
        self.jacobian, self.target = jacobian, jacobian @ fitted.factors - residual
        weighted = jacobian * weight[:, None]
        self.matrix, self.right = weighted.T @ jacobian, weighted.T @ self.target
        #: (columns, lines): how many factors of a line are in a column; and the variance of those of no line
        self.counts, self.other = _parts(design, structure)

    def improved(self) -> Structure:
        """Better deviations, and the scatter that is left with them."""
        start = np.log([sd for _, _, sd in self.structure.lines])
        held = np.array([sd is None for sd in self.structure.assumed])
        assumed = np.where(held, start, np.log([sd or 1.0 for sd in self.structure.assumed]))
        free = (np.log(LEAST_SD), np.log(MOST_SD))
        bounds = [(at, at) if stays else free for at, stays in zip(start, held, strict=True)]
        found = minimize(self._cost, start, args=(assumed,), jac=True, method="L-BFGS-B", bounds=bounds)
        factors, covariance = self._posterior(self._variance(found.x))
        learnt = np.exp(found.x).tolist()
        lines = tuple((target, scope, sd) for (target, scope, _), sd in zip(self.structure.lines, learnt, strict=True))
        return replace(self.structure, lines=lines, sigma=self._scatter(factors, covariance))

    def _variance(self, log_sd: Floats) -> Floats:
        return np.asarray(self.other + self.counts @ np.exp(2 * log_sd))

    def _posterior(self, variance: Floats) -> tuple[Floats, Floats]:
        factor = cho_factor(self.matrix + np.diag(1 / variance))
        return cho_solve(factor, self.right), cho_solve(factor, np.eye(len(variance)))

    def _cost(self, log_sd: Floats, assumed: Floats) -> tuple[float, Floats]:
        """Minus the logarithm of the probability, but for a constant, and its derivative."""
        variance = self._variance(log_sd)
        factors, covariance = self._posterior(variance)
        _, log_det = np.linalg.slogdet(covariance)
        away = (log_sd - assumed) / HYPERPRIOR_SD
        cost = 0.5 * (-self.right @ factors - log_det + np.log(variance).sum() + (away**2).sum())
        surplus = (1 - (factors**2 + np.diag(covariance)) / variance) / variance
        slope = np.exp(2 * log_sd) * (self.counts.T @ surplus) + away / HYPERPRIOR_SD
        return float(cost), slope

    def _scatter(self, factors: Floats, covariance: Floats) -> dict[str, float]:
        """The standard deviation of each kind of metric: what the factors leave, and what is not known of them."""
        left = np.abs(self.target - self.jacobian @ factors)
        unknown = np.einsum("ij,ij->i", self.jacobian @ covariance, self.jacobian)
        found = dict(self.structure.sigma)
        for kind, rows in self._kinds().items():
            scatter = DEVIATION_OF_MEDIAN * np.median(left[rows])
            found[kind] = float(np.sqrt(scatter**2 + np.median(unknown[rows])))
        return found

    def _kinds(self) -> dict[str, NDArray[np.int64]]:
        terms, found = self.problem.terms, defaultdict(list)
        for place, row in enumerate(self.problem.rows.tolist()):
            found[scatter_of(terms.observed[terms.metric_run[row]], terms.metric_names[row])].append(place)
        return {kind: np.array(places) for kind, places in found.items()}


def _parts(design: Design, structure: Structure) -> tuple[Floats, Floats]:
    """For each column how many of its factors each line has, and the variance of the others: those of the priors."""
    number = {(target, frozenset(scope)): i for i, (target, scope, _) in enumerate(structure.lines)}
    counts, other = np.zeros((len(design.columns), len(number))), np.zeros(len(design.columns))
    for row, column in enumerate(design.columns):
        for part in column.parts:
            line = number.get((part.target, frozenset(part.when)))
            if line is None:
                other[row] += part.sd**2
            else:
                counts[row, line] += 1
    return counts, other


def to_toml(structure: Structure, text: str) -> str:
    """``text``, the file of a structure, with the numbers of ``structure``."""
    return "\n".join(_rewritten(structure, text.splitlines())) + "\n"


def _rewritten(structure: Structure, lines: list[str]) -> Iterator[str]:
    learnt = zip(structure.lines, structure.assumed, strict=True)
    figure: Callable[[float], str] = "{:.3g}".format
    for line in lines:
        name = line.split(" = ")[0]
        if line.startswith("    [") and (found := next(learnt, None)):  # those of a machine stand below, and are kept
            (_, _, sd), assumed = found
            yield line if assumed is None else f"{line.rsplit(', ', 1)[0]}, {figure(sd)}],"
        elif name in structure.sigma:
            yield f"{name} = {figure(structure.sigma[name])}"
        else:
            yield line

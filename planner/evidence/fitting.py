"""Fits of efficiencies to measured runs, and what a user's own runs teach beside the fits that we ship.

A fit is the maximum a posteriori of the factors, by Gauss-Newton with a robust loss on the log-ratio::

    minimise   sum over metrics of w^2 rho((log predicted - log measured) / sigma(metric))
             + sum over factors of (factor / sd)^2             rho(r) = 2 (sqrt(1 + r^2) - 1)

``w`` shares the weight of a run between its metrics of one kind, and that of a source between its runs. The fit is the
mean of a normal distribution of the factors (Laplace's approximation). A user's own runs on one GPU update that
distribution (``planner.timing.Belief``). With R a root of its covariance::

    factors = R u,  u ~ N(0, 1)           the runs then give u a mean m and a covariance C
    posterior mean R m, covariance R R' - R (1 - C) R'

A file holds, for each factor, its part of R m and a row of a root of R (1 - C) R'."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from planner.evidence.observations import Floats, Ints, Observed, Terms, observe
from planner.evidence.runs import MeasuredRun
from planner.resources import calibration_tables, package_dir, tables_of
from planner.timing import PARAMETERS, Calibration, Effect, Key, prior_values, targets

LARGEST_STEP = 0.7  #: of the logarithm of a factor, in one iteration


class Design(Protocol):
    """Factors of a fit, drawn towards 0: logarithms of efficiencies, (runs, parameters), and their derivatives."""

    sd: Floats  #: before any run

    def log_values(self, factors: Floats) -> Floats: ...

    def jacobian(self, derivative: Floats, metric_run: Ints) -> Floats: ...


@dataclass(frozen=True)
class Fitted:
    """Logarithms of fitted factors; their covariance is empty where it was not asked for."""

    factors: Floats
    cost: float = float("nan")
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def sd(self) -> Floats:
        """Standard deviations of the logarithms; zeros without their covariance."""
        return np.sqrt(np.diag(self.covariance)) if self.covariance.size else np.zeros_like(self.factors)


def load_structure() -> Mapping[str, Any]:
    """Return what may differ between runs, and how far measurements scatter: ``calibration/structure.toml``."""
    return calibration_tables("structure")


class FitProblem:
    """Runs and factors: a fit to all of the runs, or to some."""

    def __init__(self, terms: Terms, design: Design, sigma: Mapping[str, float] | None = None) -> None:
        self.terms, self.design = terms, design
        known = load_structure()["sigma"] if sigma is None else sigma
        kinds = zip(terms.metric_run.tolist(), terms.metric_names, strict=True)
        #: of each metric; nan where it is not fitted to
        self.sigma: Floats = np.array([known.get(scatter_of(terms.observed[run], name), np.nan) for run, name in kinds])
        self.rows: Ints = np.flatnonzero(np.isfinite(self.sigma))

    def solve(
        self, used: NDArray[np.bool_], start: Floats | None = None, *, iterations: int = 40, uncertain: bool = True,
        width: float = 1.0, settled: float = 2e-5,
    ) -> Fitted:  # fmt: skip
        """Fit to ``used`` metrics; the loss is linear beyond ``width`` sigmas; ``settled``: least fall of the cost."""
        rows = self.rows[used[self.rows]]
        state = FitState(self, rows, np.zeros_like(self.design.sd) if start is None else start, width)
        for _ in range(iterations):
            before = state.cost
            if not state.improve() or before - state.cost < settled * state.cost:
                break
        return Fitted(state.factors, state.cost, state.covariance() if uncertain else np.zeros((0, 0)))

    def shares(self, rows: Ints) -> Floats:
        """Count who shares the weight of each metric: those of its run and kind, times its source's crowd."""
        terms = self.terms
        runs = terms.metric_run[rows].tolist()
        kinds = [(run, of_prefill(terms.metric_names[row])) for run, row in zip(runs, rows.tolist(), strict=True)]
        metrics = Counter(kinds)
        crowd = Counter(terms.observed[run].source for run in set(runs))
        most = load_structure()["source"]["runs"]  # that the runs of one source count as
        return np.array([metrics[kind] * max(1.0, crowd[terms.observed[kind[0]].source] / most) for kind in kinds])


def scatter_of(one: Observed, metric: str) -> str:
    """Return the entry of ``sigma`` for a metric of a run: queues of random arrivals scatter more."""
    return f"poisson_{metric}" if one.arrival == "poisson" and of_prefill(metric) else metric


def of_prefill(metric: str) -> bool:
    """True for metrics that are mostly of prefill and waiting, not of decode."""
    return "ttft" in metric


class FitState:
    def __init__(self, problem: FitProblem, rows: Ints, factors: Floats, width: float = 1.0) -> None:
        self.problem, self.rows, self.width = problem, rows, width
        self.runs = problem.terms.metric_run[rows]
        self.weight: Floats = problem.shares(rows) ** -0.5
        self.sigma = problem.sigma[rows]
        self.damping = 1e-3
        self.move(factors)

    def move(self, factors: Floats) -> None:
        self.factors = factors
        self.cost, self.residual, self.derivative = self._evaluate(factors)

    def _evaluate(self, factors: Floats) -> tuple[float, Floats, Floats]:
        problem, design = self.problem, self.problem.design
        predicted, derivative = problem.terms.log_metrics(design.log_values(factors))
        residual = (predicted - problem.terms.log_measured)[self.rows] / self.sigma
        loss = (self.weight**2 * 2 * self.width**2 * (np.sqrt(1 + (residual / self.width) ** 2) - 1)).sum()
        drawn = ((factors / design.sd) ** 2).sum()
        return float(loss + drawn), residual, derivative[self.rows]

    def gradient(self) -> Floats:
        """Half the derivative of the cost by each factor."""
        pull = self.weight**2 * self.residual / np.sqrt(1 + (self.residual / self.width) ** 2) / self.sigma
        design = self.problem.design
        return pull @ design.jacobian(self.derivative, self.runs) + self.factors / design.sd**2

    def normal(self) -> tuple[Floats, Floats]:
        """Matrix of the normal equations, and their right side: half the gradient of the cost."""
        design = self.problem.design
        robust = (1 + (self.residual / self.width) ** 2) ** -0.25  # of the quadratic that touches the loss here
        weight = self.weight * robust
        jacobian = design.jacobian(self.derivative, self.runs) * (weight / self.sigma)[:, None]
        block = jacobian.T @ jacobian + np.diag(design.sd**-2)
        return block, jacobian.T @ (weight * self.residual) + self.factors / design.sd**2

    def improve(self) -> bool:
        """Take one damped Gauss-Newton step. Returns False where none lowers the cost."""
        block, gradient = self.normal()
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
        """Covariance of the logarithms of the factors, from the curvature at the optimum."""
        block, _ = self.normal()
        result: Floats = cho_solve(cho_factor(block), np.eye(len(block)))
        return result


MEANINGS: Mapping[str, str] = tables_of(package_dir("evidence") / "factors.toml")  #: target to its name for people
#: Targets of which every setting has its own; the others are the machine's.
OF_A_SETTING = dict.fromkeys(("slowdown", "prefill"), ("gpu", "shape", "weights", "tp"))
#: Targets that are part of the GPU's time: what is said of them is said beside it.
OF_THE_GPU = ("prefill", "launch", "collective_s", "link_share")
#: The runs determine a factor when they narrow its standard deviation to this share of the prior, or less.
DETERMINED = 0.9
LEAST_KNOWN = 1e-3  #: share of the prior variance that runs take away, below which a direction is not worth a column
#: Share of what a run teaches that holds for its own load alone. By the interval score of other loads on half of the
#: groups of ``benchmarks/own_runs.py``: best from 0.15 (TTFT after three runs) to 0.5 (TPOT).
OF_ITS_LOAD = 0.4
NEGLIGIBLE = 1e-4  #: logarithms and loadings below this are not worth a line
ROUNDS = 4  #: fits, each with replays at the speed that the fit before gave: speed changes who waits for whom
SETTLED = 0.01  #: the fit has settled when no efficiency (its logarithm) moves by more than this between two rounds


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor on a shipped efficiency, or on the time that several make up; ``sd`` is that of its logarithm."""

    target: str
    when: Mapping[str, str]
    factor: float
    sd: float
    prior_sd: float  #: before any run
    runs: int
    before: float = 1.0  #: in the file that existed

    @property
    def determined(self) -> bool:
        return self.sd <= DETERMINED * self.prior_sd


class OwnDesign:
    """Factors of the engines of some runs on one GPU, as independent columns with variance 1."""

    def __init__(self, observed: Sequence[Observed], base: Calibration) -> None:
        self.observed = observed
        priors = (prior_values(one.profile, one.covariates) for one in observed)
        values = [base.unbounded(one.covariates, prior) for one, prior in zip(observed, priors, strict=True)]
        self.start: Floats = np.log([[one[name] for name in PARAMETERS] for one in values])
        known = [base.known(one.covariates) for one in observed]
        self.keys: tuple[Key, ...] = tuple(dict.fromkeys(key for one in known for key in one.keys))
        place = {key: number for number, key in enumerate(self.keys)}
        sd, rows = np.zeros(len(place)), np.zeros((len(place), len(known[0].signs)))
        #: of each run, the power of each factor in each efficiency, (runs, factors, parameters)
        self.powers: Floats = np.zeros((len(observed), len(place), len(PARAMETERS)))
        for run, one in enumerate(known):
            at = [place[key] for key in one.keys]
            sd[at], rows[at], self.powers[run, at] = one.sd, one.rows, one.powers
        self.prior: Floats = np.diag(sd**2) + (rows * known[0].signs) @ rows.T
        variance, directions = np.linalg.eigh(self.prior)
        self.root: Floats = directions * np.sqrt(np.maximum(variance, 0.0))
        self._loads = self.powers.transpose(0, 2, 1) @ self.root  # (runs, parameters, columns)
        self.sd: Floats = np.ones(len(place))

    def log_values(self, factors: Floats) -> Floats:
        values: Floats = self.start + self._loads @ factors
        return values

    def jacobian(self, derivative: Floats, metric_run: Ints) -> Floats:
        result: Floats = np.einsum("mp,mpc->mc", derivative, self._loads[metric_run])
        return result


@dataclass(frozen=True, eq=False)
class OwnFit:
    design: OwnDesign
    problem: FitProblem
    fitted: Fitted

    @classmethod
    def to(cls, observed: Sequence[Observed], base: Calibration) -> "OwnFit":
        design, terms = OwnDesign(observed, base), Terms(observed)
        problem = FitProblem(terms, design)
        return cls(design, problem, problem.solve(np.ones(terms.num_metrics, dtype=bool)))

    def to_some(self, used_runs: NDArray[np.bool_]) -> "OwnFit":
        return OwnFit(self.design, self.problem, self.problem.solve(used_runs[self.problem.terms.metric_run]))

    @cached_property
    def means(self) -> Floats:
        """Logarithms of the factors, (factors,)."""
        result: Floats = self.design.root @ self.fitted.factors
        return result

    @cached_property
    def learnt(self) -> Floats:
        """A root of the covariance that the runs took away, (factors, columns)."""
        share, directions = np.linalg.eigh(np.eye(len(self.design.keys)) - self.fitted.covariance)
        large = share > LEAST_KNOWN
        result: Floats = self.design.root @ (directions[:, large] * np.sqrt((1 - OF_ITS_LOAD) * share[large]))
        return result

    def effects(self) -> Iterator[Effect]:
        """Yield the factors that the runs say something of, as a file holds them."""
        left, gpu = np.diag(self.design.prior) - (self.learnt**2).sum(axis=1), self.design.observed[0].covariates["gpu"]
        runs = np.abs(self.design.powers).max(axis=2).sum(axis=0)
        for row, (target, when) in enumerate(self.design.keys):
            known, mean = self.learnt[row], float(self.means[row])
            if abs(mean) < NEGLIGIBLE and np.abs(known).max(initial=0.0) < NEGLIGIBLE:
                continue
            sd = round(sqrt(max(float(left[row]), 0.0)), 4)
            yield Effect(
                target=target, when=dict(when), factor=round(exp(mean), 5), sd=sd, rows=int(runs[row]), gpu=gpu,
                known=tuple(np.round(known, 5).tolist()),
            )  # fmt: skip

    def factors(self, before: Sequence[Effect]) -> Iterator[Factor]:
        """Yield a factor for each of ``MEANINGS``. ``before``: the effects of the file that existed."""
        gpu = self.design.observed[0].covariates["gpu"]
        known = {(e.target, tuple(sorted(e.when.items()))): log(e.factor) for e in before if e.gpu in ("", gpu)}
        old = np.array([known.get(key, 0.0) for key in self.design.keys])
        for target in MEANINGS:
            scope = OF_A_SETTING.get(target, ("gpu",))
            places = defaultdict(list)
            for run, one in enumerate(self.design.observed):
                places[tuple((name, one.covariates[name]) for name in scope)].append(run)
            for when, runs in places.items():
                loading = self._loading(target, runs)
                variance = float(loading @ self.design.prior @ loading)
                if not variance:
                    continue
                left = max(variance - float(((loading @ self.learnt) ** 2).sum()), 0.0)
                moved, before_it = float(loading @ self.means), float(loading @ old)
                yield Factor(target, dict(when), exp(moved), sqrt(left), sqrt(variance), len(runs), exp(before_it))

    def _loading(self, target: str, runs: Sequence[int]) -> Floats:
        """Derivative of the logarithm of ``target``, a mean weighted by time, by each factor, (factors,)."""
        weights = self._weights(targets(target), runs, prefill=target == "prefill")
        if target in OF_THE_GPU:
            whole = targets("slowdown")
            slowdown = self._weights(whole, runs, prefill=False)
            shared = sum(weights[p] * whole.get(name, 0) for p, name in enumerate(PARAMETERS))
            weights = weights - shared * slowdown
        result: Floats = np.einsum("rfp,p->f", self.design.powers[list(runs)], weights) / len(runs)
        return result

    def _weights(self, changed: Mapping[str, int], runs: Sequence[int], *, prefill: bool) -> Floats:
        terms = self.problem.terms
        of_kind = np.array([of_prefill(name) == prefill for name in terms.metric_names])
        rows = np.isin(terms.metric_run, runs)
        rows = rows & of_kind if prefill or (rows & of_kind).any() else rows
        power = np.array([changed.get(name, 0) for name in PARAMETERS], dtype=np.float64)
        time = np.abs(self._derivative[rows]).sum(axis=0) * np.abs(power)
        total = time.sum()
        return power * time / total if total > 0 else np.zeros_like(power)

    @cached_property
    def _derivative(self) -> Floats:
        return self.problem.terms.log_metrics(self.design.log_values(self.fitted.factors))[1]


def fit_own(runs: Sequence[MeasuredRun], base: Calibration) -> tuple[list[OwnFit], list[tuple[MeasuredRun, str]]]:
    """Return what ``runs`` teach beside ``base``, one fit for each GPU, and the runs that cannot be replayed."""
    now, last = base, None
    fits: list[OwnFit] = []
    for _ in range(ROUNDS):
        observed, refused = observe(runs, now)
        by_gpu = defaultdict(list)
        for one in observed:
            by_gpu[one.covariates["gpu"]].append(one)
        fits = [OwnFit.to(members, base) for members in by_gpu.values()]
        if not fits:
            break
        moved = np.concatenate([fit.design.log_values(fit.fitted.factors) - fit.design.start for fit in fits])
        if last is not None and np.abs(moved - last).max() < SETTLED:
            break
        now, last = base.with_own(effects_of(fits), "fitted"), moved
    return fits, refused


def effects_of(fits: Iterable[OwnFit]) -> tuple[Effect, ...]:
    return tuple(effect for fit in fits for effect in fit.effects())

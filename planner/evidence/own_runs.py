"""What a user's own runs teach: the posterior of the shipped factors, given these runs too.

The shipped fits leave a normal distribution of the factors of an engine (``planner.timing.Belief``), those that a
machine of one's own may differ by among them. It is the prior here. With R a root of its covariance::

    factors = R u,  u ~ N(0, 1)           the runs then give u a mean m and a covariance C
    posterior mean R m, covariance R R' - R (1 - C) R'

so a file holds, for each factor, its part of R m and a row of a root of R (1 - C) R': what was learnt. Steps under
another load differ by more than factors say, so a share of it (``OF_ITS_LOAD``) does not count. One run with
TTFT, TPOT and throughput narrows every figure that hangs on the same factors, and says little of which of them it was.
The runs of each kind of GPU are taken alone: engines on another one keep what is shipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from planner.evidence.fitting import EfficiencyFit, FitProblem, of_prefill
from planner.evidence.observe import Floats, Observed, observe
from planner.evidence.runs import MeasuredRun
from planner.evidence.terms import Terms
from planner.timing import PARAMETERS, Calibration, Effect, Key, prior_values, targets

#: Target to its name for people.
MEANINGS = {
    "slowdown": "time of the GPU",
    "prefill": "prefill beside decode",
    "launch": "launch of a kernel",
    "host": "host, each step",
    "request_s": "client, each request",
    "frontend_s": "front end, each request of a burst",
    "collective_s": "latency of a collective",
    "link_share": "bandwidth of the links",
}
#: Of which every setting has its own: model shape, precision and TP. The others are the machine's.
OF_A_SETTING = {"slowdown": ("gpu", "shape", "weights", "tp"), "prefill": ("gpu", "shape", "weights", "tp")}
#: The runs determine a factor when they narrow its standard deviation to this share of the prior, or less.
DETERMINED = 0.9
#: Share of the prior variance that runs take away, below which a direction is not worth a column.
LEAST_KNOWN = 1e-3
#: Share of what a run teaches that holds for its own load alone: so much of the variance that it takes away stays. By
#: the interval score of other loads of published runs, on half of the groups of ``benchmarks/own_runs.py``, among 0,
#: 0.15, 0.3, 0.4 and 0.5: no one of them is the best for all, from 0.15 (TTFT after three runs) to 0.5 (TPOT).
OF_ITS_LOAD = 0.4
#: Logarithms and loadings below this are not worth a line.
NEGLIGIBLE = 1e-4
#: Fits, each with replays at the speed that the fit before found: speed changes who waits for whom.
ROUNDS = 4
#: The fit has settled when no efficiency (its logarithm) moves by more than this between two rounds.
SETTLED = 0.01


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor on a shipped efficiency, or on the time that several make up; ``sd`` is that of its logarithm."""

    target: str
    when: Mapping[str, str]
    factor: float
    sd: float
    prior_sd: float  #: the same before any run
    runs: int
    before: float = 1.0  #: in the file that existed

    @property
    def determined(self) -> bool:
        """Whether the runs determine it."""
        return self.sd <= DETERMINED * self.prior_sd


class OwnDesign:
    """The factors of the engines of some runs on one GPU, as independent columns with variance 1."""

    def __init__(self, observed: Sequence[Observed], base: Calibration) -> None:
        self.observed = observed
        values = [base.unbounded(one.covariates, _priors(one)) for one in observed]
        self.start: Floats = np.log([[one[name] for name in PARAMETERS] for one in values])
        known = [base.known(one.covariates) for one in observed]
        self.keys: tuple[Key, ...] = tuple(dict.fromkeys(key for one in known for key in one.keys))
        place = {key: number for number, key in enumerate(self.keys)}
        members = [[place[key] for key in one.keys] for one in known]
        sd, rows = np.zeros(len(place)), np.zeros((len(place), len(known[0].signs)))
        #: of each run, the power of each factor in each efficiency, (runs, factors, parameters)
        self.powers: Floats = np.zeros((len(observed), len(place), len(PARAMETERS)))
        for run, (one, at) in enumerate(zip(known, members, strict=True)):
            sd[at], rows[at], self.powers[run, at] = one.sd, one.rows, one.powers
        self.prior: Floats = np.diag(sd**2) + (rows * known[0].signs) @ rows.T
        variance, directions = np.linalg.eigh(self.prior)
        self.root: Floats = directions * np.sqrt(np.maximum(variance, 0.0))
        self._loads = self.powers.transpose(0, 2, 1) @ self.root  # (runs, parameters, columns)
        self.sd = np.ones(len(place))

    def log_values(self, factors: Floats) -> Floats:
        """Logarithm of every efficiency of every run, (runs, parameters)."""
        values: Floats = self.start + self._loads @ factors
        return values

    def jacobian(self, derivative: Floats, metric_run: NDArray[np.int64]) -> Floats:
        """Derivative of every metric by every column, from those by the efficiencies of its run."""
        found: Floats = np.einsum("mp,mpc->mc", derivative, self._loads[metric_run])
        return found


def _priors(one: Observed) -> dict[str, float]:
    return prior_values(one.profile, one.config.tensor_parallel_size)


@dataclass(frozen=True, eq=False)
class OwnFit:
    """What runs on one GPU taught."""

    problem: FitProblem[OwnDesign]
    fitted: EfficiencyFit[OwnDesign]

    @classmethod
    def of(cls, problem: FitProblem[OwnDesign], used_runs: NDArray[np.bool_] | None = None) -> OwnFit:
        """The fit to all of the runs, or to those that ``used_runs`` marks."""
        terms = problem.terms
        used = np.ones(terms.num_metrics, dtype=bool) if used_runs is None else used_runs[terms.metric_run]
        return cls(problem, problem.solve(used))

    @cached_property
    def design(self) -> OwnDesign:
        """The factors."""
        return self.problem.design

    @property
    def gpu(self) -> str:
        """The GPU of the runs."""
        return self.design.observed[0].covariates["gpu"]

    @property
    def moved(self) -> Floats:
        """How far the logarithms of the efficiencies moved, (runs, parameters)."""
        return self.design.log_values(self.fitted.factors) - self.design.start

    @cached_property
    def means(self) -> Floats:
        """Logarithms of the factors, (factors,)."""
        found: Floats = self.design.root @ self.fitted.factors
        return found

    @cached_property
    def learnt(self) -> Floats:
        """A root of the covariance that the runs took away, (factors, columns)."""
        share, directions = np.linalg.eigh(np.eye(len(self.design.keys)) - self.fitted.covariance)
        kept = share > LEAST_KNOWN
        found: Floats = self.design.root @ (directions[:, kept] * np.sqrt((1 - OF_ITS_LOAD) * share[kept]))
        return found

    @property
    def is_determined(self) -> bool:
        """Whether the runs narrow anything, though it be a sum of factors and none of these alone."""
        return bool(np.linalg.eigvalsh(self.fitted.covariance)[0] < DETERMINED**2)

    def effects(self) -> Iterator[Effect]:
        """The factors that the runs say something of, as a file holds them."""
        left = np.diag(self.design.prior) - (self.learnt**2).sum(axis=1)
        runs = np.abs(self.design.powers).max(axis=2).sum(axis=0)
        for row, (target, when) in enumerate(self.design.keys):
            known, mean = self.learnt[row], float(self.means[row])
            if abs(mean) < NEGLIGIBLE and np.abs(known).max(initial=0.0) < NEGLIGIBLE:
                continue
            yield Effect(
                target=target,
                when=dict(when),
                factor=round(exp(mean), 5),
                sd=round(sqrt(max(float(left[row]), 0.0)), 4),
                rows=int(runs[row]),
                gpu=self.gpu,
                known=tuple(np.round(known, 5).tolist()),
            )

    def factors(self, before: Sequence[Effect]) -> Iterator[Factor]:
        """What the runs say of each of ``MEANINGS``. ``before``: the effects of the file that existed."""
        known = {(e.target, tuple(sorted(e.when.items()))): log(e.factor) for e in before if e.gpu in ("", self.gpu)}
        old = np.array([known.get(key, 0.0) for key in self.design.keys])
        for target in MEANINGS:
            for when, runs in self._places(OF_A_SETTING.get(target, ("gpu",))).items():
                loading = self._loading(target, runs)
                variance = float(loading @ self.design.prior @ loading)
                if not variance:
                    continue
                left = max(variance - float(((loading @ self.learnt) ** 2).sum()), 0.0)
                moved, before_it = float(loading @ self.means), float(loading @ old)
                yield Factor(target, dict(when), exp(moved), sqrt(left), sqrt(variance), len(runs), exp(before_it))

    def _places(self, scope: Sequence[str]) -> dict[tuple[tuple[str, str], ...], list[int]]:
        """The runs of each value of ``scope``."""
        found = defaultdict(list)
        for run, one in enumerate(self.design.observed):
            found[tuple((name, one.covariates[name]) for name in scope)].append(run)
        return found

    def _loading(self, target: str, runs: Sequence[int]) -> Floats:
        """How the logarithm of what ``target`` stands for hangs on each factor, in ``runs``, (factors,).

        A target of several efficiencies is their mean, weighted by the time that each takes in these runs: for prefill
        that of the TTFT, else that of the other metrics. What is part of the GPU's time is said beside it.
        """
        own = targets(target)
        weights = self._weights(own, runs, prefill=target == "prefill")
        if target in ("prefill", "launch", "collective_s", "link_share"):
            whole = targets("slowdown")
            slowdown = self._weights(whole, runs, prefill=False)
            shared = sum(weights[p] * whole.get(name, 0) for p, name in enumerate(PARAMETERS))
            weights = weights - shared * slowdown
        found: Floats = np.einsum("rfp,p->f", self.design.powers[list(runs)], weights) / len(runs)
        return found

    def _weights(self, changed: Mapping[str, int], runs: Sequence[int], *, prefill: bool) -> Floats:
        """Of each efficiency in what a target with powers ``changed`` stands for, (parameters,)."""
        of_kind = self._is_prefill == prefill
        rows = np.isin(self.problem.terms.metric_run, runs)
        rows = rows & of_kind if prefill or (rows & of_kind).any() else rows
        power = np.array([changed.get(name, 0) for name in PARAMETERS], dtype=np.float64)
        time = np.abs(self._derivative[rows]).sum(axis=0) * np.abs(power)
        total = time.sum()
        return power * time / total if total > 0 else np.zeros_like(power)

    @cached_property
    def _derivative(self) -> Floats:
        """Of every metric by the efficiencies of its run."""
        return self.problem.terms.log_metrics(self.design.log_values(self.fitted.factors))[1]

    @cached_property
    def _is_prefill(self) -> NDArray[np.bool_]:
        return np.array([of_prefill(name) for name in self.problem.terms.metric_names])


def fit_own(runs: Sequence[MeasuredRun], base: Calibration) -> tuple[dict[str, OwnFit], list[tuple[MeasuredRun, str]]]:
    """What ``runs`` teach beside ``base``, by GPU: fitted, replayed with that, and fitted again until it settles.

    And the runs that cannot be replayed, with the reason.
    """
    now, last = base, None
    fits: dict[str, OwnFit] = {}
    for _ in range(ROUNDS):
        observed, refused = observe(runs, now)
        fits = {gpu: OwnFit.of(_problem(members, base)) for gpu, members in _by_gpu(observed).items()}
        if not fits:
            break
        moved = np.concatenate([fit.moved for fit in fits.values()])
        if last is not None and np.abs(moved - last).max() < SETTLED:
            break
        now, last = base.with_own(effects_of(fits.values()), "fitted"), moved
    return fits, refused


def effects_of(fits: Iterable[OwnFit]) -> tuple[Effect, ...]:
    """What a file holds of ``fits``."""
    return tuple(effect for fit in fits for effect in fit.effects())


def _problem(observed: Sequence[Observed], base: Calibration) -> FitProblem[OwnDesign]:
    return FitProblem(Terms(observed), OwnDesign(observed, base))


def _by_gpu(observed: Iterable[Observed]) -> dict[str, list[Observed]]:
    found = defaultdict(list)
    for one in observed:
        found[one.covariates["gpu"]].append(one)
    return found

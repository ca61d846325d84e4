"""Which covariates change which efficiencies: a random-effects model on the logarithm, and what a fit leaves known.

The value of an efficiency for one run is its prior, times one factor for each line of ``Structure`` that targets it.
All runs with the same covariates share the factor, and it is drawn towards 1 with the standard deviation of the line.

At its optimum a fit is a normal distribution of the columns of its design, with covariance A^-1 (Laplace). Of a column
of several factors that no run tells apart the sum is known, and each has its share by its prior variance. Hence, with V
the prior variances of the columns and v that of a factor in column c::

    covariance of two factors = v (on the diagonal) - (v / V_c) (V - A^-1)_cc' (v' / V_c')

and U of ``Belief`` is a root of the middle matrix. A fit without some of the runs knows less: by Woodbury its A^-1 is
larger by m (1 / W - J A^-1 J')^-1 m' with m = A^-1 J', which are columns of the other sign.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.evidence.fitting import Fitted, load_structure
from planner.evidence.observations import Floats, Observed
from planner.timing import PARAMETERS, Effect, Key, prior_values, targets
from planner.timing.belief import Belief
from planner.timing.efficiencies import Line, load_priors

Scope = tuple[str, ...]
StructureLine = tuple[str, Scope, float]
#: Factors whose logarithm is smaller are not written to a file.
NEGLIGIBLE = 0.004
#: Share of a prior variance that runs take away, below which a direction is not worth a column.
LEAST_KNOWN = 1e-3


@dataclass(frozen=True)
class Structure:
    """What may differ between runs, and how far runs scatter: ``hardware/calibration/structure.toml``."""

    lines: tuple[StructureLine, ...]  #: target, covariates, standard deviation of the logarithm
    sigma: Mapping[str, float]  #: scatter of the logarithm of each metric that is fitted to
    assumed: tuple[float | None, ...]  #: of each line, the deviation before any run; None: held at what it is

    @classmethod
    def shipped(cls) -> Structure:
        """The structure that our fits have."""
        content = load_structure()
        lines = tuple((target, tuple(scope), sd[-1]) for target, scope, *sd in content["lines"])
        assumed = tuple(sd[0] if len(sd) > 1 else None for _, _, *sd in content["lines"])
        return cls(lines, content["sigma"], assumed)


@dataclass(frozen=True, slots=True)
class ScopedFactor:
    """One factor: what it multiplies, for which covariates, and how far from 0 its logarithm lies before any run."""

    target: str
    when: dict[str, str]
    sd: float

    @property
    def key(self) -> Key:
        """Its name."""
        return _key(self.target, self.when)


@dataclass(frozen=True)
class DesignColumn:
    """Factors on the same efficiencies of the same runs. No run tells them apart, so they are fitted as one."""

    parts: tuple[ScopedFactor, ...]
    powers: tuple[int, ...]  #: of the factor, for each parameter
    runs: NDArray[np.bool_]

    @property
    def variance(self) -> float:
        """Of the logarithm of all parts together."""
        return sum(part.sd**2 for part in self.parts)

    @property
    def predicted(self) -> float:
        """Share of the logarithm that is not of a source."""
        return sum(part.sd**2 for part in self.parts if "source" not in part.when) / self.variance


class Design:
    """All factors of a fit to ``observed``, and the efficiencies of each run that they make up."""

    def __init__(
        self,
        observed: Sequence[Observed],
        lines: Sequence[StructureLine] | None = None,
        *,
        wanted: Container[Key] | None = None,
    ) -> None:
        """``lines``: by default those that we ship. ``wanted``: the factors of ``lines`` to have, by default all.

        Each prior has a factor of its own.
        """
        self.observed = observed
        priors = (prior_values(one.profile, one.covariates) for one in observed)
        #: logarithm of the priors of each run, (runs, parameters)
        self.start: Floats = np.log([[values[name] for name in PARAMETERS] for values in priors])
        lines = Structure.shipped().lines if lines is None else lines
        scoped = (column for column in self._scoped(lines) if wanted is None or column.parts[0].key in wanted)
        self.columns = _merged([*self._global(), *scoped])
        self.sd: Floats = np.array([column.variance**0.5 for column in self.columns])
        #: whether a run has the factors of a column, and the power of these in each efficiency
        self._runs = np.array([column.runs for column in self.columns]).T
        self._powers: Floats = np.array([column.powers for column in self.columns], dtype=np.float64).T
        #: share of a column that a prediction has: the factors of a source are those of its machines and settings
        self._predicted: Floats = np.array([column.predicted for column in self.columns])

    def _global(self) -> Iterator[DesignColumn]:
        everywhere = np.ones(len(self.observed), dtype=bool)
        return (self._column(name, {}, everywhere, prior.sd) for name, prior in load_priors().items())

    def _scoped(self, lines: Sequence[StructureLine]) -> Iterator[DesignColumn]:
        named = [{**one.covariates, "source": one.source} for one in self.observed]
        for target, scope, sd in lines:
            of_runs = [Line(target, scope, sd).key(covariates) for covariates in named]
            for key in dict.fromkeys(of_runs):
                if key:  # engines without a special covariate have no such factor
                    members = np.array([key == one for one in of_runs])
                    yield self._column(target, dict(key[1]), members, sd)

    def _column(self, target: str, when: dict[str, str], runs: NDArray[np.bool_], sd: float) -> DesignColumn:
        changed = targets(target)
        powers = tuple(changed.get(name, 0) for name in PARAMETERS)
        return DesignColumn((ScopedFactor(target, when, sd),), powers, runs)

    def factors_of(self, effects: Iterable[Effect]) -> Floats:
        """Logarithms of the factors of the columns as ``effects`` have them: where an iteration may start."""
        known = {_key(effect.target, effect.when): float(np.log(effect.factor)) for effect in effects}
        return np.array([sum(known.get(part.key, 0.0) for part in column.parts) for column in self.columns])

    def log_values(self, factors: Floats) -> Floats:
        """Logarithm of every efficiency of every run, (runs, parameters), from the logarithms of the factors."""
        return self.start + (self._runs * factors) @ self._powers.T

    def predicted_log_values(self, factors: Floats) -> Floats:
        """Return them without the factors of sources, as every prediction has them."""
        return self.log_values(factors * self._predicted)

    def jacobian(self, derivative: Floats, metric_run: NDArray[np.int64]) -> Floats:
        """Derivative of every metric by every factor, from those by the efficiencies of its run."""
        result = derivative @ self._powers
        result *= self._runs[metric_run]
        return result


def _key(target: str, when: dict[str, str]) -> Key:
    return target, tuple(sorted(when.items()))


def _merged(columns: Sequence[DesignColumn]) -> list[DesignColumn]:
    """Columns that no run tells apart become one."""
    merged: dict[tuple[tuple[int, ...], bytes], DesignColumn] = {}
    for column in columns:
        key = column.powers, column.runs.tobytes()
        same = merged.get(key)
        merged[key] = DesignColumn(same.parts + column.parts, column.powers, column.runs) if same else column
    return list(merged.values())


# --- what a fit says of the factors --------------------------------------------------------------------------------


def effects_of(design: Design, fitted: Fitted) -> tuple[Effect, ...]:
    """Return the factors that differ from 1, without those of a source, as a file holds them."""
    effects = []
    for column, log_factor, sd in zip(design.columns, fitted.factors.tolist(), fitted.sd.tolist(), strict=True):
        rows = int(column.runs.sum())
        for part in column.parts:
            part_log = log_factor * part.sd**2 / column.variance  # its share of the sum, as Bayes has it
            if abs(part_log) < NEGLIGIBLE or "source" in part.when:
                continue
            unseen = max(part.sd**2 - part.sd**4 / column.variance, 0.0)  # what its column does not determine
            part_sd = (unseen + (sd * part.sd**2 / column.variance) ** 2) ** 0.5
            factor = round(float(np.exp(part_log)), 4)
            effects.append(Effect(target=part.target, when=part.when, factor=factor, sd=round(part_sd, 3), rows=rows))
    return tuple(effects)


def belief_lines() -> tuple[Line, ...]:
    """Every factor of a prediction: those of the fit, the priors', and those of a machine of one's own."""
    priors = (Line(name, (), prior.sd) for name, prior in load_priors().items())
    machine = (Line(target, tuple(scope), *rest) for target, scope, *rest in load_structure()["machine"])
    return (*priors, *(Line(*line) for line in Structure.shipped().lines), *machine)


def posterior(design: Design, covariance: Floats, least: float = LEAST_KNOWN) -> Belief:
    """The distribution of the factors of ``design``, whose columns have ``covariance``."""
    known = np.diag(np.ones(len(design.sd))) - covariance / np.outer(design.sd, design.sd)
    share, directions = np.linalg.eigh(known)
    large = share > least
    columns = directions[:, large] * np.sqrt(share[large]) * design.sd[:, None]
    keys, shares = _parts(design)
    return Belief(belief_lines(), keys, shares @ columns, np.full(columns.shape[1], -1.0))


def unlearnt(belief: Belief, design: Design, columns: Floats) -> Belief:
    """``belief`` without what some runs taught; ``columns`` as above, of the columns of ``design``."""
    _, shares = _parts(design)
    added = shares @ columns
    rows, signs = np.hstack([belief.rows, added]), np.concatenate([belief.signs, np.ones(added.shape[1])])
    return Belief(belief.lines, belief.keys, rows, signs)


def _parts(design: Design) -> tuple[tuple[Key, ...], Floats]:
    """The factors, and the share of each in its column, (factors, columns)."""
    parts = [(part, number) for number, column in enumerate(design.columns) for part in column.parts]
    shares = np.zeros((len(parts), len(design.columns)))
    for row, (part, number) in enumerate(parts):
        shares[row, number] = part.sd**2 / design.columns[number].variance
    return tuple(part.key for part, _ in parts), shares

"""Which covariates change which efficiencies: a random-effects model on the logarithm.

The value of an efficiency for one run is its prior, times one factor for each line of ``Structure`` that targets it.
All runs with the same covariates share the factor, and it is drawn towards 1 with the standard deviation of the line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.evidence.observe import Floats, Observed
from planner.resources import data_dir
from planner.timing import PARAMETERS, Effect, Line, load_priors, prior_values, targets

Scope = tuple[str, ...]
StructureLine = tuple[str, Scope, float]
Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Structure:
    """What may differ between runs, and how far runs scatter: ``hardware/calibration/structure.toml``."""

    lines: tuple[StructureLine, ...]  #: target, covariates, standard deviation of the logarithm
    sigma: Mapping[str, float]  #: scatter of the logarithm of each metric that is fitted to
    source_runs: int  #: that the runs of one source count as, at most
    assumed: tuple[float | None, ...]  #: of each line, the deviation before any run; None: held at what it is
    machine: tuple[Line, ...]  #: factors of a machine of one's own, which predictions hang on and our fits do not have


@cache
def load_structure() -> Structure:
    """The structure that our fits have."""
    path = data_dir("hardware") / "calibration" / "structure.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    lines = tuple((target, tuple(scope), sd[-1]) for target, scope, *sd in content["lines"])
    assumed = tuple(sd[0] if len(sd) > 1 else None for _, _, *sd in content["lines"])
    machine = tuple(Line(target, tuple(scope), *rest) for target, scope, *rest in content["machine"])
    return Structure(lines, content["sigma"], content["source"]["runs"], assumed, machine)


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

    def split(self, log_factor: float) -> Iterator[tuple[ScopedFactor, float]]:
        """Each part with its share of what was fitted: in proportion to its variance, as Bayes has it."""
        return ((part, log_factor * part.sd**2 / self.variance) for part in self.parts)


class Design:
    """All factors of a fit to ``observed``, and the efficiencies of each run that they make up."""

    def __init__(
        self,
        observed: Sequence[Observed],
        structure: Sequence[StructureLine] | None = None,
        *,
        told: Container[Key] | None = None,
    ) -> None:
        """``structure``: by default ours. ``told``: the factors of ``structure`` to have, by default all.

        Each prior has a factor of its own.
        """
        self.observed = observed
        #: logarithm of the priors of each run, (runs, parameters)
        self.start: Floats = np.log([list(_priors(one)) for one in observed])
        lines = load_structure().lines if structure is None else structure
        scoped = (column for column in self._scoped(lines) if told is None or column.parts[0].key in told)
        self.columns = _merged([*self._global(), *scoped])
        self.sd: Floats = np.array([column.variance**0.5 for column in self.columns])
        self._by_parameter = [
            [i for i, column in enumerate(self.columns) if column.powers[parameter]]
            for parameter in range(len(PARAMETERS))
        ]
        runs = np.array([column.runs for column in self.columns], dtype=np.float64).T
        powers = np.array([column.powers for column in self.columns], dtype=np.float64)
        self._members = [runs[:, on] * powers[on, parameter] for parameter, on in enumerate(self._by_parameter)]

    def _global(self) -> Iterator[DesignColumn]:
        everywhere = np.ones(len(self.observed), dtype=bool)
        return (self._column(name, {}, everywhere, prior.sd) for name, prior in load_priors().items())

    def _scoped(self, structure: Sequence[StructureLine]) -> Iterator[DesignColumn]:
        for target, scope, sd in structure:
            found = [tuple(one.covariates[key] for key in scope) for one in self.observed]
            for values in dict.fromkeys(found):
                members = np.array([value == values for value in found])
                yield self._column(target, dict(zip(scope, values, strict=True)), members, sd)

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
        values = self.start.copy()
        for parameter, columns in enumerate(self._by_parameter):
            values[:, parameter] += self._members[parameter] @ factors[columns]
        return values

    def jacobian(self, derivative: Floats, metric_run: NDArray[np.int64]) -> Floats:
        """Derivative of every metric by every factor, from those by the efficiencies of its run."""
        result = np.zeros((len(derivative), len(self.columns)))
        for parameter, columns in enumerate(self._by_parameter):
            result[:, columns] += derivative[:, [parameter]] * self._members[parameter][metric_run]
        return result


def _priors(one: Observed) -> Iterator[float]:
    values = prior_values(one.profile, one.config.tensor_parallel_size)
    return (values[name] for name in PARAMETERS)


def _key(target: str, when: dict[str, str]) -> Key:
    return target, tuple(sorted(when.items()))


def _merged(columns: Sequence[DesignColumn]) -> list[DesignColumn]:
    """Columns that no run tells apart become one."""
    found: dict[tuple[tuple[int, ...], bytes], DesignColumn] = {}
    for column in columns:
        key = column.powers, column.runs.tobytes()
        same = found.get(key)
        found[key] = DesignColumn(same.parts + column.parts, column.powers, column.runs) if same else column
    return list(found.values())

"""The distribution of the efficiencies: one normal distribution of their logarithms.

The logarithm of an efficiency is its prior plus the factors whose covariates match. Before any run the factors are
independent, around 0 with the standard deviation of their line. Runs narrow and correlate them::

    covariance of the factors = diag(sd^2) + U diag(sign) U'       sign -1: learnt from runs, +1: taken away again

A factor without runs has no row in U and keeps its deviation. A figure has, to first order, the deviation of
``log figure = g' log efficiencies``, with g its derivatives. A user's own runs add columns of sign -1 on their GPU.
Source: random effects, or kriging (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, chapter 2).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.timing.efficiencies import PARAMETERS, Key, Line, targets

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spread:
    """The uncertainty of the logarithm of a figure: its loading on each factor, and on the columns of U."""

    own: Mapping[Key, float]  #: in deviations of the factor
    known: Floats  #: loading on each column of U
    signs: Floats

    def covariance(self, other: "Spread") -> float:
        """Covariance of the logarithms of two figures."""
        both = sum(loading * other.own[key] for key, loading in self.own.items() if key in other.own)
        return both + float((self.known * self.signs) @ other.known)

    @cached_property
    def variance(self) -> float:
        return max(self.covariance(self), 0.0)

    def times(self, power: float) -> "Spread":
        return Spread({key: power * loading for key, loading in self.own.items()}, power * self.known, self.signs)

    def difference_sd(self, other: "Spread") -> float:
        """Standard deviation of the logarithm of the ratio of two figures: common factors cancel."""
        return sqrt(max(self.variance + other.variance - 2 * self.covariance(other), 0.0))


@dataclass(frozen=True, eq=False)
class Known:
    """The distribution of the efficiencies of one engine: its factors, in their order."""

    keys: tuple[Key, ...]
    sd: Floats  #: (factors,)
    powers: Floats  #: (factors, parameters): of the factor in each efficiency
    rows: Floats  #: (factors, columns of U)
    signs: Floats  #: (columns of U,)

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the logarithms of the efficiencies, (parameters, parameters)."""
        own, known = self.powers * self.sd[:, None], self.powers.T @ self.rows
        result: Floats = own.T @ own + (known * self.signs) @ known.T
        return result

    def variance(self, gradient: Floats) -> float:
        """Variance of the logarithm of a figure whose derivatives are ``gradient``, (parameters,)."""
        return max(float(gradient @ self.covariance @ gradient), 0.0)

    def spread(self, gradient: Floats) -> Spread:
        """The uncertainty of one figure, whose derivatives are ``gradient``, (parameters,)."""
        loading = self.powers @ gradient
        own = dict(zip(self.keys, (loading * self.sd).tolist(), strict=True))
        return Spread(own, loading @ self.rows, self.signs)


@dataclass(frozen=True, eq=False)
class Belief:
    lines: tuple[Line, ...]
    keys: tuple[Key, ...] = ()  #: factors with a row
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))  #: U, (factors, columns)
    signs: Floats = field(default_factory=lambda: np.zeros(0))  #: (columns,)
    #: columns of sign -1 of a user's own runs, by the GPU whose engines have them; as long for each factor
    taught: Mapping[str, Mapping[Key, Sequence[float]]] = field(default_factory=dict)
    _known: dict[object, Known] = field(default_factory=dict, init=False, repr=False)

    def of(self, covariates: Mapping[str, str]) -> Known:
        where = tuple(covariates.items())
        if where not in self._known:  # searches ask for the same engines again
            pairs = [(key, line.sd) for line in self.lines if (key := line.key(covariates))]
            keys = tuple(key for key, _ in pairs)
            own = (self._own_rows(gpu, keys, covariates) for gpu in self.taught)
            shipped = np.zeros((len(keys), len(self.signs)))
            for place, key in enumerate(keys):
                if (row := self._places.get(key)) is not None:
                    shipped[place] = self.rows[row]
            rows = np.hstack([shipped, *own])
            signs = np.concatenate([self.signs, np.full(rows.shape[1] - len(self.signs), -1.0)])
            self._known[where] = Known(keys, np.array([sd for _, sd in pairs]), _powers(keys), rows, signs)
        return self._known[where]

    @cached_property
    def _places(self) -> dict[Key, int]:
        return {key: row for row, key in enumerate(self.keys)}

    def _own_rows(self, gpu: str, keys: Sequence[Key], covariates: Mapping[str, str]) -> Floats:
        none = [0.0] * len(next(iter(self.taught[gpu].values()), ()))
        learnt = self.taught[gpu] if covariates.get("gpu") == gpu else {}
        return np.array([learnt.get(key, none) for key in keys], dtype=np.float64).reshape(len(keys), len(none))


def load_belief(path: Path, lines: Iterable[Line]) -> Belief:
    """Read ``covariance.npz``, which ``benchmarks/fit/files.py`` writes."""
    with np.load(path) as stored:
        keys = tuple(map(_key, stored["keys"].tolist()))
        return Belief(tuple(lines), keys, stored["rows"].astype(np.float64), stored["signs"])


def _powers(keys: Sequence[Key]) -> Floats:
    powers = [targets(target) for target, _ in keys]
    return np.array([[one.get(name, 0) for name in PARAMETERS] for one in powers], dtype=np.float64).reshape(
        len(keys), len(PARAMETERS)
    )


def _key(text: str) -> Key:
    target, *when = text.split("|")
    return target, tuple((name, value) for name, _, value in (pair.partition("=") for pair in when))

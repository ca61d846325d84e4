"""What is known of the efficiencies: one normal distribution of their logarithms.

The logarithm of an efficiency is its prior, plus the factors whose covariates match. Before any run each factor lies
around 0 with the standard deviation of its line, and all are independent. Runs make them known and tie them::

    covariance of the factors = diag(sd^2) + U diag(sign) U'       sign -1: what runs taught, +1: what was taken away

A factor of which no run speaks has no row in U: a GPU, a model or a machine that was never measured keeps the whole
deviation of its line. So the uncertainty of a figure, to first order the deviation of

    log figure = g' log efficiencies                               g: its derivatives

is small near what was measured and grows with the distance, and two figures that hang on the same factors err
together. What a user's own runs taught are more columns of sign -1, which engines on the GPU of these runs alone have.
Such models are called random effects, or kriging (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, chapter 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.resources import write_then_rename
from planner.timing.efficiencies import PARAMETERS, targets

Floats = NDArray[np.float64]
#: A factor: its target, and the covariates for which it holds.
Key = tuple[str, tuple[tuple[str, str], ...]]
#: Covariates that most engines do not have: a factor with one of them is of those that have it.
SPECIAL = ("partition", "nodes")
INDEX = {name: i for i, name in enumerate(PARAMETERS)}


@dataclass(frozen=True, slots=True)
class Line:
    """One factor for each value of ``scope``, with standard deviation ``sd`` of its logarithm before any run."""

    target: str
    scope: tuple[str, ...]
    sd: float
    where: Mapping[str, str] = field(default_factory=dict)  #: engines that have such a factor; empty: all

    def key(self, covariates: Mapping[str, str]) -> Key | None:
        """The factor of an engine, if it has one. A covariate that is not known is a value of its own."""
        lacks = any(name in self.scope and not covariates.get(name) for name in SPECIAL)
        if lacks or not self.where.items() <= covariates.items():
            return None
        return self.target, tuple(sorted((name, covariates.get(name, "")) for name in self.scope))


@dataclass(frozen=True, eq=False)
class Spread:
    """How uncertain the logarithm of a figure is: its loading on each factor, and on what is known of these."""

    own: Mapping[Key, float]  #: in deviations of the factor
    known: Floats  #: loading on each column of U
    signs: Floats

    def covariance(self, other: Spread) -> float:
        """Of the logarithms of two figures."""
        both = sum(loading * other.own[key] for key, loading in self.own.items() if key in other.own)
        return both + float((self.known * self.signs) @ other.known)

    @cached_property
    def variance(self) -> float:
        """Of the logarithm."""
        return max(self.covariance(self), 0.0)

    def times(self, power: float) -> Spread:
        """Of the figure taken to ``power``."""
        return Spread({key: power * loading for key, loading in self.own.items()}, power * self.known, self.signs)

    def difference_sd(self, other: Spread) -> float:
        """Standard deviation of the logarithm of the ratio of two figures: what both hang on cancels."""
        return sqrt(max(self.variance + other.variance - 2 * self.covariance(other), 0.0))


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the efficiencies of one engine: its factors, in their order."""

    keys: tuple[Key, ...]
    sd: Floats  #: (factors,)
    powers: Floats  #: (factors, parameters): of the factor in each efficiency
    rows: Floats  #: (factors, columns of U)
    signs: Floats  #: (columns of U,)

    @cached_property
    def covariance(self) -> Floats:
        """Of the logarithms of the efficiencies, (parameters, parameters)."""
        own, known = self.powers * self.sd[:, None], self.powers.T @ self.rows
        result: Floats = own.T @ own + (known * self.signs) @ known.T
        return result

    def variance(self, gradient: Floats) -> Floats:
        """Of the logarithms of figures whose derivatives are ``gradient``, (figures, parameters)."""
        found: Floats = np.maximum(np.einsum("ij,jk,ik->i", gradient, self.covariance, gradient), 0.0)
        return found

    def spread(self, gradient: Floats) -> Spread:
        """The uncertainty of one figure, whose derivatives are ``gradient``, (parameters,)."""
        loading = self.powers @ gradient
        own = dict(zip(self.keys, (loading * self.sd).tolist(), strict=True))
        return Spread(own, loading @ self.rows, self.signs)


@dataclass(frozen=True, eq=False)
class Taught:
    """What a user's own runs on one GPU taught: columns of sign -1, for engines on that GPU."""

    gpu: str
    rows: Mapping[Key, Sequence[float]]  #: as long for each factor

    def rows_of(self, covariates: Mapping[str, str], keys: Sequence[Key]) -> Floats:
        """Of the factors of an engine, (factors, columns)."""
        none = [0.0] * len(next(iter(self.rows.values()), ()))
        held = self.rows if covariates.get("gpu") == self.gpu else {}
        return np.array([held.get(key, none) for key in keys], dtype=np.float64).reshape(len(keys), len(none))


@dataclass(frozen=True, eq=False)
class Belief:
    """The distribution of all factors."""

    lines: tuple[Line, ...]
    keys: tuple[Key, ...] = ()  #: factors with a row
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))  #: U, (factors, columns)
    signs: Floats = field(default_factory=lambda: np.zeros(0))  #: (columns,)
    taught: tuple[Taught, ...] = ()
    _found: dict[object, Known] = field(
        default_factory=dict, init=False, repr=False
    )  #: searches ask for the same engines again

    @cached_property
    def _row(self) -> dict[Key, int]:
        return {key: row for row, key in enumerate(self.keys)}

    def of(self, covariates: Mapping[str, str]) -> Known:
        """What is known of an engine with ``covariates``."""
        where = tuple(covariates.items())
        if where not in self._found:
            self._found[where] = self._of(covariates)
        return self._found[where]

    def _of(self, covariates: Mapping[str, str]) -> Known:
        pairs = [(key, line.sd) for line in self.lines if (key := line.key(covariates))]
        keys = tuple(key for key, _ in pairs)
        rows = np.hstack([self._rows(keys), *(taught.rows_of(covariates, keys) for taught in self.taught)])
        signs = np.concatenate([self.signs, np.full(rows.shape[1] - len(self.signs), -1.0)])
        return Known(keys, np.array([sd for _, sd in pairs]), _powers(keys), rows, signs)

    def with_taught(self, taught: Iterable[Taught]) -> Belief:
        """The same with what a user's own runs taught."""
        return Belief(self.lines, self.keys, self.rows, self.signs, tuple(taught))

    def _rows(self, keys: Sequence[Key]) -> Floats:
        found = np.zeros((len(keys), len(self.signs)))
        for place, key in enumerate(keys):
            if (row := self._row.get(key)) is not None:
                found[place] = self.rows[row]
        return found

    def save(self, path: Path) -> None:
        """Write what runs taught; the lines stand in the file of fits."""
        with_temporary = path.with_suffix(".tmp.npz")
        names = np.array([_text(key) for key in self.keys])
        np.savez_compressed(with_temporary, keys=names, rows=self.rows.astype(np.float16), signs=self.signs)
        write_then_rename(path, with_temporary.read_bytes())
        with_temporary.unlink()


def load_belief(path: Path, lines: Iterable[Line]) -> Belief:
    """What ``Belief.save`` wrote."""
    with np.load(path) as stored:
        keys = tuple(map(_key, stored["keys"].tolist()))
        return Belief(tuple(lines), keys, stored["rows"].astype(np.float64), stored["signs"])


def _powers(keys: Sequence[Key]) -> Floats:
    found = np.zeros((len(keys), len(PARAMETERS)))
    for place, (target, _) in enumerate(keys):
        for name, power in targets(target).items():
            found[place, INDEX[name]] = power
    return found


def _text(key: Key) -> str:
    target, when = key
    return "|".join([target, *(f"{name}={value}" for name, value in when)])


def _key(text: str) -> Key:
    target, *when = text.split("|")
    return target, tuple((name, value) for name, _, value in (pair.partition("=") for pair in when))

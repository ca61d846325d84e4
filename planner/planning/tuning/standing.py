"""Which setting to measure next, by what it may gain, and whether the best is known.

A setting is worth its merit, such as tokens/s per GPU, where it keeps every target, and nothing where it does not. The
logarithms of merits and of margins (limit over latency) of all settings are one normal distribution: what is not known
of the efficiencies is shared by settings that hang on them alike, the noise is each figure's own. What was measured
conditions it (x of the settings still open, y the measured ones)::

    x | y  ~  normal(mean_x + C_xy C_yy^-1 (y - mean_y),  C_xx - C_xy C_yy^-1 C_yx)

so one run moves all settings, and what is wrong for all alike cancels. Of draws from it, with b the best measured
worth::

    gain of a setting    mean of max(worth - b, 0)     expected improvement: Jones et al., "Efficient global
                                                       optimization", Journal of Global Optimization 13, 1998
    best is known        share of the draws in which no open setting is worth more than b (1 + within)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from planner.timing import Spread

Floats = NDArray[np.float64]
DRAWS = 4096
SEED = 0
#: Added to the variance of what was measured, so that figures which are nearly one can be told apart.
LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Prospect:
    """A logarithm that is known to some degree: a merit, or the margin to a target."""

    mean: float
    spread: Spread | None = None  #: None: nothing of the engine is in it
    noise: float = 0.0  #: standard deviation of its own


@dataclass(frozen=True, eq=False)
class Prospects:
    """The merit and the margins of each setting."""

    mean: Floats  #: (settings, 1 + targets): the merit first
    covariance: Floats  #: (settings x (1 + targets)) twice

    @classmethod
    def of(cls, settings: Sequence[Sequence[Prospect]]) -> Prospects:
        each = [one for setting in settings for one in setting]
        covariance = np.diag([one.noise**2 for one in each])
        for row, one in enumerate(each):
            for column, other in enumerate(each[: row + 1]):
                if one.spread is not None and other.spread is not None:
                    shared = one.spread.covariance(other.spread)
                    covariance[row, column] += shared
                    covariance[column, row] += shared * (row != column)
        return cls(np.array([[one.mean for one in setting] for setting in settings]), covariance)

    def standing(
        self, measured: Mapping[int, Sequence[float]], out: Collection[int] = (), *, within: float = 0.0
    ) -> Standing:
        """After ``measured``, the logarithms by setting, where the settings ``out`` do not run.

        ``within``: share by which another setting has to be better to count.
        """
        worths = {setting: float(_worth(np.array(values))) for setting, values in measured.items()}
        best = max((setting for setting in worths if worths[setting] > 0), key=worths.__getitem__, default=None)
        least = worths[best] if best is not None else 0.0
        still = [number for number in range(len(self.mean)) if number not in measured and number not in out]
        if not still:
            return Standing(best, {}, 1.0)
        drawn = _worth(self._draws(still, measured))  # (draws, open settings)
        gains = np.maximum(drawn - least, 0.0).mean(axis=0) / (least or 1.0)
        known = float((drawn <= least * (1 + within)).all(axis=1).mean())
        return Standing(best, dict(zip(still, gains.tolist(), strict=True)), known)

    def _draws(self, still: Sequence[int], measured: Mapping[int, Sequence[float]]) -> Floats:
        """Of the logarithms of the open settings, (draws, settings, 1 + targets)."""
        mean, covariance = self.mean[still].ravel(), self.covariance
        x, y = self._rows(still), self._rows(list(measured))
        left = covariance[np.ix_(x, x)]
        if len(y):
            told = covariance[np.ix_(y, y)] + LEAST_VARIANCE * np.eye(len(y))
            weights = np.linalg.solve(told, covariance[np.ix_(y, x)]).T
            off = (
                np.concatenate([np.asarray(values) for values in measured.values()]) - self.mean[list(measured)].ravel()
            )
            mean, left = mean + weights @ off, left - weights @ covariance[np.ix_(y, x)]
        variance, directions = np.linalg.eigh(left)
        root = directions * np.sqrt(np.maximum(variance, 0.0))
        normal = np.random.default_rng(SEED).standard_normal((DRAWS, len(mean)))
        drawn: Floats = (mean + normal @ root.T).reshape(DRAWS, len(still), -1)
        return drawn

    def _rows(self, settings: Sequence[int]) -> NDArray[np.int64]:
        width = self.mean.shape[1]
        rows: NDArray[np.int64] = (np.array(settings, dtype=np.int64)[:, None] * width + np.arange(width)).ravel()
        return rows


@dataclass(frozen=True)
class Standing:
    """What is known after some runs."""

    best: int | None  #: of the measured settings; None: none of them keeps the targets
    gains: Mapping[int, float]  #: of each open setting, over the worth of the best
    known: float  #: probability that no open setting is better

    @property
    def next(self) -> int | None:
        """The setting that gains most; None: none is open."""
        return max(self.gains, key=self.gains.__getitem__, default=None)


def _worth(logarithms: Floats) -> Floats:
    """exp(merit) where no margin is negative, else 0; (..., 1 + targets) to (...)."""
    found: Floats = np.exp(logarithms[..., 0]) * (logarithms[..., 1:] >= 0).all(axis=-1)
    return found

"""The odds that one figure is larger than another, by the uncertainty of both.

::

    log (measured a / measured b)  ~  normal(log (a / b),  var(a) + var(b) - 2 cov(a, b) + noise of each)

Errors of efficiencies that both figures depend on cancel: they are in the covariance. Noise is each measurement's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they need numpy, which ``fit`` is spared
    from planner.planning.uncertainty import Uncertainty
    from planner.timing import Spread


@dataclass(frozen=True)
class Forecast:
    """A figure, the sensitivity of its logarithm, and the noise of a measurement."""

    value: float
    spread: Spread | None = None  #: None: nothing is known of it
    noise: float = 0.0  #: standard deviation of the logarithm
    power: float = 1.0  #: of the uncertain figure in ``value``: -1 for its inverse, 2 for its square

    @classmethod
    def of(cls, value: float, doubt: Uncertainty, key: str, power: float = 1.0) -> Forecast:
        return cls(value, doubt.spread(key), doubt.noise(key), power)

    def beats(self, other: Forecast) -> float:
        """Probability that a measurement of this is larger than one of ``other``."""
        ratio, sd = log(self.value / other.value), hypot(self.power * self.noise, other.power * other.noise)
        if self.spread is not None and other.spread is not None:
            sd = hypot(self.spread.times(self.power).difference_sd(other.spread.times(other.power)), sd)
        if not sd:
            return 0.5 if not ratio else float(ratio > 0)
        return NormalDist().cdf(ratio / sd)


def percent(probability: float) -> str:
    """A probability such as ``93%``, never 0 % or 100 %: ``under 1%``, ``over 99%``."""
    if probability > 0.99:
        return "over 99%"
    return "under 1%" if probability < 0.01 else f"{probability:.0%}"

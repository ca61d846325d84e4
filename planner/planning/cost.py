"""Cost of hardware: dollars and watts of GPUs, and of the tokens that they put out.

::

    USD per 1M output tokens = USD/h / 3600 / (output tokens/s) x 1e6
    output tokens per USD    = output tokens/s x 3600 / (USD/h)
    output tokens per joule  = output tokens/s / W

The low end of a cost is that of the cheapest offer at the fastest end of the prediction. Watts are those of the boards.

>>> Span.of(2.0).times(1e6 / 3600).over(Span(500, 1000, 2000)).high  # USD per 1M tokens: 2 / 3600 / 500 x 1e6
1.1111111111111112
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from planner.errors import InputError
from planner.hardware import GpuProfile, load_profile
from planner.units import HOUR_S

MILLION_PER_S = 1e6 / HOUR_S  #: USD for 1M tokens, at 1 USD per hour and 1 token per second


@dataclass(frozen=True, slots=True)
class Span:
    """A figure and the ends between which it lies."""

    low: float
    mid: float
    high: float

    @classmethod
    def of(cls, value: float) -> Span:
        return cls(value, value, value)

    @classmethod
    def read(cls, result: Mapping[str, Any], key: str) -> Span:
        """The figure ``key`` of a prediction's result; without an interval its ends are itself."""
        value = float(result[key])
        return cls(float(result.get(f"{key}_lo", value)), value, float(result.get(f"{key}_hi", value)))

    @classmethod
    def sum(cls, spans: Iterable[Span]) -> Span:
        known = list(spans)
        return cls(sum(s.low for s in known), sum(s.mid for s in known), sum(s.high for s in known))

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.mid * factor, self.high * factor)

    def over(self, other: Span) -> Span:
        """The ratio: its low end is that of the low end of this over the high end of ``other``."""
        return Span(self.low / other.high, self.mid / other.mid, self.high / other.low)


def span_figures(key: str, span: Span | None) -> dict[str, float | None]:
    """A figure as JSON has it: under ``key``, ``KEY_lo`` and ``KEY_hi``; None each where it is not known."""
    low, mid, high = (span.low, span.mid, span.high) if span else (None, None, None)
    return {key: mid, f"{key}_lo": low, f"{key}_hi": high}


@dataclass(frozen=True, slots=True)
class Price:
    """USD for one (logical) GPU and hour, on demand."""

    usd_per_h: Span
    origin: str  #: month in which prices were collected, or ``--price``


def price_of(profile: GpuProfile, given: Mapping[str, float] | None = None) -> Price | None:
    """The price of one (logical) GPU: what ``given`` says of it or of its package, else the profile's; None: unknown.

    ``given``: profile id to USD per hour. A partition costs its share of the package, which is rented whole.
    """
    given = given or {}
    if profile.id in given:
        return Price(Span.of(given[profile.id]), "--price")
    if profile.whole in given:
        return Price(Span.of(given[profile.whole] / profile.parts), "--price")
    if profile.price is None:
        return None
    price = profile.price
    low, high = (price.low or price.typical).base, (price.high or price.typical).base
    return Price(Span(low, price.typical.base, high), price.date)


def parse_prices(words: Iterable[str], profiles: Sequence[GpuProfile]) -> dict[str, float]:
    """USD per hour by profile id, from ``mi355x=2.5``.

    Raises InputError for what is no price, and for a GPU that is not among ``profiles``.
    """
    known = {profile.id for profile in profiles} | {profile.whole for profile in profiles}
    prices: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            usd_per_h = float(text)
        except ValueError:
            usd_per_h = nan
        if not (equals and isfinite(usd_per_h) and usd_per_h >= 0):
            hint = "USD per GPU and hour, such as --price mi355x=2.5"
            raise InputError(f"--price {word!r} is not GPU=USD", hint=hint)
        gpu = load_profile(name).id
        if gpu not in known:
            cause = f"--price {word!r}: {gpu} is not among the GPUs that are asked for"
            raise InputError(cause, hint=f"add --gpu {gpu}")
        if gpu in prices:
            raise InputError(f"--price of {gpu} is given twice", hint="give each GPU one price")
        prices[gpu] = usd_per_h
    return prices


def power_w(profile: GpuProfile) -> float | None:
    """Board power of one (logical) GPU; None where it is not known."""
    return profile.tdp.base if profile.tdp else None

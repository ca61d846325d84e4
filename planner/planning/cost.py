"""Cost of hardware: dollars and watts of GPUs, and of the tokens that they put out.

::

    USD per 1M output tokens = USD/h / 3600 / (output tokens/s) x 1e6
    output tokens per USD    = output tokens/s x 3600 / (USD/h)
    output tokens per joule  = output tokens/s / W

Prices and throughput are spans. The low end of a cost is that of the cheapest offer at the fastest end of the
prediction, the high end that of the dearest offer at the slowest end. Watts are those of the boards (TDP), without the
servers around them.

>>> usd_per_million_tok(Span.of(2.0), Span(500, 1000, 2000)).mid  # 2 / 3600 / 1000 x 1e6
0.5555555555555556
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from planner.errors import InputError
from planner.hardware import GpuProfile, load_profile

HOUR_S, DAY_S = 3600, 86_400
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Span:
    """A figure and the ends between which it lies."""

    low: float
    mid: float
    high: float

    @classmethod
    def of(cls, value: float) -> Span:
        return cls(value, value, value)

    def times(self, factor: float) -> Span:
        """Each of the three, ``factor`` times."""
        return Span(self.low * factor, self.mid * factor, self.high * factor)


def span_figures(key: str, span: Span | None) -> dict[str, float | None]:
    """A figure as JSON has it: under ``key``, ``KEY_lo`` and ``KEY_hi``; None each where it is not known."""
    low, mid, high = (span.low, span.mid, span.high) if span else (None, None, None)
    return {key: mid, f"{key}_lo": low, f"{key}_hi": high}


@dataclass(frozen=True, slots=True)
class Price:
    """USD for one (logical) GPU and hour, on demand."""

    usd_per_h: Span
    origin: str  #: month in which prices were collected, or ``--price``

    @property
    def is_zero(self) -> bool:
        """True if the user gave a price of zero, to which no ratio has a value."""
        return self.usd_per_h.mid == 0


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
    typical = price.typical.base
    low, high = (price.low or price.typical).base, (price.high or price.typical).base
    return Price(Span(low, typical, high), price.date)


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
            usd_per_h = float("nan")
        if not (equals and isfinite(usd_per_h) and usd_per_h >= 0):
            raise InputError(
                f"--price {word!r} is not GPU=USD", hint="USD per GPU and hour, such as --price mi355x=2.5"
            )
        gpu = load_profile(name).id
        if gpu not in known:
            raise InputError(
                f"--price {word!r}: {gpu} is not among the GPUs that are asked for", hint=f"add --gpu {gpu}"
            )
        if gpu in prices:
            raise InputError(f"--price of {gpu} is given twice", hint="give each GPU one price")
        prices[gpu] = usd_per_h
    return prices


def power_w(profile: GpuProfile) -> float | None:
    """Board power of one (logical) GPU; None where it is not known."""
    return profile.tdp.base if profile.tdp else None


def usd_per_million_tok(usd_per_h: Span, tok_per_s: Span) -> Span:
    """USD per 1M tokens, of hardware for ``usd_per_h`` that puts out ``tok_per_s``."""

    def cost(usd: float, rate: float) -> float:
        return usd / HOUR_S / rate * MILLION

    return Span(
        cost(usd_per_h.low, tok_per_s.high), cost(usd_per_h.mid, tok_per_s.mid), cost(usd_per_h.high, tok_per_s.low)
    )


def tok_per_usd(usd_per_h: Span, tok_per_s: Span) -> Span | None:
    """Tokens for one USD; None where it costs nothing."""
    if usd_per_h.low == 0:
        return None
    return Span(
        tok_per_s.low * HOUR_S / usd_per_h.high,
        tok_per_s.mid * HOUR_S / usd_per_h.mid,
        tok_per_s.high * HOUR_S / usd_per_h.low,
    )


def tok_per_joule(watts: float, tok_per_s: Span) -> Span:
    """Tokens for one joule at board power."""
    return tok_per_s.times(1 / watts)

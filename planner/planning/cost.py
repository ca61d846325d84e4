"""Cost of hardware: dollars and watts of GPUs, and of the tokens that they put out.

::

    USD per 1M output tokens = USD/h / 3600 / (output tokens/s) x 1e6
    output tokens per USD    = output tokens/s x 3600 / (USD/h)
    output tokens per joule  = output tokens/s / W

The low end of a cost is that of the cheapest offer at the fastest end of the prediction. Watts are those of the boards.

>>> Interval.exact(2.0).scaled(1e6 / 3600).over(Interval(1000, 500, 2000)).high  # USD per 1M: 2 / 3600 / 500 x 1e6
1.1111111111111112
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, nan
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.hardware import GpuProfile, load_profile
from planner.units import HOUR_S, Interval

MILLION_PER_S = 1e6 / HOUR_S  #: USD for 1M tokens, at 1 USD per hour and 1 token per second


def interval_of(result: Mapping[str, Any], key: str) -> Interval:
    """The figure ``key`` of a prediction's result; without an interval its ends are itself."""
    value = float(result[key])
    return Interval(value, float(result.get(f"{key}_lo", value)), float(result.get(f"{key}_hi", value)))


def interval_figures(key: str, interval: Interval | None) -> dict[str, float | None]:
    """A figure as JSON has it: under ``key``, ``KEY_lo`` and ``KEY_hi``; None each where it is not known."""
    mid, low, high = (interval.mid, interval.low, interval.high) if interval else (None, None, None)
    return {key: mid, f"{key}_lo": low, f"{key}_hi": high}


@dataclass(frozen=True, slots=True)
class Price:
    """USD for one (logical) GPU and hour, on demand."""

    usd_per_h: Interval
    origin: str  #: month in which prices were collected, or ``--price``


def price_of(profile: GpuProfile, given: Mapping[str, float] | None = None) -> Price | None:
    """The price of one (logical) GPU: what ``given`` says of it or of its package, else the profile's; None: unknown.

    ``given``: profile id to USD per hour. A partition costs its share of the package, which is rented whole."""
    given = given or {}
    if profile.id in given:
        return Price(Interval.exact(given[profile.id]), "--price")
    if profile.whole in given:
        return Price(Interval.exact(given[profile.whole] / profile.parts), "--price")
    if profile.price is None:
        return None
    price = profile.price
    low, high = (price.low or price.typical).base, (price.high or price.typical).base
    return Price(Interval(price.typical.base, low, high), price.date)


@dataclass(frozen=True, slots=True)
class Rented:
    """GPUs of one type that are paid for, with their cost and power."""

    profile: GpuProfile
    price: Price | None
    num_gpus: int  #: logical ones

    @property
    def gpus(self) -> int:
        return self.num_gpus // self.profile.parts

    @property
    def nodes(self) -> int:
        return ceil(self.gpus / max(self.profile.gpus_per_node // self.profile.parts, 1))

    @property
    def usd_per_h(self) -> Interval | None:
        return self.price.usd_per_h.scaled(self.num_gpus) if self.price else None

    @property
    def power_w(self) -> float | None:
        watts = power_w(self.profile)
        return watts * self.num_gpus if watts else None


def parse_prices(words: Iterable[str], profiles: Sequence[GpuProfile]) -> dict[str, float]:
    """USD per hour by profile id, from ``mi355x=2.5``.

    Raises InputError for what is no price, and for a GPU that is not among ``profiles``."""
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


class Paid(NamedTuple):
    """USD of the whole GPUs under an engine, None without a price."""

    packages: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None  #: with the rest of the last GPU as busy

    @classmethod
    def of(
        cls, profile: GpuProfile, num_gpus: int, output_tok_per_s: float, given: Mapping[str, float] | None = None,
        *, whole: bool = False,
    ) -> "Paid":  # fmt: skip
        """Return the cost of ``num_gpus`` (logical) ones, which put out that many tokens/s; rounded up if ``whole``."""
        packages, price = num_gpus / profile.parts, price_of(profile, given)
        paid_for = ceil(packages) if whole else packages
        if price is None:
            return cls(paid_for, None, None)
        per_hour = price.usd_per_h.mid * profile.parts * ceil(packages)
        return cls(paid_for, per_hour, per_hour * paid_for / ceil(packages) * MILLION_PER_S / output_tok_per_s)


def power_w(profile: GpuProfile) -> float | None:
    """Board power of one (logical) GPU; None where it is not known."""
    return profile.tdp.base if profile.tdp else None

"""Units, the conversions at the edge, and intervals. Inside, every quantity is in bytes, seconds, FLOP and tokens;
names carry the unit. GB is 10^9 bytes, GiB is 2^30 bytes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite, log10

KIB = 2**10
MIB = 2**20
GIB = 2**30
KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
US = 1e-6
MS = 1e-3
HOUR_S, DAY_S = 3600, 86_400
GFLOP = 1e9
TFLOP = 1e12
#: Bounds of every latency, rate and count, in any unit: other values are mistakes, and products of figures within
#: them stay far within the range of a float.
LEAST_FIGURE, MOST_FIGURE = 1e-6, 1e15
MOST_DIGITS = 18  #: digits of a count; ``int`` refuses some thousands
#: Factor from a unit, as written in a profile, to the unit used inside.
FACTORS: dict[str, float] = {
    "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "B/s": 1, "GB/s": GB,
    "TB/s": TB, "FLOP/s": 1, "TFLOP/s": TFLOP, "TOP/s": TFLOP, "us": US, "ms": MS, "s": 1, "W": 1, "MHz": 1e6,
    "USD/h": 1, "1": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A best estimate between a low and a high one."""

    mid: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Interval":
        return cls(value, value, value)

    @classmethod
    def sum(cls, parts: "Iterable[Interval]") -> "Interval":
        """Sum of parts that err together."""
        parts = tuple(parts)
        return cls(sum(part.mid for part in parts), sum(part.low for part in parts), sum(part.high for part in parts))

    def scaled(self, factor: float) -> "Interval":
        return Interval(self.mid * factor, self.low * factor, self.high * factor)

    def over(self, other: "Interval") -> "Interval":
        """The ratio: its low end is that of the low end of this over the high end of ``other``."""
        return Interval(self.mid / other.mid, self.low / other.high, self.high / other.low)

    def larger(self, other: "Interval") -> "Interval":
        return Interval(max(self.mid, other.mid), max(self.low, other.low), max(self.high, other.high))

    def smaller(self, other: "Interval") -> "Interval":
        return Interval(min(self.mid, other.mid), min(self.low, other.low), min(self.high, other.high))

    def plus(self, other: "Interval") -> "Interval":
        return Interval(self.mid + other.mid, self.low + other.low, self.high + other.high)

    def minus(self, other: "Interval") -> "Interval":
        return Interval(self.mid - other.mid, self.low - other.high, self.high - other.low)


def whole_number(text: str) -> int | None:
    """The number that digits spell; None for other text, and for more than ``MOST_DIGITS`` digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def to_base(value: float, unit: str) -> float:
    """Convert ``value`` in ``unit`` to the unit used inside. Raises KeyError for a unit, TypeError for no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):  # a text times a GB would be a long one
        raise TypeError(f"{value!r} is not a number")
    return value * FACTORS[unit]


def in_range(least: float | None = None, most: float | None = None) -> str:
    """Bounds in words, such as ``from 1 to 1,024``; empty without any."""
    if least is None or most is None:
        return f"at least {least:,.10g}" if least is not None else f"at most {most:,.10g}" if most is not None else ""
    return f"from {least:,.10g} to {most:,.10g}"


def meant(flag: str, value: object, most: float | None = None, unit: str = "") -> str:
    """The option as it was probably meant: percent where a share is taken, or seconds where ms are; else nothing."""
    given = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%|ms|s|)", str(value))
    number = float(given[1]) if given else 0.0
    if given and unit == "ms" and given[2] in ("s", "ms"):
        return f"{number:g} {given[2]} is {flag} {number * (1000 if given[2] == 's' else 1):g}"
    if most is not None and most <= 10 and ((given and given[2] == "%") or max(2 * most, 5) <= number <= 100):
        return f"{number:g} % is {flag} {number / 100:g}"
    return ""


def figure(value: float, digits: int = 0) -> str:
    """Format a number without exponent, by default with two digits below 100 and three above: ``5.4``, ``1,040``."""
    if not isfinite(value):
        return f"{value:g}"
    digits = digits or (2 if abs(value) < 100 else 3)
    decimals = digits - 1 - (floor(log10(abs(value))) if value else 0)
    rounded = round(value, decimals)
    if rounded and floor(log10(abs(rounded))) > digits - 1 - decimals:  # 9.96 has become 10.0
        decimals -= 1
    return f"{rounded:,.{max(decimals, 0)}f}"


def format_bytes(num_bytes: float) -> str:
    """Bytes for people, in GiB: ``24.24 GiB``. The sign is kept."""
    return f"{num_bytes / GIB:,.2f} GiB"


def format_gb(num_bytes: float) -> str:
    """Bytes for people, in decimal GB: ``26.03 GB``."""
    return f"{num_bytes / GB:,.2f} GB"


def counted(number: float, noun: str = "GPU") -> str:
    """A number with its noun: ``1 GPU``, ``8 GPUs``."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def rounded(count: float) -> str:
    """Format a count with three digits from 100,000 on: ``662,000``, ``5.15 million``, ``12.7 billion``."""
    large, word = (count / 1e9, "billion") if count >= 999.5e6 else (count / 1e6, "million")
    return f"{figure(large, 3)} {word}" if count >= 999_500 else figure(count, 3) if count >= 1e5 else f"{count:,.0f}"


def percent(probability: float) -> str:
    """A probability such as ``93%``, never 0 % or 100 %: ``under 1%``, ``over 99%``."""
    return "over 99%" if probability > 0.99 else "under 1%" if probability < 0.01 else f"{probability:.0%}"

"""Largest value that meets a condition, which holds up to some value and fails beyond: cheap trials, and replays."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import ceil, exp, inf, log, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs numpy, which ``fit`` is spared
    from planner.planning.predict import ServedLoad

ROUNDING = 1e-9
HALVED_EACH = 4  #: of the trials of ``bracket``, that is halved whatever the targets say
LEAST_STEP, MOST_STEP = 0.5, 1.5  #: of the value that is known, where only one side of the limit is


def largest(meets: Callable[[int], bool], least: int, most: int) -> int:
    """Largest whole number from ``least`` to ``most`` that meets a condition; ``least`` where none does."""
    return -smallest(lambda negative: meets(-negative), -most, -least)


def smallest(meets: Callable[[int], bool], least: int, most: int) -> int:
    """Smallest whole number from ``least`` to ``most`` that meets a condition; ``most`` where none does."""
    return least + bisect_left(range(least, most), True, key=meets)


def bracket(
    probe: Callable[[float], "ServedLoad"], guess: float | None, least: float, most: float, tolerance: float, *,
    whole: bool = False, known: "Iterable[ServedLoad]" = (),
) -> "tuple[ServedLoad | None, ServedLoad | None]":  # fmt: skip
    """Bracket the limit within ``tolerance``: the largest value that meets the condition, the smallest that does not.

    Either is None where no value from ``least`` to ``most`` is on that side. ``known`` were tried before; ``whole``:
    values are whole numbers. It goes on where a line through the logarithms of two trials reaches the limit; every few
    trials it halves, so that it ends whatever the line says."""
    trials = sorted(known, key=lambda one: one.value)
    value = None if guess is None else min(max(guess, least), most)
    for turn in count(1):
        met = next((one for one in reversed(trials) if one.meets), None)
        low = met.value if met else 0.0
        missed = next((one for one in trials if not one.meets and one.value > low), None)
        high = missed.value if missed else inf
        near = max(tolerance * low * (1 + ROUNDING), 1.0 if whole else 0.0)
        if low >= most or high <= least or high - low <= near:
            return met, missed
        if value is None:
            value = _next_value(trials, met, missed, 1 + tolerance, by_halves=not turn % HALVED_EACH)
        value = min(max(value, least), most)
        if whole:
            value = min(max(round(value), ceil(low) + 1), high - 1)
        trials = sorted((*trials, probe(value)), key=lambda one: one.value)
        value = None
    raise AssertionError("an endless loop has ended")


def _next_value(
    trials: "Sequence[ServedLoad]", met: "ServedLoad | None", missed: "ServedLoad | None", near: float, *,
    by_halves: bool,
) -> float:  # fmt: skip
    """Value to try: where the limit is expected, and a little beyond it where that closes the bracket.

    Never nearer to a known value than ``near`` times. Without a line: the geometric mean of the bounds, or by steps."""
    if met and missed:
        limit = None if by_halves or missed.value <= met.value * near**2 else crossing(met, missed)
        if limit is None:
            return sqrt(met.value * missed.value)
        return min(max(limit, met.value * near), missed.value / near)
    one = met or missed
    assert one is not None
    exact = [other for other in trials if other.whole and 0 < other.excess < inf]
    others = exact[-2:] if met else exact[:2]
    limit = crossing(*others) if len(others) == 2 else None
    if limit is None or (limit > one.value) != bool(met):
        limit = one.value / min(max(one.excess, 0.5), 2.0)
    if met:
        return min(max(limit * sqrt(near), met.value * near), met.value * MOST_STEP)
    return min(max(limit / sqrt(near), one.value * LEAST_STEP), one.value / near)


def crossing(one: "ServedLoad", other: "ServedLoad") -> float | None:
    """Value where a line through the logarithms of two trials reaches the limit; None where it does not rise."""
    if not (one.whole and other.whole and 0 < one.excess < inf and 0 < other.excess < inf):
        return None
    run, rise = log(other.value / one.value), log(other.excess / one.excess)
    return one.value * exp(min(max(-log(one.excess) * run / rise, -1.0), 1.0)) if run * rise > 0 else None

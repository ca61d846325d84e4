"""Intervals of settings that a user's own runs cover, from errors of runs that were left out.

With n errors of a setting, each of a fit that did not see the run, 90 % of further ones lie within

    mean +- t(n - 1) x deviation x sqrt(1 + 1 / n)                  Student, of the logarithm of measured / predicted

provided that they come from the same normal distribution, which so few runs cannot show. So the interval is never
narrower than what we ship for settings that were measured under another load; with fewer than three errors it stays as
wide as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log, sqrt
from statistics import mean, stdev

from planner.efficiency import Calibration, Combination, Spread

#: Fewer errors say nothing of a width.
LEAST_RUNS = 3
#: 95th percentile of Student's t for 2, 3, ... 10 degrees of freedom; the last one stands for more.
T_95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
#: Keys of the circumstances that make a setting, beside the partition, which has no measured combination.
KEYS = tuple(Combination.model_fields)

#: (circumstances, metric, measured / predicted) of a run that the fit did not see.
Miss = tuple[Mapping[str, str], str, float]


def local_spreads(misses: Iterable[Miss], base: Calibration) -> tuple[tuple[Spread, ...], tuple[Combination, ...]]:
    """Intervals of every setting with enough runs, and these settings."""
    by_setting: dict[Combination, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    held: dict[Combination, Mapping[str, str]] = {}
    for circumstances, metric, ratio in misses:
        setting = Combination(**{key: circumstances[key] for key in KEYS})
        held[setting] = circumstances
        by_setting[setting][metric].append(ratio)
    covered = [s for s, found in by_setting.items() if max(map(len, found.values())) >= LEAST_RUNS]
    spreads = [spread for s in covered for spread in _spreads(s, held[s], by_setting[s], base)]
    return tuple(spreads), tuple(covered)


def _spreads(
    setting: Combination, circumstances: Mapping[str, str], ratios: Mapping[str, Sequence[float]], base: Calibration
) -> Iterator[Spread]:
    """For every metric: a metric that too few runs have keeps the width that it had."""
    known = base.model_copy(update={"combinations": (setting,)})
    for metric in dict.fromkeys(spread.metric for spread in base.spreads):
        now, floor = base.interval(metric, circumstances), known.interval(metric, circumstances)
        found = ratios.get(metric, ())
        if now is None or floor is None:
            continue
        lo, hi = now
        if len(found) >= LEAST_RUNS:
            low, high = _student([log(ratio) for ratio in found])
            lo, hi = min(floor[0], low), max(floor[1], high)
        when = {**setting.model_dump(), "partition": circumstances.get("partition", "")}
        yield Spread(metric=metric, familiarity="setting", when=when, lo=round(lo, 3), hi=round(hi, 3), rows=len(found))


def _student(logs: Sequence[float]) -> tuple[float, float]:
    n = len(logs)
    t = T_95[min(n - 2, len(T_95)) - 1]
    half = t * stdev(logs) * sqrt(1 + 1 / n)
    return exp(mean(logs) - half), exp(mean(logs) + half)

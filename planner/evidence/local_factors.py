"""The factors that a user's own runs put on the shipped efficiencies, and their fit.

::

    this machine   GPU time (power cap, cooling, neighbours), launches, host, client and front end, links
    this setting   GPU time of this model at this precision and TP on the machine, and prefill beside decode

All factors are drawn towards 1, more strongly the better the machine is known. The interval of TPOT says how far off a
setting may be. GPUs of one kind differ by a few per cent, hosts and front ends by more. A kind of machine that nobody
measured, and every CPU, may be off by any factor.

One run with TTFT, TPOT and throughput determines how slow its setting is, and the sum of prefill and front end. Another
concurrency separates launches from traffic, another prompt length the front end from prefill, another model the machine
from the setting. A factor that the runs leave open keeps its prior standard deviation, and is called undetermined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from planner.evidence.effects import Design, StructureLine
from planner.evidence.fitting import EfficiencyFit, FitProblem
from planner.evidence.observe import Observed
from planner.evidence.terms import Terms
from planner.hardware import constant
from planner.timing import PARAMETERS, Calibration, Combination, Effect, Spread, prior_values

#: Target to its name for people.
MEANINGS = {
    "slowdown": "time of the GPU",
    "_flop": "FLOP/s reached",
    "launch": "launch of a kernel",
    "host": "host, each step",
    "request_s": "client, each request",
    "frontend_s": "front end, each request of a burst",
    "collective_s": "latency of a collective",
    "link_share": "bandwidth of the links",
}
MACHINE = ("gpu", "partition")
SETTING = (*MACHINE, "shape", "weights", "tp")
#: Standard deviations between the 5th and the 95th percentile of a normal distribution.
DEVIATIONS_OF_90 = 3.29
#: The runs determine a factor when they narrow its standard deviation to this share of the prior, or less.
DETERMINED = 0.9
#: A factor that keeps this share of its deviation is one on which no run depends, such as collectives with TP 1.
UNTOUCHED = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor on a shipped efficiency; ``sd`` is the standard deviation of its logarithm."""

    target: str
    when: Mapping[str, str]
    factor: float
    sd: float
    prior_sd: float  #: the same before any run
    runs: int
    before: float = 1.0  #: in the file that existed

    @property
    def determined(self) -> bool:
        """Whether the runs determine it."""
        return self.sd <= DETERMINED * self.prior_sd


def problem_of(observed: Sequence[Observed], base: Calibration) -> FitProblem:
    """The fit of local factors on top of ``base``."""
    values = [base.unbounded(one.covariates, _priors(one)) for one in observed]
    start = np.log([[one[name] for name in PARAMETERS] for one in values])
    return FitProblem(Terms(observed), Design(observed, structure(observed, base), start=start))


def _priors(one: Observed) -> dict[str, float]:
    return prior_values(one.profile, one.config.tensor_parallel_size)


def structure(observed: Sequence[Observed], base: Calibration) -> tuple[StructureLine, ...]:
    """Which factor may differ, between what, and by how much (standard deviation of the logarithm)."""
    believed = [_speed_sd(one, base) for one in observed]
    machine_sd, setting_sd = (max(sds) for sds in zip(*believed, strict=True))
    any_cpu = any(one.profile.platform == "cpu" for one in observed)
    lines: list[StructureLine] = [
        ("slowdown", MACHINE, machine_sd),
        ("slowdown", SETTING, setting_sd),
        ("_flop", SETTING, _sd("cpu_prefill" if any_cpu else "prefill")),
        ("launch", (*MACHINE, "generation"), _sd("launch")),
        ("host", MACHINE, _sd("host")),
        ("request_s", MACHINE, _sd("client")),
        ("frontend_s", MACHINE, _sd("client")),
    ]
    if any(one.config.tensor_parallel_size > 1 for one in observed):
        lines += [("collective_s", (*MACHINE, "tp"), _sd("collective")), ("link_share", (*MACHINE, "tp"), _sd("link"))]
    return tuple(lines)


def _sd(name: str) -> float:
    return constant(f"local_sd.{name}")


def _speed_sd(one: Observed, base: Calibration) -> tuple[float, float]:
    """How far off the GPU time of the machine, and of the setting on it, may be."""
    same_gpu = _sd("same_gpu")
    if one.profile.platform == "cpu":
        return _sd("cpu"), _sd("setting_of_new_gpu")
    bounds = base.interval("mean_tpot_ms", one.covariates)
    total = log(bounds[1] / bounds[0]) / DEVIATIONS_OF_90 if bounds else _sd("unknown")
    if base.proximity(one.covariates) in ("architecture", "nothing"):
        return max(total, same_gpu), _sd("setting_of_new_gpu")
    return same_gpu, sqrt(max(total**2 - same_gpu**2, same_gpu**2))


def solve(problem: FitProblem, used_runs: NDArray[np.bool_]) -> EfficiencyFit:
    """The factors by the runs that ``used_runs`` marks."""
    return problem.solve(used_runs[problem.terms.metric_run])


def factors_of(fitted: EfficiencyFit, before: Sequence[Effect]) -> Iterator[Factor]:
    """Every factor on which a run depends. ``before``: those of the file that existed."""
    known = {(effect.target, tuple(sorted(effect.when.items()))): effect.factor for effect in before}
    for column, log_factor, sd in zip(fitted.design.columns, fitted.factors.tolist(), fitted.sd.tolist(), strict=True):
        if sd >= column.variance**0.5 * UNTOUCHED:
            continue
        for part, part_log in column.split(log_factor):
            share = part.sd**2 / column.variance
            part_sd = sqrt(max(part.sd**2 * (1 - share), 0.0) + (sd * share) ** 2)  # what its column leaves open
            old = known.get((part.target, tuple(sorted(part.when.items()))), 1.0)
            yield Factor(part.target, part.when, exp(part_log), part_sd, part.sd, int(column.runs.sum()), old)


# --- Intervals of settings that a user's own runs cover, from the errors of runs that were left out
#
# With n errors of a setting, each of a fit that did not see the run, 90 % of further errors lie within
#
#     mean +- t(n - 1) x deviation x sqrt(1 + 1 / n)                  Student, of the logarithm of measured / predicted
#
# if all come from one normal distribution, which so few runs cannot show. So the interval is never narrower than the
# shipped one for settings that were measured under another load, and with fewer than three errors it keeps its width.

#: With fewer errors an interval keeps its width.
LEAST_RUNS = 3
#: 95th percentile of Student's t for 2, 3, ... 10 degrees of freedom; the last one is for more.
T_95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
#: Covariates that make a setting, besides the partition, which has no measured combination.
KEYS = tuple(Combination.model_fields)

#: (covariates, metric, measured / predicted) of a run that the fit did not see.
Miss = tuple[Mapping[str, str], str, float]


def local_spreads(misses: Iterable[Miss], base: Calibration) -> tuple[tuple[Spread, ...], tuple[Combination, ...]]:
    """Intervals of each setting with enough runs, and these settings."""
    by_setting: dict[Combination, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    held: dict[Combination, Mapping[str, str]] = {}
    for covariates, metric, ratio in misses:
        setting = Combination(**{key: covariates[key] for key in KEYS})
        held[setting] = covariates
        by_setting[setting][metric].append(ratio)
    covered = [s for s, found in by_setting.items() if max(map(len, found.values())) >= LEAST_RUNS]
    spreads = [spread for s in covered for spread in _spreads(s, held[s], by_setting[s], base)]
    return tuple(spreads), tuple(covered)


def _spreads(
    setting: Combination, covariates: Mapping[str, str], ratios: Mapping[str, Sequence[float]], base: Calibration
) -> Iterator[Spread]:
    """The interval of each metric. One with too few errors keeps its width."""
    known = base.model_copy(update={"combinations": (setting,)})
    for metric in dict.fromkeys(spread.metric for spread in base.spreads):
        now, floor = base.interval(metric, covariates), known.interval(metric, covariates)
        found = ratios.get(metric, ())
        if now is None or floor is None:
            continue
        lo, hi = now
        if len(found) >= LEAST_RUNS:
            low, high = _student([log(ratio) for ratio in found])
            lo, hi = min(floor[0], low), max(floor[1], high)
        when = {**setting.model_dump(), "partition": covariates.get("partition", "")}
        yield Spread(
            metric=metric, proximity="setting", when=when, lo=max(round(lo, 3), 0.001), hi=round(hi, 3), rows=len(found)
        )


def _student(logs: Sequence[float]) -> tuple[float, float]:
    n = len(logs)
    t = T_95[min(n - 2, len(T_95)) - 1]
    half = t * stdev(logs) * sqrt(1 + 1 / n)
    return exp(mean(logs) - half), exp(mean(logs) + half)

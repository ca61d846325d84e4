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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray

from planner.evidence.effects import Design, StructureLine, load_structure
from planner.evidence.fitting import EfficiencyFit, FitProblem
from planner.evidence.observe import Observed
from planner.evidence.terms import Terms
from planner.timing import PARAMETERS, Calibration, Effect, prior_values

#: Target to its name for people.
MEANINGS = {
    "slowdown": "time of the GPU",
    "prefill": "prefill beside decode",
    "launch": "launch of a kernel",
    "host": "host, each step",
    "request_s": "client, each request",
    "frontend_s": "front end, each request of a burst",
    "collective_s": "latency of a collective",
    "link_share": "bandwidth of the links",
}
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
    return FitProblem(Terms(observed), Design(observed, structure(observed), start=start))


def _priors(one: Observed) -> dict[str, float]:
    return prior_values(one.profile, one.config.tensor_parallel_size)


def structure(observed: Sequence[Observed]) -> tuple[StructureLine, ...]:
    """Which factor may differ, between what, and by how much (standard deviation of the logarithm)."""
    several = any(one.config.tensor_parallel_size > 1 for one in observed)
    links = ("collective_s", "link_share")
    return tuple(
        (line.target, line.scope, line.sd)
        for line in load_structure().machine
        if any(line.key(one.covariates) for one in observed) and (several or line.target not in links)
    )


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

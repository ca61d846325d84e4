"""How far off predictions are for runs that the fit did not see: each run replayed with the fits that are left.

``calibration.leaveout`` finds those fits, and estimates their errors over the steps that the fit to everything took.
Here the queue follows the steps: a slower one fills it, and a load of so many requests per second stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from math import log

import numpy as np

from planner.calibration import LeaveOut, Observed
from planner.calibration.observed import Floats
from planner.efficiency import Calibration
from planner.evaluate import Case, case_of, predict, resent
from planner.measurements import Run

#: What stands for a metric in the runs that do not have it: ``observations`` takes the one for the other.
STANDS_IN = {"output_throughput": "total_token_throughput", "avg_latency_s": "output_throughput"}


def replayed_errors(without: LeaveOut, runs: Iterable[Run], left_out: Callable[[Observed], Hashable]) -> Floats:
    """log(predicted / measured) of every metric, each by a fit that saw no run of the same ``left_out`` group.

    Throughputs count as durations. ``runs`` are those that were observed, and maybe others.
    """
    runs, terms = list(runs), without.problem.terms
    seen, by_id = resent(runs), {run.run_id: run for run in runs}
    found = np.full(terms.num_metrics, np.nan)
    for numbers, fitted in without.fits([left_out(one) for one in terms.observed]):
        calibration = Calibration(name="held out", fitted_on="the other runs", effects=fitted.effects())
        for number in numbers:
            run = by_id[terms.observed[number].run_id]
            case = case_of(run, resent=run.run_id in seen)
            predicted = predict(_with(case, calibration))
            for metric in np.flatnonzero(terms.metric_run == number):
                found[metric] = _log_error(run, terms.metric_names[metric], predicted)
    return found


def _with(case: Case, calibration: Calibration) -> Case:
    return replace(case, deployment=replace(case.deployment, calibration=calibration))


def _log_error(run: Run, metric: str, predicted: dict[str, float]) -> float:
    name = metric if metric in run.metrics else STANDS_IN[metric]
    error = log(predicted[name] / run.metrics[name])
    return -error if name.endswith("throughput") else error

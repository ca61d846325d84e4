"""The metrics of many runs at once, as functions of the efficiencies of each run, with their derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from planner.evidence.observe import Floats, Observed
from planner.timing import CLIENT_DELAYS, PARAMETERS, Batch, StepModel, StepTimes

Ints = NDArray[np.int64]


class Terms:
    """The metrics of ``observed``: weighted sums of step times, and delays outside the engine."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self.observed = observed
        self._steps = StepTimes(_steps(observed))
        every = [(run, metric) for run, one in enumerate(observed) for metric in one.metrics]
        self.num_metrics = len(every)
        self.metric_run: Ints = np.array([run for run, _ in every], dtype=np.int64)
        self.metric_names = [metric.name for _, metric in every]
        self.log_measured: Floats = np.log([metric.measured_s for _, metric in every])
        sums = [metric.steps for _, metric in every]
        self._delays = {name: np.array([steps.delays.get(name, 0.0) for steps in sums]) for name in CLIENT_DELAYS}
        self._fixed_s: Floats = np.array([steps.fixed_s for steps in sums])
        first = np.cumsum([0, *(len(one.batches) for one in observed)])
        rows = [np.flatnonzero(steps.weights) for steps in sums]
        weights = np.concatenate([steps.weights[found] for steps, found in zip(sums, rows, strict=True)])
        batches = np.concatenate([first[run] + found for (run, _), found in zip(every, rows, strict=True)])
        ends = np.cumsum([0, *map(len, rows)])
        self._weights = csr_matrix((weights, batches, ends), shape=(len(every), first[-1]))

    def log_metrics(self, log_values: Floats) -> tuple[Floats, Floats]:
        """Logarithm of every metric, and its derivative by the logarithm of every efficiency of its run.

        ``log_values`` has shape (runs, parameters); the results (metrics,) and (metrics, parameters).
        """
        batch_s, batch_d = self._steps.seconds(log_values)
        metric_s: Floats = self._weights @ batch_s + self._fixed_s
        derivative: Floats = self._weights @ batch_d
        for name, times in self._delays.items():
            parameter = PARAMETERS.index(name)
            delay_s = times * np.exp(log_values[self.metric_run, parameter])
            metric_s += delay_s
            derivative[:, parameter] += delay_s
        return np.log(metric_s), derivative / metric_s[:, None]


def _steps(observed: Sequence[Observed]) -> Iterator[tuple[StepModel, Batch, int]]:
    known: dict[tuple[int, str, object], StepModel] = {}
    for run, one in enumerate(observed):
        key = (id(one.model), one.profile.id, one.config)
        step = known.setdefault(key, StepModel(one.model, one.profile, one.config))
        yield from ((step, batch, run) for batch in one.batches)

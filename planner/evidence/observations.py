"""Measured runs as sums of step times: what a fit works on.

``observe`` replays each run into the batches of its steps, and each metric into a weighted sum of their times.
``Terms`` evaluates the metrics of many runs at once, as functions of the efficiencies, with their derivatives."""

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from planner.engine import EngineConfig
from planner.errors import PlannerError
from planner.evidence.evaluation import Case, case_of, resent
from planner.evidence.runs import MeasuredRun
from planner.hardware import GpuProfile
from planner.model import Model
from planner.simulator import Client, StepSum, Timeline, replay
from planner.timing import CLIENT_DELAYS, PARAMETERS, Batch, Calibration, StepModel, StepTimes
from planner.units import MS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ObservedMetric:
    """One metric of one run, with the sum of steps that predicts it. A throughput is observed as the run's time."""

    name: str  #: as in the table of runs: ``mean_tpot_ms``
    measured_s: float
    steps: StepSum


@dataclass(frozen=True, eq=False)
class Observed:
    """One run: the engine, representative batches of its steps, and what was measured."""

    run_id: str
    group: Hashable  #: runs of one group are left out together: GPU, model, TP, weight dtype, engine version
    model: Model
    profile: GpuProfile
    config: EngineConfig
    covariates: dict[str, str]
    batches: tuple[Batch, ...]
    metrics: tuple[ObservedMetric, ...]
    source: str = ""  #: who published it
    arrival: str = ""


STATISTICS = ("mean", "median", "p99")  #: statistics that runs were published with
NEGLIGIBLE = 1e-9  #: batches with a smaller share of the weight of all metrics are left out


def observe(
    runs: Iterable[MeasuredRun], calibration: Calibration | None = None, *, processes: int = 1,
    seen: Container[str] | None = None,
) -> tuple[list[Observed], list[tuple[MeasuredRun, str]]]:  # fmt: skip
    """Return the sound runs to fit to, replayed with ``calibration``, and those that cannot be with the reason.

    ``seen``: ids of runs whose prompts the server had answered before, by default those among ``runs``."""
    sound = [run for run in runs if not run.suspect]
    seen = resent(sound) if seen is None else seen
    tasks = [(run, calibration, run.run_id in seen) for run in sound]
    if processes == 1:
        results = [_observe_one(task) for task in tasks]
    else:
        with ProcessPoolExecutor(processes) as pool:
            results = list(pool.map(_observe_one, tasks, chunksize=50))
    pairs = list(zip(sound, results, strict=True))
    refused = [(run, one) for run, one in pairs if isinstance(one, str)]
    return [one for _, one in pairs if isinstance(one, Observed) and one.metrics], refused


def _observe_one(task: tuple[MeasuredRun, Calibration | None, bool]) -> Observed | str:
    run, calibration, is_resent = task
    if run.unread:
        return run.unread
    try:
        case = case_of(run, resent=is_resent)
        return observe_case(replace(case, deployment=replace(case.deployment, calibration=calibration)))
    except PlannerError as error:
        return error.cause


def observe_case(case: Case) -> Observed:
    """Replay one DP rank of a run, with every step. Raises InputError where the run cannot be replayed."""
    run, deployment, load = case.run, case.deployment, case.workload
    dp_ranks = deployment.config.data_parallel_size
    if dp_ranks > 1:
        load = replace(
            load,
            num_prompts=max(1, round(load.num_prompts / dp_ranks)),
            max_concurrency=load.max_concurrency and max(1, round(load.max_concurrency / dp_ranks)),
            request_rate=load.request_rate / dp_ranks,
        )
    client = deployment.client if run.bench == "serve" else Client()
    limits = deployment.with_prefixes(deployment.limits(load.max_total_len, load.common_len), load)
    limits = replace(limits, data_parallel_size=1)
    timeline = Timeline(replay(deployment.timer, load, limits, client, keep_steps=True))
    metrics = list(_metrics(run, timeline, dp_ranks, client))
    used = sum((one.steps.weights / one.steps.weights.sum() for one in metrics), np.zeros(len(timeline.batches)))
    keep = np.flatnonzero(used > NEGLIGIBLE)
    return Observed(
        run_id=run.run_id, group=run.group, model=deployment.model, profile=deployment.profile,
        config=deployment.config, covariates=deployment.covariates, source=run.family, arrival=run.arrival,
        batches=tuple(timeline.batches[i] for i in keep),
        metrics=tuple(replace(one, steps=replace(one.steps, weights=one.steps.weights[keep])) for one in metrics),
    )  # fmt: skip


def _metrics(run: MeasuredRun, timeline: Timeline, dp_ranks: int, client: Client) -> Iterator[ObservedMetric]:
    served = timeline.served
    output_tok, all_tok = served.output_len.sum(), (served.input_len + served.output_len).sum()
    if run.bench == "latency":
        latency_s = run.metrics.get("avg_latency_s") or dp_ranks * output_tok / run.metrics["output_throughput"]
        yield ObservedMetric("avg_latency_s", float(latency_s), timeline.every_step())
        return
    tokens = {"output_throughput": output_tok, "total_token_throughput": all_tok}
    if name := next((name for name in tokens if name in run.metrics), None):
        duration_s = float(dp_ranks * tokens[name] / run.metrics[name])
        yield ObservedMetric("output_throughput", duration_s, timeline.duration(client))
    if run.bench == "serve":
        for metric in ("ttft", "e2el", "tpot"):
            measured = {name: run.metrics[key] for name in STATISTICS if (key := f"{name}_{metric}_ms") in run.metrics}
            for statistic, steps in timeline.latency(metric, tuple(measured)).items():
                yield ObservedMetric(f"{statistic}_{metric}_ms", measured[statistic] * MS, steps)


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
        weights = np.concatenate([steps.weights[at] for steps, at in zip(sums, rows, strict=True)])
        batches = np.concatenate([first[run] + at for (run, _), at in zip(every, rows, strict=True)])
        ends = np.cumsum([0, *map(len, rows)])
        self._weights = csr_matrix((weights, batches, ends), shape=(len(every), first[-1]))

    def log_metrics(self, log_values: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of every metric and derivatives, (metrics, parameters); takes (runs, parameters)."""
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

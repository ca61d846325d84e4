"""What a fit works on: a run as the batches of its steps, and each of its metrics as a weighted sum of their times."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.engine import EngineConfig
from planner.errors import PlannerError
from planner.evidence.evaluation import Case, case_of, resent
from planner.evidence.runs import MeasuredRun
from planner.hardware import GpuProfile
from planner.model import Model
from planner.planning import Deployment
from planner.simulator import Client, Replay, StepSum, Timeline, replay
from planner.timing import Batch, Calibration
from planner.units import MS
from planner.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ObservedMetric:
    """One metric of one run, beside the sum of steps that predicts it.

    A throughput is observed as the time that the run took.
    """

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


#: Statistics that runs were published with.
STATISTICS = ("mean", "median", "p99")
#: Batches with a smaller share of the weight of all metrics are left out.
NEGLIGIBLE = 1e-9


def observe(
    runs: Iterable[MeasuredRun], calibration: Calibration | None = None, *, processes: int = 1
) -> tuple[list[Observed], list[tuple[MeasuredRun, str]]]:
    """The runs to fit to, and those that cannot be replayed with the reason. Suspect runs are left out.

    ``calibration``: the fits to replay with, by default ours.
    """
    sound = [run for run in runs if not run.suspect]
    seen = resent(sound)
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
    """One run, or why it cannot be replayed."""
    run, calibration, is_resent = task
    if run.unread:
        return run.unread
    try:
        return observe_case(case_of(run, resent=is_resent).with_fits(calibration))
    except PlannerError as error:
        return error.cause


def observe_case(case: Case) -> Observed:
    """One run. Raises InputError where the run cannot be replayed."""
    deployment, workload, dp_ranks = _one_dp_rank(case)
    client = deployment.client if case.run.bench == "serve" else Client()
    timeline = Timeline(_replayed(deployment, workload, client))
    metrics = list(_metrics(case.run, timeline, dp_ranks, client))
    used = sum(
        (metric.steps.weights / metric.steps.weights.sum() for metric in metrics), np.zeros(len(timeline.batches))
    )
    keep = np.flatnonzero(used > NEGLIGIBLE)
    return Observed(
        run_id=case.run.run_id,
        group=case.run.group,
        model=deployment.model,
        profile=deployment.profile,
        config=deployment.config,
        covariates=deployment.covariates,
        batches=tuple(timeline.batches[i] for i in keep),
        metrics=tuple(
            replace(metric, steps=replace(metric.steps, weights=metric.steps.weights[keep])) for metric in metrics
        ),
        source=case.run.family,
        arrival=case.run.arrival,
    )


def _one_dp_rank(case: Case) -> tuple[Deployment, Workload, int]:
    """One DP rank, its share of the load, and how many DP ranks there are."""
    dp_ranks = case.deployment.config.data_parallel_size
    load = case.workload
    if dp_ranks == 1:
        return case.deployment, load, 1
    concurrency = load.max_concurrency and max(1, round(load.max_concurrency / dp_ranks))
    share = replace(
        load,
        num_prompts=max(1, round(load.num_prompts / dp_ranks)),
        max_concurrency=concurrency,
        request_rate=load.request_rate / dp_ranks,
    )
    return case.deployment, share, dp_ranks


def _replayed(deployment: Deployment, workload: Workload, client: Client) -> Replay:
    """A replay of one DP rank, with every step."""
    limits = deployment.with_prefixes(deployment.limits(workload.max_total_len), workload)
    limits = replace(limits, data_parallel_size=1)
    return replay(deployment.timer, workload, limits, client, keep_steps=True)


def _metrics(run: MeasuredRun, timeline: Timeline, dp_ranks: int, client: Client) -> Iterator[ObservedMetric]:
    """The metrics of a run as sums of steps."""
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

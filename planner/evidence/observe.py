"""What a fit works on: a run as the batches of its steps, and each of its metrics as a weighted sum of their times."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from planner.engine import EngineConfig
from planner.errors import PlannerError
from planner.evidence.evaluation import Case, case_of, resent
from planner.evidence.runs import MeasuredRun
from planner.hardware import GpuProfile
from planner.model import Model
from planner.planning import SHIPPED, Deployment, Local
from planner.simulator import Client, Replay, StepRun, replay
from planner.timing import Batch, Combination, covariates_of
from planner.units import MS
from planner.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ObservedMetric:
    """One metric of one run: ``measured_s`` = sum of ``weights`` x step times + delays outside the engine.

    A throughput is observed as the time that the run took.
    """

    name: str  #: as in the table of runs: ``mean_tpot_ms``
    measured_s: float
    weights: Floats  #: for each batch of the run
    fixed_s: float = 0.0  #: that no efficiency changes
    delays: Mapping[str, float] = field(default_factory=dict)  #: how often it contains each of ``CLIENT_DELAYS``


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


# --- from a measured run to weighted sums: the run is replayed once
#
# A metric is a mean over requests of the time between two moments of a request, and steps lie between the two. So its
# weight on a step is the share of requests whose interval holds the step, over what the metric divides by::
#
#     TTFT    from sent to first token        / requests
#     TPOT    from first to last token        / (output tokens - 1) / requests
#     E2EL    from sent to last token         / requests
#     duration (of a throughput, of a batch)  every step counts once
#
# Medians and percentiles are means over the requests near them. Steps with similar loads are merged, so that a run is
# some forty batches.

LOADS_PER_OCTAVE = 2  #: batches whose loads round to the same half octave are merged
#: Requests that a median and a 99th percentile are the mean of: shares of all, ordered by the metric.
NEAR = {"median": (0.45, 0.55), "p99": (0.98, 1.0)}
#: A server keeps up with a load that takes it this much longer than the last request takes to arrive, at most.
KEEPS_UP = 1.15
#: Batches with a smaller share of the weight of all metrics are left out.
NEGLIGIBLE = 1e-9


def observe(
    runs: Iterable[MeasuredRun], local: Local = SHIPPED, *, processes: int = 1
) -> tuple[list[Observed], list[tuple[MeasuredRun, str]]]:
    """The runs to fit to, and those that cannot be replayed with the reason. Suspect runs are left out.

    ``local``: the fits to replay with.
    """
    sound = [run for run in runs if not run.suspect]
    seen = resent(sound)
    tasks = [(run, local, run.run_id in seen) for run in sound]
    if processes == 1:
        results = [_observe_one(task) for task in tasks]
    else:
        with ProcessPoolExecutor(processes) as pool:
            results = list(pool.map(_observe_one, tasks, chunksize=50))
    pairs = list(zip(sound, results, strict=True))
    refused = [(run, one) for run, one in pairs if isinstance(one, str)]
    return [one for _, one in pairs if isinstance(one, Observed) and one.metrics], refused


def _observe_one(task: tuple[MeasuredRun, Local, bool]) -> Observed | str:
    """One run, or why it cannot be replayed."""
    run, local, is_resent = task
    if run.unread:
        return run.unread
    try:
        return observe_case(case_of(run, local, resent=is_resent))
    except PlannerError as error:
        return error.cause


def observe_case(case: Case) -> Observed:
    """One run. Raises InputError where the run cannot be replayed."""
    deployment, workload, dp_ranks = _one_dp_rank(case)
    online = case.run.bench == "serve"
    client = deployment.client if online else Client()
    served = _replayed(deployment, workload, client)
    timeline = _Timeline(served)
    metrics = list(_metrics(case.run, served, timeline, dp_ranks, client))
    used = sum((metric.weights / metric.weights.sum() for metric in metrics), np.zeros(len(timeline.batches)))
    keep = np.flatnonzero(used > NEGLIGIBLE)
    return Observed(
        run_id=case.run.run_id,
        group=case.run.group,
        model=deployment.model,
        profile=deployment.profile,
        config=deployment.config,
        covariates=covariates_of(deployment.model, deployment.profile, deployment.config),
        batches=tuple(timeline.batches[i] for i in keep),
        metrics=tuple(replace(metric, weights=metric.weights[keep]) for metric in metrics),
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


class _Timeline:
    """The steps of a replay in order, and the merged batches that stand for them."""

    def __init__(self, served: Replay) -> None:
        runs = served.step_runs
        self.start_s = np.array([run.start_s for run in runs])
        self.end_s = np.array([run.end_s for run in runs])
        self.steps: Floats = np.array([run.steps for run in runs], dtype=np.float64)
        self.busy_s = float((self.end_s - self.start_s).sum())
        self.batches, self.ends = _representatives(runs)

    def every_step(self) -> Floats:
        """Each step once."""
        return self._by_batch(self.steps)

    def between(self, from_s: Floats, to_s: Floats, share: Floats) -> Floats:
        """For each batch: sum over requests of ``share`` x its steps between the request's two moments."""
        weights = np.zeros(len(self.steps))
        duration_s = np.maximum(self.end_s - self.start_s, 1e-12)
        first = np.searchsorted(self.end_s, from_s + 1e-12, side="right")
        after = np.searchsorted(self.start_s, to_s - 1e-12, side="left")
        for begin_s, stop_s, part, i, j in zip(from_s, to_s, share, first, after, strict=True):
            if j <= i:
                continue
            weights[i:j] += part * self.steps[i:j]
            missed = max(begin_s - self.start_s[i], 0.0) / duration_s[i]
            weights[i] -= part * self.steps[i] * missed
            beyond = max(self.end_s[j - 1] - stop_s, 0.0) / duration_s[j - 1]
            weights[j - 1] -= part * self.steps[j - 1] * beyond
        return self._by_batch(np.maximum(weights, 0.0))

    def _by_batch(self, per_run: Floats) -> Floats:
        """Half of a run of steps counts as its first batch, half as its last: loads grow evenly between them."""
        sums = np.zeros(len(self.batches))
        for end in self.ends:
            np.add.at(sums, end, per_run / 2)
        return sums


def _representatives(runs: tuple[StepRun, ...]) -> tuple[list[Batch], tuple[NDArray[np.int64], ...]]:
    """Merged batches, and for each run of steps the numbers of its first and its last one."""
    number: dict[tuple[int, ...], int] = {}
    sums: list[Floats] = []
    ends: list[list[int]] = [[], []]
    for run in runs:
        for batch, end in zip((run.first, run.last), ends, strict=True):
            index = number.setdefault(_likeness(batch), len(number))
            if index == len(sums):
                sums.append(np.zeros(7))
            sums[index] += run.steps / 2 * np.array([1.0, *_loads(batch)])
            end.append(index)
    means = [Batch(*(total[1:] / total[0])) for total in sums]
    return means, tuple(np.array(end, dtype=np.int64) for end in ends)


def _loads(batch: Batch) -> tuple[float, ...]:
    return (
        batch.decode_seqs, batch.decode_context_tok,
        batch.prefill_seqs, batch.prefill_tok, batch.prefill_pair_tok, batch.prefill_finishing,
    )  # fmt: skip


def _likeness(batch: Batch) -> tuple[int, ...]:
    """Equal for batches whose sequences, contexts and prompts round to the same half octaves."""
    context = batch.decode_context_tok / batch.decode_seqs if batch.decode_seqs else 0
    pairs = batch.prefill_pair_tok / batch.prefill_tok if batch.prefill_tok else 0
    loads = (batch.decode_seqs, context, batch.prefill_tok, pairs)
    return tuple(round(LOADS_PER_OCTAVE * log2(load)) if load > 0 else -1 for load in loads)


def _metrics(
    run: MeasuredRun, served: Replay, timeline: _Timeline, dp_ranks: int, client: Client
) -> Iterator[ObservedMetric]:
    """The metrics of a run as weighted sums."""
    output_tok, all_tok = served.output_len.sum(), (served.input_len + served.output_len).sum()
    if run.bench == "latency":
        latency_s = run.metrics.get("avg_latency_s") or dp_ranks * output_tok / run.metrics["output_throughput"]
        yield ObservedMetric("avg_latency_s", float(latency_s), timeline.every_step())
        return
    tokens = {"output_throughput": output_tok, "total_token_throughput": all_tok}
    name = next((name for name in tokens if name in run.metrics), None)
    delays = {"request_s": np.ones(len(served.sent_s)), "frontend_s": _together(served.sent_s)}
    delays["tokenize_s"] = served.input_len.astype(np.float64)
    if name:
        duration_s = float(dp_ranks * tokens[name] / run.metrics[name])
        yield _duration(duration_s, served, timeline, delays, client)
    if run.bench == "serve":
        yield from _request_metrics(run, served, timeline, delays)


def _duration(
    measured_s: float, served: Replay, timeline: _Timeline, delays: Mapping[str, Floats], client: Client
) -> ObservedMetric:
    """The time that a run takes: its steps, and what the engine waits for the client.

    A server that keeps up with its load takes as long as the requests take to arrive, and then to finish.
    """
    last_s = float(served.arrival_s.max())
    if served.duration_s < KEEPS_UP * last_s:
        rest = timeline.between(np.array([last_s]), np.array([served.duration_s]), np.ones(1))
        return ObservedMetric("output_throughput", measured_s, rest, fixed_s=last_s)
    idle_s = max(served.duration_s - timeline.busy_s, 0.0)
    mean = {name: float(times.mean()) for name, times in delays.items()}
    delay_s = sum(getattr(client, name) * times for name, times in mean.items())
    waits = idle_s / delay_s if delay_s else 0.0
    outside = {name: waits * times for name, times in mean.items()}
    return ObservedMetric("output_throughput", measured_s, timeline.every_step(), delays=outside)


def _request_metrics(
    run: MeasuredRun, served: Replay, timeline: _Timeline, delays: Mapping[str, Floats]
) -> Iterator[ObservedMetric]:
    once = np.ones(len(served.sent_s))
    moments = {
        "ttft": (served.ready_s, served.first_token_s, once, True),
        "e2el": (served.ready_s, served.end_s, once, True),
        "tpot": (served.first_token_s, served.end_s, np.maximum(served.output_len - 1, 1), False),
    }
    for kind, (from_s, to_s, divisor, waits) in moments.items():
        several = np.flatnonzero(served.output_len > 1) if kind == "tpot" else np.arange(len(once))
        if not len(several):
            continue
        order = several[np.argsort(((to_s - from_s) / divisor)[several], kind="stable")]
        for statistic in ("mean", "median", "p99"):
            measured = run.metrics.get(f"{statistic}_{kind}_ms")
            if measured is None:
                continue
            low, high = NEAR.get(statistic, (0.0, 1.0))
            chosen = order[int(low * len(order)) : max(int(high * len(order)), int(low * len(order)) + 1)]
            share = 1 / divisor[chosen] / len(chosen)
            yield ObservedMetric(
                f"{statistic}_{kind}_ms",
                measured * MS,
                timeline.between(from_s[chosen], to_s[chosen], share),
                delays={name: float(times[chosen].mean()) for name, times in delays.items()} if waits else {},
            )


def _together(sent_s: Floats) -> Floats:
    """For each request, how many were sent at the same moment."""
    _, number, counts = np.unique(sent_s, return_inverse=True, return_counts=True)
    return counts[number].astype(np.float64)


def combinations(observed: Iterable[Observed]) -> tuple[Combination, ...]:
    """Each combination of covariates that was measured."""
    seen = (tuple(one.covariates[key] for key in Combination.model_fields) for one in observed)
    keys = tuple(Combination.model_fields)
    return tuple(Combination(**dict(zip(keys, values, strict=True))) for values in dict.fromkeys(seen))

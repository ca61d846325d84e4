"""Errors of runs that the fit did not see, by replay: what the load decides does not hang on the fit."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from fit.leave_out import REFITTED_RUNS, Miss, leave_out, replayed_misses, scatters
from planner.evidence.evaluation import case_of, figures_in_columns, simulate
from planner.evidence.observations import Observed, observe
from planner.evidence.runs import MeasuredRun

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CLOSED = MeasuredRun("closed", "serve", "h100-sxm", MODEL, engine_version="0.11.0", input_len=512, output_len=64,
             num_prompts=40, length_distribution="uniform-0.8-1", arrival="closed-loop", max_concurrency=8)  # fmt: skip
OPEN = replace(CLOSED, run_id="open", arrival="poisson", max_concurrency=None, request_rate=1.0)
BATCH = MeasuredRun(
    "batch", "latency", "h100-sxm", MODEL, engine_version="0.11.0", input_len=256, output_len=32, batch_size=4
)


def measured(run: MeasuredRun, slower: float) -> MeasuredRun:
    """``run`` with the figures of a machine whose times are ``slower`` than predicted, but where the load decides."""
    found = figures_in_columns(case_of(run), simulate(case_of(run)))
    keys = ["avg_latency_s"] if run.bench == "latency" else ["mean_tpot_ms", "mean_ttft_ms"]
    figures = {key: found[key] * slower for key in keys}
    if run.bench == "serve":
        decided = run.request_rate is not None
        figures["output_throughput"] = found["output_throughput"] / (1 if decided else slower)
    return replace(run, metrics=figures)


def by_metric(slower: float) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Errors by run and metric, each run left out of the fit: by replay, and over the steps that were taken before."""
    runs = [measured(run, slower) for run in (CLOSED, OPEN, BATCH, replace(CLOSED, run_id="more", max_concurrency=16))]
    observed, refused = observe(runs)
    assert not refused
    without = leave_out(observed)

    def alone(one: Observed) -> str:
        return one.run_id

    terms = without.problem.terms
    keys = [(observed[run].run_id, name) for run, name in zip(terms.metric_run, terms.metric_names, strict=True)]
    summed = dict(zip(keys, without.errors([alone(one) for one in observed]), strict=True))
    misses = replayed_misses(without, runs, alone)
    return {(observed[miss.run].run_id, miss.metric): miss.error for miss in misses}, summed


def test_a_rate_stays_a_rate_however_fast_the_fit_takes_the_gpu_to_be() -> None:
    replayed, summed = by_metric(2.0)
    assert not np.isnan(list(replayed.values())).any()
    # 40 prompts of one a second take 40 s and a fraction
    assert abs(replayed["open", "output_throughput"]) < 0.03
    assert abs(summed["open", "output_throughput"]) < 0.03


def test_where_the_engine_decides_both_errors_are_alike() -> None:
    replayed, summed = by_metric(1.2)
    for key in (("closed", "mean_tpot_ms"), ("closed", "output_throughput"), ("batch", "avg_latency_s")):
        # over the steps a throughput is a time
        sign = -1 if key[1] == "output_throughput" else 1
        assert replayed[key] == pytest.approx(sign * summed[key], abs=0.03), key


def test_a_fit_without_a_run_knows_less_and_a_fit_without_all_knows_what_was_assumed() -> None:
    runs = [measured(run, 1.2) for run in (CLOSED, BATCH, replace(CLOSED, run_id="more", max_concurrency=16))]
    observed, _ = observe(runs)
    without = leave_out(observed)
    where = observed[0].covariates
    every, one, none = (
        without.belief_without(left).of(where).covariance for left in ([], [0], list(range(len(observed))))
    )
    assert np.allclose(every, without.belief.of(where).covariance, atol=1e-9)
    assert (np.diag(one) >= np.diag(every) - 1e-9).all() and np.diag(one).sum() > np.diag(every).sum()
    assumed = replace(without.belief, keys=(), rows=np.zeros((0, 0)), signs=np.zeros(0)).of(where).covariance
    assert np.allclose(none, assumed, atol=2e-3)


def test_a_fit_without_a_large_group_is_the_fit_to_the_others() -> None:
    others = [replace(BATCH, run_id=f"fast{size}", batch_size=size) for size in (1, 2, 4, 8, 16, 32)]
    group = [
        replace(BATCH, run_id=f"slow{size}{length}", batch_size=size, output_len=length)
        for size in (1, 2, 4, 8, 16)
        for length in (16, 32, 64, 96)
    ]
    assert len(group) >= REFITTED_RUNS
    observed, _ = observe([*(measured(run, 1.0) for run in others), *(measured(run, 3.0) for run in group)])
    without = leave_out(observed)
    unseen = list(range(len(others), len(observed)))
    seen = np.isin(without.problem.terms.metric_run, range(len(others)))
    start = without.design.factors_of(())
    fitted, alone = without.fit_without(unseen), without.problem.solve(seen, start, uncertain=False)
    assert fitted.cost == pytest.approx(alone.cost, rel=1e-3, abs=1e-4)

    def time_s(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        return without.problem.terms.log_metrics(without.design.log_values(factors))[0]

    assert time_s(fitted.factors) == pytest.approx(time_s(alone.factors), abs=0.005)
    stepped = without.factors_without(np.flatnonzero(~seen[without.rows]))
    assert np.abs(time_s(stepped) - time_s(alone.factors)).max() > 0.05  # one step is not enough for so much


def test_noise_and_reach_are_those_of_the_errors() -> None:
    # 99 errors of a normal distribution of 0.25, half of its variance predicted: noise 0.25 / sqrt(2) = 0.177, and the
    # reach of each level is that of a normal distribution: 0.674, 1.282, 1.645, 1.960, 2.326
    normal = NormalDist(0.0, 0.25)
    errors = [normal.inv_cdf(i / 1000) for i in range(1, 1000)]
    observed, _ = observe([measured(BATCH, 1.0)])
    found = scatters(observed, [Miss(0, "avg_latency_s", error, 0.25 / 2**0.5) for error in errors])
    assert found["avg_latency_s"].noise == pytest.approx(0.177, abs=0.002)
    assert found["avg_latency_s"].reach == pytest.approx((0.674, 1.282, 1.645, 1.960, 2.326), abs=0.04)

"""Runs as weighted sums of step times: the sums must give back what the replay itself measures."""

from dataclasses import replace

import numpy as np
import pytest

from planner.evidence.evaluation import case_of
from planner.evidence.observations import Terms, observe, observe_case
from planner.evidence.runs import MeasuredRun
from planner.planning.deployment import Deployment
from planner.simulator.client import replay
from planner.timing.efficiencies import CLIENT_DELAYS, PARAMETERS, prior_values
from planner.timing.fits import Calibration
from planner.timing.step import StepModel

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
ANY = {name: 1.0 for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")}
SERVE = MeasuredRun("s", "serve", "h100-sxm", MODEL, engine_version="0.11.0", input_len=800, output_len=120,
            num_prompts=60, length_distribution="uniform-0.8-1", arrival="closed-loop", max_concurrency=12,
            metrics=ANY)  # fmt: skip
BATCH = MeasuredRun("l", "latency", "mi300x", MODEL, engine_version="0.9.1", input_len=256, output_len=64,
            batch_size=16, metrics={"avg_latency_s": 2.0})  # fmt: skip


def inside_times(run: MeasuredRun) -> tuple[dict[str, float], Deployment]:
    """What the sums over steps say at the priors, by metric, with the client of the deployment; and the deployment."""
    one, deployment = observe_case(case_of(run)), case_of(run).deployment
    priors = prior_values(deployment.profile, deployment.covariates)
    values = np.log([[priors[name] for name in PARAMETERS]])
    for name in CLIENT_DELAYS:
        values[0, PARAMETERS.index(name)] = np.log(getattr(deployment.client, name))
    seconds = np.exp(Terms([one]).log_metrics(values)[0])
    return dict(zip((m.name for m in one.metrics), seconds, strict=True)), deployment


def test_the_sums_are_what_the_replay_measures() -> None:
    found, deployment = inside_times(SERVE)
    priors = prior_values(deployment.profile, deployment.covariates)
    efficiency = Calibration(name="", fitted_on="").efficiency({}, priors)
    timer = StepModel(deployment.model, deployment.profile, deployment.config, efficiency)
    workload = case_of(SERVE).workload
    served = replay(timer, workload, deployment.limits(workload.max_total_len), deployment.client)
    assert found["output_throughput"] == pytest.approx(served.duration_s, rel=0.02)
    assert found["mean_tpot_ms"] == pytest.approx(served.tpot_s.mean(), rel=0.02)
    assert found["mean_ttft_ms"] == pytest.approx(served.ttft_s.mean(), rel=0.05)
    assert found["mean_e2el_ms"] == pytest.approx(served.e2el_s.mean(), rel=0.02)


def test_steps_that_are_alike_are_put_together() -> None:
    assert len(observe_case(case_of(SERVE)).batches) < 80


def test_a_batch_has_no_front_end() -> None:
    (metric,) = observe_case(case_of(BATCH)).metrics
    assert not any(metric.steps.delays.values())


def test_a_burst_waits_for_all_of_itself() -> None:
    once = replace(SERVE, arrival="all-at-once", max_concurrency=None, length_distribution="fixed")
    metrics = {m.name: m for m in observe_case(case_of(once)).metrics}
    assert metrics["mean_ttft_ms"].steps.delays["frontend_s"] == 60
    assert metrics["output_throughput"].steps.delays["frontend_s"] == pytest.approx(60)


def test_a_prompt_costs_the_front_end_time_for_each_token() -> None:
    metrics = {m.name: m for m in observe_case(case_of(replace(SERVE, length_distribution="fixed"))).metrics}
    assert metrics["mean_ttft_ms"].steps.delays["tokenize_s"] == 800


def test_a_server_that_keeps_up_takes_as_long_as_its_requests_take_to_come() -> None:
    slow = replace(SERVE, arrival="poisson", request_rate=0.5, max_concurrency=None)
    (duration,) = (m for m in observe_case(case_of(slow)).metrics if m.name == "output_throughput")
    assert duration.steps.fixed_s == pytest.approx(case_of(slow).workload.requests().arrival_s.max())


def test_suspect_runs_are_left_out_and_impossible_ones_named() -> None:
    broken = replace(SERVE, run_id="x", gpu="no-such-gpu")
    found, refused = observe([SERVE, replace(SERVE, run_id="y", suspect="breaks Little's law"), broken])
    assert [one.run_id for one in found] == ["s"]
    assert [run.run_id for run, _ in refused] == ["x"]

"""Errors of runs that the fit did not see, by replay: what the load decides does not hang on the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.evidence.evaluation import case_of, predict
from planner.evidence.leave_out import Bands, leave_out, replayed_errors
from planner.evidence.observe import Observed, observe
from planner.evidence.runs import MeasuredRun
from planner.evidence.terms import Terms

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CLOSED = MeasuredRun("closed", "serve", "h100-sxm", MODEL, engine_version="0.11.0", input_len=512, output_len=64,
             num_prompts=40, length_distribution="uniform-0.8-1", arrival="closed-loop", max_concurrency=8)  # fmt: skip
OPEN = replace(CLOSED, run_id="open", arrival="poisson", max_concurrency=None, request_rate=1.0)
BATCH = MeasuredRun(
    "batch", "latency", "h100-sxm", MODEL, engine_version="0.11.0", input_len=256, output_len=32, batch_size=4
)


def measured(run: MeasuredRun, slower: float) -> MeasuredRun:
    """``run`` with the figures of a machine whose times are ``slower`` than predicted, but where the load decides."""
    found = predict(case_of(run))
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
    errors = replayed_errors(without, runs, alone), without.errors([alone(one) for one in observed])
    return dict(zip(keys, errors[0], strict=True)), dict(zip(keys, errors[1], strict=True))


def test_a_rate_stays_a_rate_however_fast_the_fit_takes_the_gpu_to_be() -> None:
    replayed, summed = by_metric(2.0)
    assert not np.isnan(list(replayed.values())).any()
    # 40 prompts of one a second take 40 s and a fraction
    assert abs(replayed["open", "output_throughput"]) < 0.03
    assert abs(summed["open", "output_throughput"]) < 0.03


def test_where_the_engine_decides_both_errors_are_alike() -> None:
    replayed, summed = by_metric(1.2)
    for key in (("closed", "mean_tpot_ms"), ("closed", "output_throughput"), ("batch", "avg_latency_s")):
        assert replayed[key] == pytest.approx(summed[key], abs=0.03), key


def test_tails_of_few_runs_are_drawn_towards_gpus_that_are_linked_alike() -> None:
    # 30 runs on each of three GPUs; errors of 10 % behind an NVSwitch, of a factor e^3 on PCIe
    runs = [
        replace(BATCH, run_id=f"{gpu} {n}", gpu=gpu, output_len=2, metrics={"avg_latency_s": 1.0})
        for gpu in ("h100-sxm", "h200-sxm", "h100-pcie")
        for n in range(30)
    ]
    terms = Terms(observe(runs)[0])
    size = np.array([3.0 if one.covariates["links"] == "pcie" else 0.1 for one in terms.observed])
    bands = Bands(terms, size[terms.metric_run] * np.tile([1.0, -1.0], 45), "setting")
    gpu = (("architecture", "sm_90"), ("gpu", "h100-sxm"))
    linked = (("links", "nvswitch"), ("platform", "cuda"))
    assert bands.around["avg_latency_s", gpu] == linked and bands.around["avg_latency_s", linked] == ()
    assert bands.around["avg_latency_s", ()] is None
    # of all 90 runs the tails are 3; of the 60 they are 0.1, drawn by 50 / 110: 0.1 x 0.545 + 3 x 0.455 = 1.418; of the
    # 30 they are 0.1, drawn towards those by 50 / 80: 0.1 x 0.375 + 1.418 x 0.625 = 0.924, and not 1.913 towards all
    assert bands.bounds("avg_latency_s", linked) == pytest.approx((-1.418, 1.418), abs=0.001)
    assert bands.bounds("avg_latency_s", gpu) == pytest.approx((-0.924, 0.924), abs=0.001)

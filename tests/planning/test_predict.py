"""Predictions: the replay and the closed form agree where both hold, and both are monotone."""

import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import predict_serve
from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction, cache_remark, estimate
from planner.planning.serving import Serving
from planner.simulator.record import TokenRuns
from planner.workload.load import Load


@cache
def deployed(gpu: str = "h100-sxm", tensor_parallel_size: int = 1, max_num_seqs: int = 64) -> Deployment:
    model = resolve_model("meta-llama/Llama-3.1-8B-Instruct").model
    args = EngineArgs(
        tensor_parallel_size=tensor_parallel_size, max_model_len=8192, max_num_seqs=max_num_seqs,
        enable_prefix_caching=False,
    )  # fmt: skip
    return resolve_deployment(model, load_profile(gpu), args, parse_version("0.22.0"))


@pytest.mark.parametrize(("places", "output_len", "held"), [(256, 512, True), (8, 512, False), (256, 2, False)])
def test_a_cache_that_is_too_small_for_the_load_is_named(places: int, output_len: int, held: bool) -> None:
    """An L40S keeps about 26 GB for the cache: 12 requests of 16,512 tokens x 131,072 bytes = 2.16 GB, more than 8.

    A prompt takes 8 steps of 2,048 tokens and an answer of 2 tokens leaves the next one: few are there at once.
    """
    answer = predict_serve(
        "meta-llama/Llama-3.1-8B-Instruct", gpu="l40s", input_len=16_000, output_len=output_len, max_concurrency=40,
        num_prompts=60, max_num_seqs=places,
    )  # fmt: skip
    notes = " ".join(answer.to_dict()["notes"])
    assert ("bottleneck: KV capacity: holds 12 requests at once; " in notes) == held
    assert ("bottleneck" in notes) == held


@pytest.mark.parametrize("concurrency", [1, 4, 16, 64])
def test_the_closed_form_is_the_steady_state_of_the_replay(concurrency: int) -> None:
    # twenty rounds of requests: the opening burst weighs little
    load = Load(1024, 256, 20 * concurrency, max_concurrency=concurrency)
    replayed = Prediction.of(deployed(), load).figures
    quick = estimate(deployed(), 1024, 256, concurrency)
    assert quick.output_tok_per_s == pytest.approx(replayed["output_throughput"], rel=0.10)
    assert quick.e2el_s * 1000 == pytest.approx(replayed["mean_e2el_ms"], rel=0.10)


def test_one_request_alone_is_its_prefill_and_its_decode_steps() -> None:
    result = Prediction.of(deployed(), Load(128, 2, 1), bench="latency").figures
    twice = Prediction.of(deployed(), Load(128, 3, 1), bench="latency").figures
    # the third token costs one more decode step of one sequence
    from planner.timing.step import Batch

    step_s = deployed().timer.step_s(Batch(decode_seqs=1, decode_context_tok=130))
    assert twice["avg_latency"] - result["avg_latency"] == pytest.approx(step_s, rel=0.01)


def test_a_lone_request_is_as_sure_as_its_first_and_its_later_tokens() -> None:
    told = Prediction.of(deployed(), Load(512, 128, 20, max_concurrency=1)).result
    for end in ("lo", "hi"):
        together = told[f"mean_ttft_ms_{end}"] + 127 * told[f"mean_tpot_ms_{end}"]
        reach = (told[f"mean_e2el_ms_{end}"] - told["mean_e2el_ms"]) / (together - told["mean_e2el_ms"])
        assert 0 < reach <= 1.001
    for slow, fast in (("hi", "lo"), ("lo", "hi")):
        assert told[f"duration_{slow}"] <= 20 * told["mean_e2el_ms_hi"] / 1e3 * 1.01
        assert told[f"output_throughput_{fast}"] * told[f"duration_{slow}"] == pytest.approx(20 * 128, rel=0.001)


def test_of_the_replays_at_the_ends_of_an_interval_only_figures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    replays: list[weakref.ref[Any]] = []

    def remembered(self: Deployment, *args: Any, **asked: Any) -> Any:
        served = replay(self, *args, **asked)
        replays.append(weakref.ref(served.end_s))
        return served

    replay = Deployment.replay
    monkeypatch.setattr(Deployment, "replay", remembered)
    answer = Prediction.of(deployed(), Load(256, 32, 40, request_rate=5.0))
    assert answer.result["p99_ttft_ms_lo"] < answer.result["p99_ttft_ms"] < answer.result["p99_ttft_ms_hi"]
    assert len(replays) == 4  # and of a request alone
    assert [one() is not None for one in replays] == [True, False, False, False]


@pytest.mark.parametrize(("gpu", "rate", "lengths"), [("h100-sxm", 6, (4096, 256)), ("l40s", 0.8, (2048, 1256))])
def test_a_busy_server_is_never_surely_faster_than_an_idle_one(gpu: str, rate: float, lengths: tuple[int, int]) -> None:
    """Near its limit, a server one deviation faster has no queue: three deviations faster, its prompts still run."""
    serving = Serving("Qwen/Qwen3-8B", gpu)
    busy = serving.predict(Load(*lengths, request_rate=rate)).result
    idle = serving.predict(Load.closed_loop(1, *lengths, num_prompts=4)).result
    for figure in ("median_ttft_ms", "mean_ttft_ms", "p99_ttft_ms", "median_tpot_ms"):
        assert 0.99 * idle[f"{figure}_lo"] <= busy[f"{figure}_lo"] <= busy[figure] <= busy[f"{figure}_hi"]
    assert busy["p99_tpot_ms_hi"] * (lengths[1] - 1) <= 1e3 * busy["duration_hi"]


@pytest.mark.parametrize("tp", [4, 8])
def test_of_gpus_on_pcie_the_one_with_more_bandwidth_is_faster_at_any_tp(tp: int) -> None:
    """L40S reads its memory 2.9 times as fast as L4. Measured sums of 8 L40S at 1.9 GB/s are those of one machine."""
    load = Load.closed_loop(1, 512, 128, num_prompts=2)
    model = "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8"
    l40s, l4 = (Serving(model, gpu, tensor_parallel_size=tp).predict(load).figures for gpu in ("l40s", "l4"))
    assert l40s["mean_tpot_ms"] < 0.7 * l4["mean_tpot_ms"] and l40s["mean_ttft_ms"] < l4["mean_ttft_ms"]


@pytest.mark.parametrize(("gpu", "tflop_per_s"), [("a100-sxm-80gb", 312), ("l4", 121), ("h100-sxm", 989.4)])
def test_no_interval_goes_beyond_the_roofline(gpu: str, tflop_per_s: float) -> None:
    """Llama-3.1-8B multiplies each prompt token with 32 layers of 218.1 million weights: 13.96 GFLOP, in bf16."""
    serving = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu, max_model_len=4096)
    made = serving.predict(Load(2048, 1, 64), bench="throughput")
    most = made.uncertainty.beside(made.figures)["tokens_per_second_hi"]
    assert made.figures["tokens_per_second"] < most < tflop_per_s * 1e12 / 13.96e9


def test_latency_of_a_batch_is_the_duration_of_the_same_prompts_offline() -> None:
    load = Load(256, 64, 8)
    latency = Prediction.of(deployed(), load, bench="latency").figures["avg_latency"]
    assert latency == pytest.approx(Prediction.of(deployed(), load, bench="throughput").figures["elapsed_time"])


@settings(max_examples=20, deadline=None)
@given(st.integers(16, 2048), st.integers(2, 256), st.integers(1, 32))
def test_a_longer_prompt_never_has_a_shorter_ttft(input_len: int, output_len: int, concurrency: int) -> None:
    short, long = (
        Prediction.of(deployed(), Load(length, output_len, concurrency, max_concurrency=concurrency)).figures
        for length in (input_len, 2 * input_len)
    )
    assert long["mean_ttft_ms"] >= short["mean_ttft_ms"] * 0.999999


def test_more_bandwidth_and_compute_are_never_slower() -> None:
    load = Load(1024, 128, 32, max_concurrency=8)
    slow, fast = (Prediction.of(deployed(gpu), load).figures for gpu in ("a100-sxm-80gb", "h100-sxm"))
    assert fast["output_throughput"] > slow["output_throughput"]


def test_the_breakdown_adds_up_to_the_step() -> None:
    served = Prediction.of(deployed(), Load(1024, 128, 32, max_concurrency=8))
    for step in deployed().typical_steps(served.replay).values():
        on_gpu = sum(part.time_s for part in step.parts if part.name != "host")
        assert on_gpu == pytest.approx(step.gpu_s)
        assert step.total_s >= step.gpu_s


def test_weights_from_host_memory_are_no_collectives() -> None:
    """10 GiB over PCIe 4.0 x16 in every step (0.4 s), on one GPU."""
    asked = {"cpu_offload_gb": 10, "max_model_len": 8192, "max_concurrency": 1, "num_prompts": 2}
    said = " ".join(predict_serve("Qwen/Qwen3-14B", "rtx-4090", **asked).notes)
    assert "weights read from host memory take 9" in said and "collectives" not in said


def test_requests_held_are_those_that_the_memory_budget_gives() -> None:
    # uniform attention: blocks x 16 tokens, 2048 tokens a request
    held = deployed().requests_held(2048)
    assert held == pytest.approx(deployed().budget.num_blocks.mid * 16 / 2048, rel=0.001)


@pytest.mark.parametrize(
    ("release", "reserves", "watermark"), [("0.6.3", True, 0.01), ("0.18.1", False, 0.0), ("0.19.0", True, 0.0)]
)
def test_prompts_are_admitted_whole_in_v0_and_from_0_19_on(release: str, reserves: bool, watermark: float) -> None:
    """``--scheduler-reserve-full-isl`` appeared in 0.19.0, switched on.

    ``can_allocate`` of V0 asked for the blocks of the whole prompt and 1 % of all blocks beside, chunked or not.
    """
    model = resolve_model("meta-llama/Llama-3.1-8B", network=False).model
    found = resolve_deployment(model, load_profile("h100"), EngineArgs(), parse_version(release))
    assert found.config.enable_chunked_prefill
    assert found.limits(2048).scheduler_reserve_full_isl is reserves
    assert found.limits(2048).watermark == watermark


@pytest.mark.parametrize(
    ("gpu", "release", "given", "cached"),
    [("h100", "0.8.5", None, True), ("h100", "0.9.1", None, False), ("h100", "0.22.0", True, True),
     ("mi300x", "0.9.1", None, False)],
)  # fmt: skip
def test_latency_has_the_cache_that_its_benchmark_keeps(
    gpu: str, release: str, given: bool | None, cached: bool
) -> None:
    """``vllm bench latency`` sends the same prompts again and again, and keeps no prefixes by default since 0.9.1.

    benchmarks/latency.py:78 of that release says so on any GPU: 405B on MI300X took 4.2 s for 14.9 here.
    """
    serving = Serving("meta-llama/Llama-3.1-8B", gpu, engine_version=release, enable_prefix_caching=given)
    prediction = serving.predict(Load(2048, 16, 8), bench="latency")
    assert prediction.deployment.config.enable_prefix_caching is cached
    # whole blocks of 16 tokens, never the last token
    assert set(prediction.replay.cached_tok.tolist()) == {2032 if cached else 0}


def test_the_interval_of_a_gap_percentile_spans_the_edge_of_the_long_gaps() -> None:
    """1.2 % of the gaps take a second. With 1.6 deviations fewer of them the 99th percentile is a short gap."""
    load = Load(256, 32, 16, max_concurrency=4)
    plain = Prediction.of(deployed(), load)
    runs = TokenRuns(*(np.array(column) for column in ([0.0, 0.0], [988, 12], [0.01, 1.0], [0.0, 0.0], [1, 1])))
    edge = Prediction(deployed(), load, replace(plain.replay, token_runs=runs))
    assert edge.result["p99_itl_ms"] == pytest.approx(1000)
    assert edge.result["p99_itl_ms_lo"] == pytest.approx(
        10 * edge.result["p99_tpot_ms_lo"] / edge.result["p99_tpot_ms"]
    )
    for end in ("_lo", "_hi"):  # no other figure, and no other end, moves
        assert edge.result[f"median_itl_ms{end}"] / edge.result["median_itl_ms"] == pytest.approx(
            edge.result[f"median_tpot_ms{end}"] / edge.result["median_tpot_ms"]
        )
    assert edge.result["p99_itl_ms_hi"] / 1000 == pytest.approx(
        edge.result["p99_tpot_ms_hi"] / edge.result["p99_tpot_ms"]
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [("h100", "h200"), ("b200", "b300"), ("mi300x", "mi325x"), ("h200", "b200"), ("mi325x", "mi355x")],
)
@pytest.mark.parametrize(
    ("model", "tp"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 4),
        ("Qwen/Qwen3-235B-A22B-FP8", 4),
        ("zai-org/GLM-4.6-FP8", 8),
        ("openai/gpt-oss-120b", 1),
        ("MiniMaxAI/MiniMax-M2.5", 4),
    ],
)
def test_a_newer_gpu_of_a_vendor_is_not_slower(older: str, newer: str, model: str, tp: int) -> None:
    # Bandwidth and arithmetic rise in each of these pairs; by measurement one setting may still lag by some percent. On
    # MI325X and MI355X the host sets the time of a lone prompt, and factors of prompts differ by 8 %.
    for concurrency, slack in ((1, 1.1), (32, 1.08)):
        load = Load.closed_loop(concurrency, 1024, 256, num_prompts=concurrency)
        servers = (Serving(model, gpu=gpu, tensor_parallel_size=tp) for gpu in (older, newer))
        first, then = (server.predict(load).figures for server in servers)
        assert then["mean_tpot_ms"] <= first["mean_tpot_ms"] * slack
        assert then["mean_ttft_ms"] <= first["mean_ttft_ms"] * 1.09


def test_the_host_launches_kernels_outside_of_graphs_about_as_fast_for_any_gpu() -> None:
    """PyTorch's dispatch takes 5 to 20 us, and there is Python around it; MI355X had 142 us where MI300X had 38."""
    gpus = ("mi300x", "mi325x", "mi355x", "a100", "l40s", "h100", "h200", "b200", "b300")
    engines = [Serving("meta-llama/Llama-3.1-8B-Instruct", gpu=gpu, enforce_eager=True).deployment for gpu in gpus]
    each_s = [engine.efficiency.eager_launch_s for engine in engines]
    assert min(each_s) > 5e-6 and max(each_s) < min(1.5 * min(each_s), 100e-6)


def test_preemptions_are_those_of_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for most in (2_400, 1_200):
        monkeypatch.setattr("planner.planning.predict.MOST_PROMPTS", most)
        made = Prediction.of(deployed("l40s", 1, 256), Load(1024, 512, 2_400), bench="throughput")
        assert len(made.replay.sent_s) == most
        counts.append(int(cache_remark(made).rpartition("; ")[2].split()[0].replace(",", "")))
    assert counts[1] == pytest.approx(counts[0], rel=0.25) and counts[0] > 100


def test_of_many_equal_prompts_the_first_stand_for_the_others() -> None:
    many = Load(128, 16, 30_000)
    made = Prediction.of(deployed(), many, bench="throughput")
    assert len(made.replay.sent_s) == 20_000
    assert made.figures["num_requests"] == 30_000 and made.figures["total_num_tokens"] == 30_000 * 144
    whole = deployed().replay(many, offline=True)
    assert made.figures["elapsed_time"] == pytest.approx(whole.duration_s, rel=2e-3)
    assert made.paid.usd_per_million_output_tokens == pytest.approx(
        made.paid.usd_per_hour / 3600 / made.figures["output_throughput"] * 1e6
    )
    varied = Prediction.of(deployed(), replace(many, range_ratio=0.5), bench="throughput")
    assert len(varied.replay.sent_s) == 30_000

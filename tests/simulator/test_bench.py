"""Results and tables beside those of ``vllm bench``: its own metrics, a published table, numpy's percentiles."""

import json
from math import inf
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.simulator.bench import (
    good_requests,
    latency_result,
    latency_table,
    percentiles_of,
    serve_result,
    serve_table,
    throughput_result,
    throughput_table,
)
from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits
from planner.simulator.record import GapLog, Replay, TokenRuns
from planner.timing.step import Batch
from planner.workload.load import Load


class Toy:
    """A step time that is linear in the batch."""

    def step_s(self, batch: Batch) -> float:
        return 0.03 + 0.001 * batch.decode_seqs + 1e-5 * batch.decode_context_tok + 0.0007 * batch.prefill_tok


class Second:
    """Every step takes one second."""

    def step_s(self, batch: Batch) -> float:
        return 1.0


ROOMY = SchedulerLimits(max_num_seqs=16, max_num_batched_tokens=256, kv_cache_tokens=100_000)
SIX = Load(100, 20, 6, max_concurrency=3, range_ratio=0.5, seed=4)


@pytest.fixture
def six() -> Replay:
    return replay(Toy(), SIX, ROOMY)


def test_metrics_are_those_that_vllm_computes(six: Replay) -> None:
    # vllm.benchmarks.serve.calculate_metrics of 0.32.0, fed with every token time of this load as a plain
    # step-by-step scheduler gives them, percentiles 90 and 99, goodput ttft:200 tpot:60
    expected = {
        "completed": 6,
        "failed": 0,
        "total_input_tokens": 800,
        "total_output_tokens": 114,
        "request_throughput": 2.655372482374966,
        "request_goodput": 1.327686241187483,
        "output_throughput": 50.45207716512436,
        "total_token_throughput": 404.5017414817865,
        "mean_ttft_ms": 231.13,
        "median_ttft_ms": 191.12,
        "std_ttft_ms": 84.41640973965507,
        "p90_ttft_ms": 347.14,
        "p99_ttft_ms": 347.14,
        "mean_tpot_ms": 41.38060954889617,
        "median_tpot_ms": 42.438769841269824,
        "std_tpot_ms": 4.701504953189938,
        "p90_tpot_ms": 46.2702463054187,
        "p99_tpot_ms": 46.34588177339899,
        "mean_itl_ms": 42.35916666666665,
        "median_itl_ms": 37.12,
        "std_itl_ms": 22.90080170539888,
        "p90_itl_ms": 37.35,
        "p99_itl_ms": 138.3027,
        "mean_e2el_ms": 993.595,
        "median_e2el_ms": 934.275,
        "std_e2el_ms": 296.6720040016134,
        "p90_e2el_ms": 1331.23,
        "p99_e2el_ms": 1526.863,
        "max_output_tokens_per_s": 58.0,
        "max_concurrent_requests": 5,
    }
    result = serve_result(six, SIX, percentiles=(90, 99), goodput={"ttft": 200, "tpot": 60})
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-9)


def test_keys_are_those_of_the_result_file(six: Replay) -> None:
    # ``vllm bench serve --save-result`` of 0.32.0 with --percentile-metrics ttft,tpot,itl,e2el and percentile 99
    head = (
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
        *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
        *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
        *("output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
        *("max_concurrent_requests", "rtfx"),
    )
    tail = [
        f"{statistic}_{metric}_ms"
        for metric in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "std", "p99")
    ]
    result = serve_result(six, SIX, model_id="a/model")
    assert list(result) == [*head, *tail]
    assert (result["model_id"], result["request_rate"], result["max_concurrency"]) == ("a/model", "inf", 3)
    assert result["request_goodput"] is None
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_rate_is_printed_and_saved() -> None:
    workload = Load(10, 5, 4, request_rate=2.5)
    result = serve_result(replay(Toy(), workload, ROOMY), workload)
    assert result["request_rate"] == 2.5
    assert "Request rate configured (RPS):           2.50      \n" in serve_table(result)
    assert "Maximum request concurrency" not in serve_table(result)


def test_single_tokens_have_no_tpot_and_no_gaps() -> None:
    workload = Load(10, 1, 4)
    result = serve_result(replay(Toy(), workload, ROOMY), workload)
    assert result["mean_tpot_ms"] == result["p99_itl_ms"] == 0  # as vLLM's ``np.mean(tpots or 0)``


PUBLISHED = {
    "completed": 128,
    "failed": 0,
    "max_concurrency": 64,
    "request_rate": "inf",
    "duration": 149.97,
    "total_input_tokens": 1048448,
    "total_output_tokens": 131072,
    "request_throughput": 0.85,
    "request_goodput": None,
    "output_throughput": 873.98,
    "max_output_tokens_per_s": 1600.0,
    "max_concurrent_requests": 70,
    "total_token_throughput": 7864.95,
    "mean_ttft_ms": 11639.66,
    "median_ttft_ms": 7543.86,
    "p99_ttft_ms": 31797.74,
    "mean_tpot_ms": 61.81,
    "median_tpot_ms": 66.91,
    "p99_tpot_ms": 72.17,
    "mean_itl_ms": 61.81,
    "median_itl_ms": 42.31,
    "p99_itl_ms": 1068.18,
    "mean_e2el_ms": 74875.13,
    "median_e2el_ms": 74736.83,
    "p99_e2el_ms": 101320.40,
}

#: As AMD's quick-start recipe for Llama-3.3-70B on MI355X shows it (a build of October 2025).
PUBLISHED_TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     128
Failed requests:                         0
Maximum request concurrency:             64
Benchmark duration (s):                  149.97
Total input tokens:                      1048448
Total generated tokens:                  131072
Request throughput (req/s):              0.85
Output token throughput (tok/s):         873.98
Peak output token throughput (tok/s):    1600.00
Peak concurrent requests:                70.00
Total Token throughput (tok/s):          7864.95
---------------Time to First Token----------------
Mean TTFT (ms):                          11639.66
Median TTFT (ms):                        7543.86
P99 TTFT (ms):                           31797.74
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          61.81
Median TPOT (ms):                        66.91
P99 TPOT (ms):                           72.17
---------------Inter-token Latency----------------
Mean ITL (ms):                           61.81
Median ITL (ms):                         42.31
P99 ITL (ms):                            1068.18
----------------End-to-end Latency----------------
Mean E2EL (ms):                          74875.13
Median E2EL (ms):                        74736.83
P99 E2EL (ms):                           101320.40
=================================================="""


def unpadded(table: str) -> str:
    return "\n".join(line.rstrip() for line in table.splitlines())


def test_the_table_is_the_one_that_vllm_prints() -> None:
    table = serve_table(PUBLISHED, (0, 11, 1))
    assert unpadded(table) == PUBLISHED_TABLE
    assert table.splitlines()[1] == "Successful requests:                     128       "


def test_the_table_follows_the_release() -> None:
    def labels(release: tuple[int, ...]) -> set[str]:
        return {line.split(":")[0] for line in serve_table(PUBLISHED, release).splitlines()}

    newest = labels((0, 32, 0))
    assert "Total token throughput (tok/s)" in newest
    assert newest ^ labels((0, 11, 1)) == {"Total token throughput (tok/s)", "Total Token throughput (tok/s)"}
    assert labels((0, 11, 1)) - labels((0, 10, 2)) == {"Failed requests"}
    assert labels((0, 10, 2)) - labels((0, 10, 1)) == {
        "Peak output token throughput (tok/s)",
        "Peak concurrent requests",
    }
    assert labels((0, 10, 0)) - labels((0, 9, 2)) == {"Maximum request concurrency"}


def test_intervals_stand_beside_the_numbers() -> None:
    table = serve_table(PUBLISHED | {"mean_ttft_ms_lo": 9000.0, "mean_ttft_ms_hi": 14000.5})
    row = "Mean TTFT (ms):                          11639.66   9000.00    14000.50"
    assert row in unpadded(table).splitlines()
    assert "Median TTFT (ms):                        7543.86" in unpadded(table).splitlines()


@given(
    st.lists(
        st.tuples(
            *(st.floats(0, 1e3), st.integers(1, 40), st.floats(1e-3, 10), st.floats(-1e-5, 1e-2), st.integers(1, 6))
        ),
        min_size=1, max_size=30,
    ),
    st.lists(st.floats(0, 100), min_size=1, max_size=4),
    st.sampled_from([2**18, 8]),
)  # fmt: skip
def test_figures_of_runs_are_those_of_the_long_list(
    runs: list[tuple[float, int, float, float, int]], percents: list[float], part: int
) -> None:
    log = GapLog()
    for run in runs:
        log.add(*run)
    found = TokenRuns.of(log)
    gaps, tokens = found.gaps()
    every = np.repeat(gaps, tokens)
    with patch.multiple("planner.simulator.record", PART=part, SORTED=part):
        at, moments = percentiles_of(found, percents), found.moments_s()
        times = [np.concatenate(column) for column in zip(*(one.emissions() for one in found.parts()), strict=True)]
    np.testing.assert_allclose(at, np.percentile(every, percents), rtol=1e-9)
    np.testing.assert_allclose(moments, (every.mean(), every.std()), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(times, found.emissions())


def test_goodput_counts_requests_that_meet_every_target() -> None:
    # one second a step, one place: TTFT 1, 4 and 7 s, each TPOT 1 s, E2EL 3, 6 and 9 s
    served = replay(Second(), Load(4, 3, 3), SchedulerLimits(1, 64, 1000))
    assert good_requests(served, {"ttft": 4000}) == 2
    assert good_requests(served, {"ttft": 4000, "e2el": 5999}) == 1
    assert good_requests(served, {"tpot": 999}) == 0
    with pytest.raises(InputError, match="itl"):
        good_requests(served, {"itl": 5})


def test_an_impossible_percentile_is_refused(six: Replay) -> None:
    with pytest.raises(InputError, match="--metric-percentiles"):
        serve_result(six, SIX, percentiles=(101,))


def test_queueing_at_the_client_is_not_latency() -> None:
    # one request in flight: the second waits two seconds at the client, and its clock starts when it is sent
    workload = Load(4, 2, 2, max_concurrency=1)
    served = replay(Second(), workload, ROOMY)
    result = serve_result(served, workload)
    assert (served.sent_s - served.arrival_s).tolist() == [0, 2]
    assert result["mean_e2el_ms"] == 2000
    assert result["duration"] == 4


def test_delays_of_the_client_shift_the_first_token_only() -> None:
    workload = Load(4, 3, 4)
    near = serve_result(replay(Second(), workload, ROOMY), workload)
    far = serve_result(replay(Second(), workload, ROOMY, Client(0.25, 0.5)), workload)
    assert far["mean_ttft_ms"] == near["mean_ttft_ms"] + 750
    assert far["mean_tpot_ms"] == near["mean_tpot_ms"]
    assert far["p99_itl_ms"] == near["p99_itl_ms"]


def test_throughput() -> None:
    # two places, four requests of 4 + 3 tokens and 3 s each: 6 s, 28 tokens, 12 of them output
    served = replay(Second(), Load(4, 3, 4), SchedulerLimits(2, 64, 1000))
    result = throughput_result(served, model_id="a/model")
    assert result == {
        "model_id": "a/model",
        "elapsed_time": 6,
        "num_requests": 4,
        "total_num_tokens": 28,
        "requests_per_second": pytest.approx(4 / 6),
        "tokens_per_second": pytest.approx(28 / 6),
        "output_throughput": 2,
    }
    assert throughput_table(result) == (
        "Throughput: 0.67 requests/s, 4.67 total tokens/s, 2.00 output tokens/s\n"
        "Total num prompt tokens:  16\n"
        "Total num output tokens:  12"
    )


def test_latency() -> None:
    served = replay(Second(), Load(4, 3, 4), ROOMY)
    result = latency_result(served, model_id="a/model")
    assert result["avg_latency"] == 3
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert latency_table(result).splitlines()[:2] == ["Avg latency: 3.0 seconds", "10% percentile latency: 3.0 seconds"]


@given(rate=st.sampled_from([0.5, 3.0, inf]), seed=st.integers(0, 50))
def test_the_mean_gap_and_the_mean_tpot_agree_where_lengths_do(rate: float, seed: int) -> None:
    # equal lengths: pooling the gaps weighs every request alike
    workload = Load(20, 7, 12, request_rate=rate, seed=seed)
    result = serve_result(replay(Toy(), workload, ROOMY), workload)
    assert result["mean_itl_ms"] == pytest.approx(result["mean_tpot_ms"])
    assert result["mean_e2el_ms"] == pytest.approx(result["mean_ttft_ms"] + 6 * result["mean_tpot_ms"])

"""Lengths and arrivals beside those that vLLM 0.32.0 itself draws for the same seed."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload.load import NAMED_DISTRIBUTIONS, LengthDistribution, Load

SMALL = Load(input_len=10, output_len=10, num_prompts=5)


def test_lengths_are_those_that_vllm_draws() -> None:
    # vllm.benchmarks.datasets.utils.get_sampling_params(default_rng(7), 6, 0.25, 1000, 130, tokenizer)
    requests = Load(1000, 130, 6, range_ratio=0.25, seed=7).requests()
    assert requests.input_len.tolist() == [1223, 1063, 1092, 1199, 1039, 1138]
    assert requests.output_len.tolist() == [152, 112, 100, 117, 116, 155]


@pytest.mark.parametrize(
    ("rate", "burstiness", "expected"),
    [
        # vllm.benchmarks.serve.get_request after np.random.seed(3), its sleeps on a clock of our own
        (2.0, 1.0, [0.3757175427047059, 0.9538873357466855, 1.1152787322179165, 1.4509767197276915, 2.5]),
        (2.0, 0.5, [0.37850172650132663, 0.4830286397713053, 2.4772475081820176, 2.496728193034528, 2.5]),
        (4.0, inf, [0.25, 0.5, 0.75, 1.0, 1.25]),
        (inf, 1.0, [0, 0, 0, 0, 0]),
    ],
)
def test_arrivals_are_those_that_vllm_draws(rate: float, burstiness: float, expected: list[float]) -> None:
    requests = replace(SMALL, request_rate=rate, burstiness=burstiness, seed=3).requests()
    assert requests.arrival_s.tolist() == pytest.approx(expected, rel=1e-12)


def test_an_open_loop_sends_as_many_requests_as_vllm_does() -> None:
    # DEFAULT_NUM_PROMPTS of vllm/benchmarks/datasets/datasets.py: 1000 requests at 80 requests/s take 12.5 s
    assert Load.open_loop(80.0, 1024, 256).requests().arrival_s[-1] == pytest.approx(12.5)
    assert Load.open_loop(80.0, 1024, 256, num_prompts=400).count == 400


def test_whole_floats_of_a_data_frame_are_integers() -> None:
    assert repr(Load.closed_loop(32.0, np.float64(1024), np.int64(256))) == repr(Load.closed_loop(32, 1024, 256))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--max-concurrency must be at least 1, got 0"):
        Load.closed_loop(0, 1024, 256)


def test_equal_lengths_without_a_range() -> None:
    requests = Load(1024, 128, 50).requests()
    assert set(requests.input_len) == {1024}
    assert set(requests.output_len) == {128}


@given(ratio=st.floats(0, 0.95), length=st.integers(20, 5000), kind=st.sampled_from(["symmetric", "below"]))
def test_ranges_of_both_kinds(ratio: float, length: int, kind: LengthDistribution) -> None:
    workload = Load(length, length, 200, range_ratio=ratio, length_distribution=kind)
    requests = workload.requests()
    low, high = (
        (ratio * length - 1, length) if kind == "below" else ((1 - ratio) * length - 1, (1 + ratio) * length + 1)
    )
    for lengths in (requests.input_len, requests.output_len):
        assert low <= lengths.min()
        assert lengths.max() <= high
    assert (requests.input_len + requests.output_len).max() <= workload.max_total_len


def test_named_distributions() -> None:
    # uniform from 0.8 L to L has the mean 0.9 L
    kind, ratio = NAMED_DISTRIBUTIONS["uniform-0.8-1"]
    uniform = Load(1000, 500, 20_000, range_ratio=ratio, length_distribution=kind).requests()
    assert (uniform.input_len.min(), uniform.input_len.max()) == (800, 1000)
    assert uniform.output_len.mean() == pytest.approx(450, rel=0.01)
    # only means are known of conversations: they are kept. Beta(a, 4 a) has the mean 1/5 and the standard deviation
    # 0.4 / sqrt(5 a + 1): of prompts, a = 0.3, 2 / sqrt(2.5) = 1.265 times the mean; of answers, 0.7, 0.943 times
    kind, ratio = NAMED_DISTRIBUTIONS["sharegpt"]
    talk = Load(215, 198, 20_000, range_ratio=ratio, length_distribution=kind).requests()
    assert talk.input_len.mean() == pytest.approx(215, rel=0.01)
    assert talk.output_len.mean() == pytest.approx(198, rel=0.01)
    assert talk.input_len.std() == pytest.approx(1.265 * 215, rel=0.02)
    assert talk.output_len.std() == pytest.approx(0.943 * 198, rel=0.02)
    # most prompts are short and few long: of 300 of ShareGPT in LLMServingSim 0.15 and 4.1 times the mean
    assert np.quantile(talk.input_len, 0.5) < 0.5 * 215 and np.quantile(talk.input_len, 0.9) > 2.5 * 215
    assert max(talk.input_len.max() / 215, talk.output_len.max() / 198) <= 5.1
    assert talk.input_len.min() >= 4


def test_the_same_seed_gives_the_same_requests() -> None:
    workload = Load(100, 100, 30, request_rate=3, range_ratio=0.5, seed=1)
    one, two, other = workload.requests(), workload.requests(), replace(workload, seed=2).requests()
    assert np.array_equal(one.input_len, two.input_len)
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.input_len, other.input_len)


def test_the_rate_is_met_exactly_and_gaps_are_as_uneven_as_asked() -> None:
    for burstiness in (0.5, 1.0, 4.0):
        arrival_s = replace(SMALL, num_prompts=5000, request_rate=10, burstiness=burstiness).requests().arrival_s
        assert arrival_s[-1] == pytest.approx(500)
        gaps = np.diff(arrival_s)
        # the coefficient of variation of a gamma distribution is 1 / sqrt(shape)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


def test_gaps_too_small_for_a_number_are_none() -> None:
    assert not replace(SMALL, request_rate=10, burstiness=1e-12, seed=3).requests().arrival_s.any()


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("input_len", 0, "--input-len"),
        ("output_len", -1, "--output-len"),
        ("num_prompts", 0, "--num-prompts"),
        ("max_concurrency", 0, "--max-concurrency"),
        ("request_rate", 0.0, "--request-rate"),
        ("request_rate", float("nan"), "--request-rate"),
        ("request_rate", 5e-324, "--request-rate"),
        ("burstiness", 0.0, "--burstiness"),
        ("burstiness", 5e-324, "--burstiness"),
        ("range_ratio", 1.0, "--random-range-ratio"),
        ("range_ratio", -0.1, "--random-range-ratio"),
        ("range_ratio", 0.95, "--random-range-ratio"),  # of ten tokens: a prompt of none would be possible
        ("seed", -1, "--seed"),
        ("seed", 2**32, "--seed"),
        ("max_concurrency", "32", "--max-concurrency must be an integer, got '32'"),
        ("input_len", 1024.5, "--input-len must be an integer, got 1024.5"),
        ("request_rate", "8", "--request-rate must be a number"),
    ],
)
def test_what_the_benchmark_refuses_is_refused(field: str, value: float, flag: str) -> None:
    with pytest.raises(InputError, match=flag) as refusal:
        replace(SMALL, **{field: value})
    assert refusal.value.hint


def test_the_longest_requests_are_those_at_the_upper_ends() -> None:
    # 1.25 x 1000 = 1250; 1.25 x 130 = 162.5, rounded up; the shared prefix is no part of the range
    longest = Load(1000, 130, 40, range_ratio=0.25, prefix_len=16).longest(2)
    assert (longest.input_len, longest.output_len, longest.prefix_len, longest.num_prompts) == (1250, 163, 16, 2)
    requests = longest.requests()
    assert requests.input_len.tolist() == [1266, 1266]
    assert requests.output_len.tolist() == [163, 163]
    assert Load(1000, 130, 40, range_ratio=0.8, length_distribution="below").longest(1).max_total_len == 1130

"""The replay with speculative decoding: by hand, beside the step-by-step reference, and in its limits."""

from dataclasses import replace
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_scheduler import reference_replay
from test_scheduler import ROOMY, Linear, cases, serve, times

from planner.errors import InputError
from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits
from planner.simulator.record import Pace
from planner.workload.load import Load

THREE_OF_FOUR = replace(ROOMY, decode_tok=4, tokens_per_step=3.0)


def test_a_step_brings_three_tokens() -> None:
    # second 1: the prompt and its first token; then 3 tokens a second: 9 more come in seconds 2, 3 and 4
    assert times(serve([(5, 10)], THREE_OF_FOUR)) == [(1.0, 4.0)]
    # 8 more take three steps too, the last of which overshoots by one
    assert times(serve([(5, 9)], THREE_OF_FOUR)) == [(1.0, 4.0)]
    assert times(serve([(5, 7)], THREE_OF_FOUR)) == [(1.0, 3.0)]


def test_a_client_sees_one_gap_for_each_step() -> None:
    served = serve([(5, 10), (5, 10)], THREE_OF_FOUR)
    gaps_s, tokens = served.token_runs.gaps()
    # vllm bench counts the gaps between chunks of a stream: 3 of one second for each request, not 9
    assert np.repeat(gaps_s, tokens).tolist() == [1.0] * 6
    # TPOT is spread over all tokens: 3 s / 9
    np.testing.assert_allclose(served.tpot_s, 1 / 3)


def test_two_and_a_half_tokens_come_as_two_and_three() -> None:
    limits = replace(ROOMY, decode_tok=4, tokens_per_step=2.5)
    # the step of the prompt is the first of the row: floor(2.5) = 2, so 3, 2, 3, 2, ... follow
    assert times(serve([(5, 1 + 3)], limits)) == [(1.0, 2.0)]
    assert times(serve([(5, 1 + 5)], limits)) == [(1.0, 3.0)]
    assert times(serve([(5, 1 + 6)], limits)) == [(1.0, 4.0)]
    assert times(serve([(5, 1 + 250)], limits)) == [(1.0, 101.0)]


def test_drafts_take_room_in_the_budget() -> None:
    # 16 tokens a step hold the 4 tokens of four requests each; the fifth waits until they have ended at 1 + 3 s
    limits = SchedulerLimits(
        max_num_seqs=8, max_num_batched_tokens=16, kv_cache_tokens=10_000, decode_tok=4, tokens_per_step=4
    )
    ends = [end for _, end in times(serve([(2, 13)] * 5, limits))]
    assert ends[:4] == [4.0] * 4
    assert ends[4] == 8.0


@pytest.mark.parametrize(("tokens_per_step", "decode_tok"), [(0.5, 4), (4.5, 4), (1.5, 1), (99.0, 99)])
def test_a_step_yields_between_one_token_and_all_that_it_computes(tokens_per_step: float, decode_tok: int) -> None:
    with pytest.raises(InputError, match="tokens per step"):
        SchedulerLimits(8, 64, 10_000, tokens_per_step=tokens_per_step, decode_tok=decode_tok)


def test_a_request_needs_room_for_its_last_draft() -> None:
    # 10 + 7 - 1 = 16 tokens are computed at least, and up to 3 drafted ones beyond: two blocks of 16, not one
    fits = replace(ROOMY, kv_cache_tokens=16)
    assert serve([(10, 7)], fits).duration_s == 7.0
    with pytest.raises(InputError, match="does not fit"):
        serve([(10, 7)], replace(fits, decode_tok=4, tokens_per_step=2.0))


@given(st.floats(1, 9), st.integers(0, 1000), st.integers(1, 500))
def test_the_pace_adds_up(each: float, taken: int, ticks: int) -> None:
    pace = Pace(each)
    pace.take(taken)
    steps = pace.steps_for(ticks)
    assert pace.ticks(steps) >= ticks
    assert steps == 1 or pace.ticks(steps - 1) < ticks
    assert pace.ticks(7) == floor((taken + 7) * each) - floor(taken * each)


@st.composite
def drafting(draw: st.DrawFn) -> tuple[Linear, Load, SchedulerLimits, Client]:
    """A case of the reference with drafts. Steps of uneven gain are compared where they last equally long."""
    timer, workload, limits, client = draw(cases())
    decode_tok = draw(st.sampled_from((2, 3, 5)))
    tokens_per_step = draw(st.sampled_from((1.0, 2.0, 1.25, decode_tok * 0.7)))
    if not float(tokens_per_step).is_integer():
        timer = replace(timer, context_s=0.0)
    return (
        timer,
        workload,
        replace(
            limits,
            decode_tok=decode_tok,
            tokens_per_step=max(tokens_per_step, 1.0),
            max_num_batched_tokens=limits.max_num_batched_tokens + 2 * decode_tok,
            kv_cache_tokens=limits.kv_cache_tokens + decode_tok,
        ),
        client,
    )


@settings(max_examples=200, deadline=None)
@given(drafting())
def test_every_step_ends_when_the_reference_says(case: tuple[Linear, Load, SchedulerLimits, Client]) -> None:
    timer, workload, limits, client = case
    served = replay(timer, workload, limits, client)
    expected = reference_replay(timer, workload.requests(), limits, workload.max_concurrency, client)
    same = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(served.first_token_s, [t[0] for t in expected.token_times_s], **same)
    np.testing.assert_allclose(served.end_s, [t[-1] for t in expected.token_times_s], **same)
    assert served.preemptions.tolist() == expected.preemptions
    assert served.kv_cache_usage_peak == pytest.approx(expected.kv_cache_usage_peak)
    chunks_s = np.sort([time_s for times_s in expected.token_times_s for time_s in sorted(set(times_s))[1:]])
    emitted_s, tokens = served.token_runs.emissions()
    np.testing.assert_allclose(np.sort(np.repeat(emitted_s, tokens)), chunks_s, **same)


def test_uneven_gains_stay_near_the_reference_where_contexts_count() -> None:
    # a context that is one token off for each request changes a step by less than one in a thousand
    limits = replace(ROOMY, decode_tok=4, tokens_per_step=2.3)
    workload = Load(40, 200, 30, max_concurrency=5, range_ratio=0.5)
    served = replay(Linear(), workload, limits)
    expected = reference_replay(Linear(), workload.requests(), limits, 5)
    np.testing.assert_allclose(served.end_s, [t[-1] for t in expected.token_times_s], rtol=1e-3)


def test_decoding_takes_as_much_less_time_as_there_are_tokens_in_a_step() -> None:
    # steps of one length: 1 + 999 steps of one token, 1 + 333 of three
    plain, drafted = serve([(5, 1000)]), serve([(5, 1000)], THREE_OF_FOUR)
    assert (plain.duration_s, drafted.duration_s) == (1000.0, 334.0)
    assert drafted.decode.steps == 333


def test_drafts_cost_no_more_events_than_tokens() -> None:
    timer = Linear()
    replay(timer, Load(1024, 1024, 2000, max_concurrency=256), SchedulerLimits(
        256, 8192, 10**7, decode_tok=4, tokens_per_step=2.53
    ))  # fmt: skip
    assert timer.calls < 12_000

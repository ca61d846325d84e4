"""The replay beside hand-made schedules, a step-by-step reference, queueing theory and a published run.

``benchmarks/replay_against_vllm.py`` compares it with vLLM's own scheduler where vLLM is installed.
"""

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_scheduler import reference_replay

from planner.errors import InputError
from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.simulator.record import Replay, Step
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Requests


@dataclass
class Second:
    """Every step takes one second; the batches are kept."""

    batches: list[Batch] = field(default_factory=list)

    def step_s(self, batch: Batch) -> float:
        self.batches.append(batch)
        return 1.0


@dataclass
class Linear:
    """A step time that is linear in everything a batch counts."""

    base_s: float = 5.1e-3
    decode_s: float = 1.3e-5
    context_s: float = 1.7e-8
    token_s: float = 2.3e-5
    pair_s: float = 1.1e-9
    prefill_s: float = 0.0
    finishing_s: float = 0.0
    calls: int = 0

    def step_s(self, batch: Batch) -> float:
        self.calls += 1
        return (
            self.base_s
            + self.decode_s * batch.decode_seqs
            + self.context_s * batch.decode_context_tok
            + self.token_s * batch.prefill_tok
            + self.pair_s * batch.prefill_pair_tok
            + self.prefill_s * batch.prefill_seqs
            + self.finishing_s * batch.prefill_finishing
        )


ROOMY = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=64, kv_cache_tokens=10_000)


def serve(
    lengths: list[tuple[int, int]],
    limits: SchedulerLimits = ROOMY,
    *,
    timer: StepTimer | None = None,
    arrival_s: list[float] | None = None,
    max_concurrency: int | None = None,
    client: Client | None = None,
    priority: list[int] | None = None,
) -> Replay:
    """Serve requests of these (input, output) lengths."""
    requests = Requests(
        input_len=np.array([prompt for prompt, _ in lengths]),
        output_len=np.array([output for _, output in lengths]),
        arrival_s=np.array(arrival_s or [0.0] * len(lengths)),
        priority=None if priority is None else np.array(priority),
    )
    workload = Load(1, 1, len(lengths), max_concurrency=max_concurrency)
    return replay(timer or Second(), replace(workload, recorded=requests), limits, client)


def times(served: Replay) -> list[tuple[float, float]]:
    """First and last token of every request."""
    return list(zip(served.first_token_s.tolist(), served.end_s.tolist(), strict=True))


# Schedules that fit on the back of an envelope. Every step takes one second.


def test_two_prompts_share_a_budget_of_eight_tokens() -> None:
    # step 1: six tokens of A, two of B           A samples its 1st
    # step 2: A decodes, the other four of B      A its 2nd, B its 1st
    # step 3: both decode                         A its 3rd, B its 2nd
    timer = Second()
    served = serve([(6, 3), (6, 2)], replace(ROOMY, max_num_batched_tokens=8), timer=timer)
    assert times(served) == [(1, 3), (2, 3)]
    assert timer.batches == [
        # query-key pairs: A 1+2+...+6 = 21, B 1+2 = 3
        Batch(0, 0, 2, 8, 24, 1),
        # A's context is seven with the new token; B's tokens see 3+4+5+6 = 18
        Batch(1, 7, 1, 4, 18, 1),
        Batch(2, 8 + 7),
    ]


@dataclass
class Prompts:
    """A step takes one second, and three with a prompt in it."""

    def step_s(self, batch: Batch) -> float:
        return 3.0 if batch.prefill_tok else 1.0


def test_prompts_take_the_budget_that_decoding_leaves() -> None:
    """The order of ``vllm/v1/core/sched/scheduler.py``: running requests first, then waiting ones, in one budget."""
    # step 1, to 3:   four tokens of A                          A samples its 1st
    # step 2, to 6:   A, seven of B's sixteen                   A its 2nd
    # step 3, to 9:   A, seven more of B                        A its 3rd
    # step 4, to 12:  A, the other two of B, all five of C      A its 4th, B and C their 1st
    # step 5, to 13:  all decode                                A its 5th, B and C their 2nd and last
    # step 6, to 14:  A decodes                                 A its 6th and last
    eight = replace(ROOMY, max_num_batched_tokens=8)
    served = serve([(4, 6), (16, 2), (5, 2)], eight, timer=Prompts(), arrival_s=[0, 1, 2])
    assert times(served) == [(3, 14), (12, 13), (12, 13)]
    gaps_s, tokens = served.token_runs.gaps()
    # A's gaps in steps 2, 3 and 4 hold a prompt; its gaps in steps 5 and 6, and those of B and C, do not
    assert sorted(np.repeat(gaps_s, tokens).tolist()) == [1, 1, 1, 1, 3, 3, 3]


def test_one_output_token_needs_no_decode_step() -> None:
    served = serve([(5, 1)])
    assert times(served) == [(1, 1)]
    assert len(served.tpot_s) == 0
    assert served.decode.batch is None


def test_a_place_is_taken_again_in_the_step_after_the_client_has_heard() -> None:
    # A and B start together. A ends at 2, and C is sent at 2. The step from 2 to 3 was scheduled by then; C is
    # prefilled from 3 to 4.
    served = serve([(4, 2), (4, 4), (4, 2)], max_concurrency=2)
    assert served.sent_s.tolist() == [0, 0, 2]
    assert times(served) == [(1, 2), (1, 4), (4, 5)]


def test_asynchronous_scheduling_sees_a_request_one_step_later() -> None:
    # As above, but the step from 3 to 4 was scheduled at 2, when C was not there yet.
    served = serve([(4, 2), (4, 4), (4, 2)], replace(ROOMY, async_scheduling=True), max_concurrency=2)
    assert times(served) == [(1, 2), (1, 4), (5, 6)]


def test_asynchronous_scheduling_refills_a_place_one_step_later() -> None:
    # Two places, C waits from the start. A ends at 2; the step from 2 to 3 is already planned with A's place
    # taken, so that C is prefilled from 3 to 4 instead of from 2 to 3.
    two = replace(ROOMY, max_num_seqs=2)
    lengths = [(4, 2), (4, 6), (4, 2)]
    assert times(serve(lengths, two))[2] == (3, 4)
    assert times(serve(lengths, replace(two, async_scheduling=True)))[2] == (4, 5)


def test_an_idle_engine_starts_at_once() -> None:
    served = serve([(4, 3), (4, 3)], max_concurrency=1)
    assert times(served) == [(1, 3), (4, 6)]
    served = serve([(4, 3), (4, 3)], arrival_s=[0.25, 10.5])
    assert times(served) == [(1.25, 3.25), (11.5, 13.5)]


def test_an_arrival_ends_a_run_of_decode_steps() -> None:
    # A decodes alone from 1 on; B comes at 3.5 and is prefilled in the step from 4 to 5.
    served = serve([(4, 9), (4, 2)], arrival_s=[0, 3.5])
    assert times(served) == [(1, 9), (5, 6)]
    assert served.ttft_s[1] == 1.5


def test_delays_of_the_client() -> None:
    # sent at 0, seen at 0.5, sampled at 1.5, received at 1.75; the next is sent then
    served = serve([(4, 2), (4, 2)], max_concurrency=1, client=Client(request_s=0.5, response_s=0.25))
    assert served.sent_s.tolist() == [0, 2.75]
    assert times(served) == [(1.75, 2.75), (4.5, 5.5)]


def test_the_youngest_is_preempted_and_computed_again() -> None:
    # Four blocks of four tokens. A and B (8 + 5 tokens each) take two blocks each in step 1.
    # At 1, A needs a block for its ninth token: B, with one token sampled, gives way.
    # A then runs alone and ends at 5, holding three blocks; B needs three for its nine tokens and has to wait.
    # Step 6 computes B's nine tokens again and samples its 2nd; its 5th and last comes at 9.
    timer = Second()
    served = serve([(8, 5), (8, 5)], replace(ROOMY, kv_cache_tokens=16, block_size=4), timer=timer)
    assert times(served) == [(1, 5), (1, 9)]
    assert served.preemptions.tolist() == [0, 1]
    assert served.kv_cache_usage_peak == 1
    assert timer.batches[-3] == Batch(0, 0, 1, 9, 45, 1)
    gaps_s, tokens = served.token_runs.gaps()
    assert sorted(np.repeat(gaps_s, tokens)) == [1, 1, 1, 1, 1, 1, 1, 5]  # B waited from 1 to 6


def test_a_prompt_is_admitted_when_all_of_it_fits() -> None:
    # Four blocks of four tokens, eight tokens a step. A (5 + 3) takes two blocks; B (12 + 1) needs three.
    # As a whole, B waits until A ends at 3, and takes the steps to 4 (8 tokens) and 5 (4 tokens).
    tight = replace(ROOMY, kv_cache_tokens=16, block_size=4, max_num_batched_tokens=8)
    whole = serve([(5, 3), (12, 1)], tight)
    assert times(whole) == [(1, 3), (5, 5)]
    assert whole.preemptions.sum() == 0
    # By its first chunk, B gets three tokens in step 1, finds no block for the next seven in step 2 and is
    # preempted; step 3 computes seven tokens, and the last five follow when A has ended.
    chunk = serve([(5, 3), (12, 1)], replace(tight, scheduler_reserve_full_isl=False))
    assert times(chunk) == [(1, 3), (4, 4)]
    assert chunk.preemptions.tolist() == [0, 1]


def test_v0_lets_everybody_wait_for_a_prompt() -> None:
    # B comes at 0.5. V1 computes it beside A's decode; V0 gives it the step from 1 to 2 alone.
    lengths, arrival_s = [(4, 4), (4, 4)], [0, 0.5]
    assert times(serve(lengths, arrival_s=arrival_s)) == [(1, 4), (2, 5)]
    timer = Second()
    v0 = replace(ROOMY, prefill_first=True)
    served = serve(lengths, v0, timer=timer, arrival_s=arrival_s)
    assert times(served) == [(1, 5), (2, 5)]
    assert timer.batches[1] == Batch(0, 0, 1, 4, 10, 1)
    gaps_s, tokens = served.token_runs.gaps()
    assert sorted(np.repeat(gaps_s, tokens)) == [1, 1, 1, 1, 1, 2]


def test_an_admission_leaves_the_watermark_free() -> None:
    # Ten blocks of four tokens. A takes four of them, and B fills the other six, or waits for A's second token.
    tight = replace(ROOMY, kv_cache_tokens=40, block_size=4)
    assert times(serve([(16, 2), (24, 1)], tight)) == [(1, 2), (1, 1)]
    assert times(serve([(16, 2), (24, 1)], replace(tight, watermark=0.1))) == [(1, 2), (3, 3)]
    assert times(serve([(16, 2), (20, 1)], replace(tight, watermark=0.1))) == [(1, 2), (1, 1)]


def test_without_chunking_a_prompt_waits_for_room_in_the_budget() -> None:
    # Ten tokens a step: six of A, then A's decode beside eight of B.
    whole = replace(ROOMY, max_num_batched_tokens=10, enable_chunked_prefill=False)
    assert times(serve([(6, 3), (8, 1)], whole)) == [(1, 3), (2, 2)]
    assert times(serve([(6, 3), (8, 1)], replace(whole, enable_chunked_prefill=True))) == [(1, 3), (2, 2)]
    timer = Second()
    serve([(6, 3), (8, 1)], whole, timer=timer)
    assert [batch.prefill_tok for batch in timer.batches] == [6, 8, 0]


def test_places_bound_what_runs() -> None:
    # Two places, four requests of three steps each: two rounds.
    served = serve([(4, 3)] * 4, replace(ROOMY, max_num_seqs=2))
    assert times(served) == [(1, 3), (1, 3), (4, 6), (4, 6)]


def test_the_prefix_cache_spares_whole_blocks() -> None:
    # Half of 72 tokens is 36, two blocks of 16: 40 tokens are left, and see 32 + 1, ..., 32 + 40.
    timer = Second()
    serve([(72, 1)], replace(ROOMY, prefix_cache_hit_rate=0.5), timer=timer)
    assert timer.batches == [Batch(0, 0, 1, 40, 40 * 32 + 40 * 41 / 2, 1)]
    # a prompt that is cached in full still computes its last block: 64 of 64 tokens, but never the last one
    timer = Second()
    serve([(64, 1)], replace(ROOMY, prefix_cache_hit_rate=1.0), timer=timer)
    assert timer.batches[0].prefill_tok == 16


def test_ranks_are_dealt_requests_in_turn() -> None:
    # One place each: A and C on the first rank, B and D on the second.
    served = serve([(4, 3), (4, 5), (4, 1), (4, 1)], replace(ROOMY, max_num_seqs=1, data_parallel_size=2))
    assert times(served) == [(1, 3), (1, 5), (4, 4), (6, 6)]


def test_average_batches() -> None:
    # one prefill step of 2 x 4 tokens, three decode steps of two requests at contexts 5, 6 and 7
    served = serve([(4, 4), (4, 4)])
    assert (served.prefill.steps, served.prefill.time_s) == (1, 1)
    assert served.prefill.batch == Batch(0, 0, 2, 8, 20, 2)
    assert (served.decode.steps, served.decode.time_s) == (3, 3)
    assert served.decode.batch == Batch(2, 12)


def test_a_preempted_request_finds_its_blocks_again() -> None:
    # 5 blocks of 4. Step 1: A (8 tokens) and B (8) take two each; step 2: A takes the last for its ninth token, and B,
    # which needs one too, goes: all its 8 tokens are full blocks. A ends with its 4th token in step 4, so that step 5
    # admits B. Of its 9 tokens 8 are found, and one is computed; without the cache all 9.
    limits = SchedulerLimits(2, 100, 20, block_size=4, scheduler_reserve_full_isl=False)
    kept, lost = (serve([(8, 4), (8, 3)], replace(limits, enable_prefix_caching=on)) for on in (True, False))
    assert kept.preemptions.tolist() == lost.preemptions.tolist() == [0, 1]
    assert kept.prefill.steps == lost.prefill.steps == 2
    assert (kept.prefill.batch.prefill_tok, lost.prefill.batch.prefill_tok) == (17 // 2, 25 // 2)  # means


# By priority: the lower number comes first.

BY_PRIORITY = replace(ROOMY, scheduling_policy="priority")


def test_who_waits_is_admitted_by_priority() -> None:
    # One place, all there from the beginning: C (0), then A and D (1) as they were sent, then B (2).
    lengths, priority = [(4, 2)] * 4, [1, 2, 0, 1]
    one = replace(BY_PRIORITY, max_num_seqs=1)
    assert times(serve(lengths, one, priority=priority)) == [(3, 4), (7, 8), (1, 2), (5, 6)]
    assert times(serve(lengths, replace(one, scheduling_policy="fcfs"), priority=priority)) == [
        (1, 2), (3, 4), (5, 6), (7, 8),
    ]  # fmt: skip


def test_nobody_is_preempted_for_who_waits() -> None:
    # A runs in the one place for five steps. B, which matters more, comes at 1.5 and waits for its end, C (9) for both.
    one = replace(BY_PRIORITY, max_num_seqs=1)
    served = serve([(4, 5), (4, 1), (4, 1)], one, arrival_s=[0, 1.5, 1.2], priority=[5, 0, 9])
    assert times(served)[:2] == [(1, 5), (6, 6)]


def test_the_last_by_priority_goes() -> None:
    # 6 blocks of 4; A (0), B (5) and C (0) have prompts of 8, 7 and 8 tokens: two blocks each, none is free.
    # Step 2: A needs a third block. B is the last by priority, and goes: A takes one of its two, C the other.
    # Steps 3 and 4: A and C decode and end with their 4th token in step 4. Step 5: B computes 7 + 1 tokens, and ends
    # with its second token.
    limits = SchedulerLimits(8, 64, 24, block_size=4, scheduling_policy="priority", scheduler_reserve_full_isl=False)
    served = serve([(8, 4), (7, 2), (8, 4)], limits, priority=[0, 5, 0])
    assert served.preemptions.tolist() == [0, 1, 0]
    assert times(served) == [(1, 4), (1, 5), (1, 4)]
    # First come, first served: C was admitted last, and goes instead.
    served = serve([(8, 4), (7, 2), (8, 4)], replace(limits, scheduling_policy="fcfs"), priority=[0, 5, 0])
    assert served.preemptions.tolist() == [0, 0, 1]


def test_the_step_ends_with_who_finds_no_block_and_is_the_last() -> None:
    # 5 blocks of 4. Step 1: A (0) and B (5) take two each for prompts of 6 and 7 tokens. C (0) comes, and is admitted
    # in step 2 with the fifth. Step 3: A has room for its 8th token, B has none for its 9th, and is the last itself. It
    # goes, and the step ends: C, which has room for its 4th, misses it. Step 4: A takes a block and ends, C goes on; B
    # does not fit. Step 5: C ends, B computes 7 + 2 tokens and samples its third; its fourth comes in step 6.
    limits = SchedulerLimits(8, 64, 20, block_size=4, scheduling_policy="priority", scheduler_reserve_full_isl=False)
    timer = Second()
    lengths, arrival_s = [(6, 4), (7, 4), (3, 3)], [0, 0, 0.5]
    served = serve(lengths, limits, timer=timer, arrival_s=arrival_s, priority=[0, 5, 0])
    assert [batch.decode_seqs for batch in timer.batches] == [0, 2, 1, 2, 1, 1]
    assert served.preemptions.tolist() == [0, 1, 0]
    assert times(served) == [(1, 4), (1, 6), (2, 5)]
    gaps_s, tokens = served.token_runs.gaps()
    assert sorted(np.repeat(gaps_s, tokens)) == [1, 1, 1, 1, 1, 1, 2, 3]


# Random workloads, token for token beside the reference.


@st.composite
def cases(draw: st.DrawFn) -> tuple[Linear, Load, SchedulerLimits, Client]:
    """A small load on engines that are short of places, budget or blocks."""

    def chosen(*values: object) -> object:
        return draw(st.sampled_from(values))

    # uneven seconds: a tie that rounding decides would tell nothing
    coefficients = [draw(st.integers(1, 999)) * 1.0000711e-6 for _ in range(6)]
    timer = Linear(draw(st.integers(1, 99)) * 1.0000417e-4, *coefficients)
    input_len, output_len = draw(st.integers(1, 40)), draw(st.integers(1, 25))
    concurrency = chosen(None, 1, 2, 3, 8)
    rate = chosen(inf, 3.0, 41.0, 293.0)
    workload = Load(
        input_len,
        output_len,
        num_prompts=draw(st.integers(1, 20)),
        max_concurrency=concurrency,
        request_rate=rate,
        burstiness=chosen(0.5, 1.0, 3.0),
        range_ratio=chosen(0.3, 0.8),
        length_distribution="below",
        seed=draw(st.integers(0, 999)),
    )
    longest = input_len + output_len
    seqs = draw(st.integers(1, 9))
    prefill_first, chunked = draw(st.booleans()), draw(st.booleans())
    budget = seqs + draw(st.integers(0, 40))
    block_size = chosen(1, 2, 4, 16)
    watermark = chosen(0.0, 0.0, 0.01, 0.1)
    # ranks that end at one moment would be a tie too
    ranks = 1 if concurrency is not None and rate == inf else chosen(1, 1, 2, 3)
    limits = SchedulerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget if chunked and not prefill_first else max(budget, longest),
        kv_cache_tokens=int((longest + 2 * block_size) / (1 - watermark)) + chosen(0, 7, 29, 71, 9999),
        block_size=block_size,
        enable_chunked_prefill=chunked,
        prefill_first=prefill_first,
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=watermark,
        async_scheduling=not prefill_first and draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
        prefix_cache_hit_rate=chosen(0.0, 0.0, 0.5),
        data_parallel_size=ranks,
    )
    client = chosen(Client(), Client(0.0137, 0.0271), Client(0.0, 0.0193))
    return timer, workload, limits, client


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_token_comes_when_the_reference_says(case: tuple[Linear, Load, SchedulerLimits, Client]) -> None:
    timer, workload, limits, client = case
    served = replay(timer, workload, limits, client)
    expected = reference_replay(timer, workload.requests(), limits, workload.max_concurrency, client)
    same = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(served.sent_s, expected.sent_s, **same)
    np.testing.assert_allclose(served.first_token_s, [t[0] for t in expected.token_times_s], **same)
    np.testing.assert_allclose(served.end_s, [t[-1] for t in expected.token_times_s], **same)
    assert served.preemptions.tolist() == expected.preemptions
    assert served.kv_cache_usage_peak == pytest.approx(expected.kv_cache_usage_peak)
    gaps_s, tokens = served.token_runs.gaps()
    np.testing.assert_allclose(np.sort(np.repeat(gaps_s, tokens)), np.sort(expected.gaps_s), rtol=1e-7, atol=1e-12)
    emitted_s, tokens = served.token_runs.emissions()
    later_s = [time_s for token_times_s in expected.token_times_s for time_s in token_times_s[1:]]
    np.testing.assert_allclose(np.sort(np.repeat(emitted_s, tokens)), np.sort(later_s), **same)


def test_the_random_cases_do_preempt_and_chunk() -> None:
    # the reference is only worth its while where things are tight
    limits = SchedulerLimits(6, 20, 120, block_size=4)
    workload = Load(30, 25, 20, range_ratio=0.8, length_distribution="below")
    served = replay(Linear(), workload, limits)
    assert served.preemptions.sum() > 3
    assert served.prefill.steps > workload.num_prompts


# What must hold for any timer.


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_so_it_is_by_priority(case: tuple[Linear, Load, SchedulerLimits, Client], data: st.DataObject) -> None:
    timer, workload, limits, client = case
    # what a request that was preempted finds again, and the rule of another engine, are not of this page
    limits = replace(limits, scheduling_policy="priority", prefill_first=False, enable_prefix_caching=False)
    count = workload.num_prompts
    chosen = data.draw(st.lists(st.sampled_from([0, 1, 5]), min_size=count, max_size=count))
    requests = replace(workload.requests(), priority=np.array(chosen))
    served = replay(timer, replace(workload, recorded=requests), limits, client)
    expected = reference_replay(timer, requests, limits, workload.max_concurrency, client)
    same = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(served.first_token_s, [t[0] for t in expected.token_times_s], **same)
    np.testing.assert_allclose(served.end_s, [t[-1] for t in expected.token_times_s], **same)
    assert served.preemptions.tolist() == expected.preemptions
    gaps_s, tokens = served.token_runs.gaps()
    np.testing.assert_allclose(np.sort(np.repeat(gaps_s, tokens)), np.sort(expected.gaps_s), rtol=1e-7, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(-3, 3))
def test_equal_priorities_are_first_come_first_served(
    case: tuple[Linear, Load, SchedulerLimits, Client], priority: int
) -> None:
    timer, workload, limits, client = case
    limits = replace(limits, async_scheduling=False)  # then vLLM may also preempt who has just ended
    requests = workload.requests()
    alike = replace(requests, priority=np.full(workload.num_prompts, priority))
    fcfs = replay(timer, replace(workload, recorded=requests), limits, client)
    served = replay(timer, replace(workload, recorded=alike), replace(limits, scheduling_policy="priority"), client)
    np.testing.assert_allclose(times(served), times(fcfs), rtol=1e-9)
    assert served.preemptions.tolist() == fcfs.preemptions.tolist()


@settings(max_examples=60, deadline=None)
@given(cases(), st.floats(1.0, 5.0))
def test_a_slower_engine_is_never_faster(case: tuple[Linear, Load, SchedulerLimits, Client], factor: float) -> None:
    timer, workload, limits, _ = case
    workload = replace(workload, max_concurrency=None, request_rate=inf)  # else it also meets other requests
    slower = replace(timer, base_s=timer.base_s * factor, token_s=timer.token_s * factor)
    fast, slow = replay(timer, workload, limits), replay(slower, workload, limits)
    assert (slow.first_token_s >= fast.first_token_s * (1 - 1e-9)).all()
    assert (slow.end_s >= fast.end_s * (1 - 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_every_token_is_sent_once(case: tuple[Linear, Load, SchedulerLimits, Client]) -> None:
    served = replay(*case)
    runs = served.token_runs
    assert (runs.steps * runs.tokens).sum() == (served.output_len - 1).sum()
    assert (served.arrival_s <= served.sent_s).all()
    assert (served.sent_s < served.first_token_s).all()
    assert (served.first_token_s <= served.end_s).all()
    assert 0 < served.kv_cache_usage_peak <= 1


def test_littles_law() -> None:
    # requests in flight = arrivals per second x time in the system; 32 are in flight but for the last ones
    workload = Load(512, 256, 3200, max_concurrency=32, range_ratio=0.5)
    served = replay(Linear(), workload, SchedulerLimits(64, 2048, 1_000_000))
    throughput = len(served.sent_s) / served.duration_s
    assert throughput * served.e2el_s.mean() == pytest.approx(32, rel=0.02)


def test_a_single_server_queue() -> None:
    # One place, one output token, one second a step, Poisson arrivals at half the capacity: M/D/1.
    # Pollaczek-Khinchine: the mean wait is rho / (2 (1 - rho)) = 0.5 services, so TTFT is 1.5 s.
    workload = Load(4, 1, 40_000, request_rate=0.5, seed=5)
    served = replay(Second(), workload, replace(ROOMY, max_num_seqs=1))
    assert served.ttft_s.mean() == pytest.approx(1.5, rel=0.02)


def test_a_queue_with_two_priorities() -> None:
    # The same server with two classes of a quarter of its capacity each. Cobham (1954), nobody is interrupted:
    # W(k) = R / ((1 - s(k-1)) (1 - s(k))), R = rate / 2 = 0.25, s the load of a class and those above: 0.25 and 0.5.
    # 0.25 / 0.75 = 1/3 and 0.25 / (0.75 x 0.5) = 2/3 services, so TTFT is 1.33 and 1.67 s; the mean stays 1.5.
    parts = [Load(4, 1, 20_000, request_rate=0.25, seed=seed).requests() for seed in (5, 6)]
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival_s)
    lengths = np.full(40_000, 4), np.ones(40_000, dtype=int)
    group = np.repeat([0, 1], 20_000)[order]
    requests = Requests(*lengths, arrival_s[order], priority=group, group=group, groups=("first", "second"))
    one = replace(BY_PRIORITY, max_num_seqs=1)
    served = replay(Second(), Load(4, 1, 40_000, request_rate=0.5, recorded=requests), one)
    assert served.of("first").ttft_s.mean() == pytest.approx(1 + 1 / 3, rel=0.02)
    assert served.of("second").ttft_s.mean() == pytest.approx(1 + 2 / 3, rel=0.02)
    assert served.ttft_s.mean() == pytest.approx(1.5, rel=0.02)


def test_offline_decoding_has_a_closed_form() -> None:
    # 16 prompts of 100 tokens, 1000 tokens each: one prefill step and 999 decode steps; the context of step k
    # (k = 1, ..., 999) is 100 + k a request, and the sum of all k is 999 x 1000 / 2.
    timer = Linear()
    served = replay(timer, Load(100, 1000, 16), SchedulerLimits(16, 2048, 100_000))
    prefill_s = timer.base_s + 1600 * timer.token_s + 16 * (100 * 101 / 2) * timer.pair_s
    decode_s = 999 * (timer.base_s + 16 * timer.decode_s)
    context_s = 16 * (999 * 100 + 999 * 1000 / 2) * timer.context_s
    assert served.duration_s == pytest.approx(prefill_s + decode_s + context_s, rel=1e-12)
    assert timer.calls < 10


@pytest.mark.parametrize(("concurrency", "output_len"), [(1, 500), (64, 300), (96, 1200)])
def test_bends_in_the_step_time_are_followed(concurrency: int, output_len: int) -> None:
    # a floor under the step, as of a host that cannot launch faster, is left somewhere along the way
    class Bent:
        calls = 0

        def step_s(self, batch: Batch) -> float:
            self.calls += 1
            gpu_s = 3e-3 + 6e-8 * batch.decode_context_tok + 2e-5 * (batch.prefill_tok + batch.decode_seqs)
            return max(gpu_s, 5e-3 + 1.5e-5 * batch.decode_seqs)

    timer, limits = Bent(), SchedulerLimits(128, 8192, 1_000_000)
    workload = Load(256, output_len, concurrency)
    served = replay(timer, workload, limits)
    calls = timer.calls
    expected = reference_replay(timer, workload.requests(), limits)
    assert served.duration_s == pytest.approx(max(t[-1] for t in expected.token_times_s), rel=5e-4)
    assert calls < 100


def test_a_published_run_from_two_of_its_numbers() -> None:
    """Llama-3.3-70B in FP8 on one MI355X, 128 prompts of 8192 + 1024 tokens at concurrency 64.

    AMD's quick-start recipe prints the result of ``vllm bench serve`` for an engine with 32768 tokens a step and
    asynchronous scheduling. Its median ITL (42.31 ms) is a decode step; its P99 TTFT (31.80 s) is the burst of
    64 prompts. From these two, the rest follows: mean TTFT is made by the first burst.
    """

    class TwoNumbers:
        def step_s(self, batch: Batch) -> float:
            return 0.04231 * (batch.decode_seqs > 0) + 31.79774 / 64 / 8192 * batch.prefill_tok

    limits = SchedulerLimits(256, 32768, 2_000_000, async_scheduling=True)
    served = replay(TwoNumbers(), Load(8192, 1024, 128, max_concurrency=64), limits)
    assert served.duration_s == pytest.approx(149.97, rel=0.01)
    assert served.ttft_s.mean() == pytest.approx(11.63966, rel=0.03)
    assert np.median(served.ttft_s) == pytest.approx(7.54386, rel=0.05)
    assert served.tpot_s.mean() == pytest.approx(0.06181, rel=0.01)
    assert np.median(served.tpot_s) == pytest.approx(0.06691, rel=0.01)
    assert served.e2el_s.mean() == pytest.approx(74.87513, rel=0.01)
    first_wave, second_wave = served.ttft_s[:64].mean(), served.ttft_s[64:].mean()
    assert first_wave > 2 * second_wave


def test_ten_thousand_requests_cost_a_step_or_two_each() -> None:
    workload = Load(1024, 1024, 10_000, max_concurrency=512, range_ratio=0.8, length_distribution="below")
    timer = Linear()
    served = replay(timer, workload, SchedulerLimits(1024, 8192, 2_000_000))
    assert timer.calls < 3 * workload.num_prompts
    assert served.output_len.sum() > 9_000_000


def test_the_replay_depends_on_nothing_but_its_arguments() -> None:
    workload = Load(50, 50, 100, request_rate=20, range_ratio=0.5, seed=3)
    one, two = (replay(Linear(), workload, ROOMY) for _ in range(2))
    assert times(one) == times(two)


# Refusals.


def test_a_request_that_can_never_end_is_refused() -> None:
    # 8 + 9 tokens compute 16 of them, which fit 16 tokens of cache; one more does not
    tight = replace(ROOMY, kv_cache_tokens=16, block_size=4)
    assert times(serve([(8, 9)], tight)) == [(1, 9)]
    with pytest.raises(InputError, match="does not fit a KV cache of 16 tokens"):
        serve([(8, 10)], tight)
    with pytest.raises(InputError, match="without chunked prefill"):
        serve([(60, 10)], replace(ROOMY, enable_chunked_prefill=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_num_batched_tokens": 4}, "--max-num-batched-tokens 4 is less than --max-num-seqs 8"),
        ({"kv_cache_tokens": 15}, "holds no block"),
        ({"data_parallel_size": 0}, "--data-parallel-size"),
    ],
)
def test_impossible_limits_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(ROOMY, **change)


@pytest.mark.parametrize("step_s", [1e5, 123_456.789, 1e7])
def test_after_months_the_clock_is_coarser_than_a_moment_and_nobody_is_lost(step_s: float) -> None:
    """Past 1e7 s two floats lie farther apart (1.9e-9 s) than what counts as one moment (1e-9 s)."""
    served = serve([(16, 8)] * 40, timer=Linear(base_s=step_s), max_concurrency=1)
    assert served.duration_s == pytest.approx(40 * 8 * step_s, rel=1e-3)  # a prefill and seven decode steps each


def test_a_run_of_steps_ends_before_a_request_that_never_comes() -> None:
    run = Step(start_s=0.0, first_s=1.0, batch=Batch(1, 100), steps=10)
    assert [run.before(time_s) for time_s in (0.5, 1.0, 3.9, 9.0, 1e308)] == [0, 1, 3, 9, 9]

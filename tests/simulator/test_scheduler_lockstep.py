"""DP ranks that share experts: by hand, and beside engines that are stepped one by one together."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from physics_cases import engine, gpu, moe_model, perfect
from reference_scheduler import Engine, Request
from test_scheduler import ROOMY, Linear, cases, serve, times

from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.timing.step import Batch, StepModel
from planner.workload.load import Load
from planner.workload.requests import Requests

PAIR = replace(ROOMY, data_parallel_size=2, lockstep=True)


class ByPrompt:
    """A second for decoding, a second for every ten prompt tokens."""

    def step_s(self, batch: Batch) -> float:
        return max(1.0, batch.prefill_tok / 10)


def test_a_prompt_on_one_rank_holds_up_the_other() -> None:
    # A gets 10 tokens and decodes; B's prompt of 40 tokens comes at 2.5 s and takes 4 s from the next step on, at 3 s
    alone = times(serve([(10, 5), (40, 2)], replace(PAIR, lockstep=False), timer=ByPrompt(), arrival_s=[0, 2.5]))
    together = times(serve([(10, 5), (40, 2)], PAIR, timer=ByPrompt(), arrival_s=[0, 2.5]))
    assert alone == [(1.0, 5.0), (6.5, 7.5)]
    # A's fourth token comes with the end of that prompt, at 7 s; then both decode
    assert together == [(1.0, 8.0), (7.0, 8.0)]


def test_v0_decodes_on_one_rank_while_another_computes_a_prompt() -> None:
    # as above: A's fourth token comes at 7 s too, and B, which only computes prompts or decodes, ends a second later
    v0 = replace(PAIR, prefill_first=True)
    assert times(serve([(10, 5), (40, 2)], v0, timer=ByPrompt(), arrival_s=[0, 2.5])) == [(1.0, 8.0), (7.0, 8.0)]


def test_an_idle_rank_starts_with_the_next_step_of_the_others() -> None:
    # without the other it would start at 2.5 s
    assert times(serve([(10, 9), (10, 1)], PAIR, arrival_s=[0, 2.5]))[1] == (4.0, 4.0)


def test_a_group_that_rests_starts_at_once() -> None:
    assert times(serve([(10, 1), (10, 1)], PAIR, arrival_s=[0, 7.25])) == [(1.0, 1.0), (8.25, 8.25)]


def test_equal_loads_wait_for_nobody() -> None:
    lengths = [(10, 30)] * 8
    assert times(serve(lengths, PAIR)) == times(serve(lengths, replace(PAIR, lockstep=False)))


class Stages:
    """Three seconds for one request, two where several share the stages of a pipeline."""

    def step_s(self, batch: Batch) -> float:
        return 3.0 if batch.decode_seqs + batch.prefill_seqs == 1 else 2.0


def test_a_pipeline_with_less_to_do_may_take_longest() -> None:
    # two requests on the one rank, one on the other: a step of prompts and three that decode, of 3 s each
    assert times(serve([(10, 4)] * 3, replace(PAIR, pipelined=True), timer=Stages())) == [(3.0, 12.0)] * 3


def reference(timer: StepTimer, requests: Requests, limits: SchedulerLimits) -> list[list[float]]:
    """Token times where all is sent as it arrives: engines of the reference, which begin and end together."""
    engines = [Engine(timer, limits) for _ in range(limits.data_parallel_size)]
    everything = []
    for index, lengths in enumerate(zip(requests.input_len, requests.output_len, requests.arrival_s, strict=True)):
        everything.append(Request(index, int(lengths[0]), int(lengths[1]), float(lengths[2])))
        engines[index % len(engines)].submit(everything[-1])
    while True:
        now_s = min(each.idle_until_s for each in engines)
        if now_s == inf:
            return [request.token_times_s for request in everything]
        working = [each for each in engines if each.idle_until_s <= now_s]
        for each in working:
            each.begin()
        end_s = now_s + max(timer.step_s(each.batch()) for each in working)
        for each in engines:
            each.last_start_s = now_s
            if each in working:
                each.end_s = end_s
                each.end()
            elif each.inbox:
                each.idle_until_s = max(end_s, each.inbox[0].ready_s)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(2, 4))
def test_every_token_comes_when_the_reference_says(
    case: tuple[Linear, Load, SchedulerLimits, Client], ranks: int
) -> None:
    timer, workload, limits, _ = case
    timer = replace(timer, context_s=0.0)  # the longest of several is no straight line
    workload = replace(workload, max_concurrency=None, request_rate=min(workload.request_rate, 293.0))
    limits = replace(
        limits,
        enable_chunked_prefill=not limits.prefill_first, data_parallel_size=ranks, lockstep=True,
    )  # fmt: skip
    served = replay(timer, workload, limits)
    expected = reference(timer, workload.requests(), limits)
    np.testing.assert_allclose(served.first_token_s, [t[0] for t in expected], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(served.end_s, [t[-1] for t in expected], rtol=1e-9, atol=1e-12)


def test_a_busy_group_costs_few_evaluations() -> None:
    timer = Linear()
    limits = SchedulerLimits(64, 8192, 10**6, data_parallel_size=8, lockstep=True)
    replay(timer, Load(512, 256, 2000, max_concurrency=512, range_ratio=0.5), limits)
    assert timer.calls < 60_000


# What the experts of all see.


def test_experts_see_the_tokens_of_all_ranks_as_they_are() -> None:
    step = StepModel(moe_model(), gpu(), engine(data_parallel_size=4, enable_expert_parallel=True), perfect())

    def rows(batch: Batch) -> Any:
        return next(step.drivers(batch, step.loads)[one.load][1] for one in step.timed if one.term.name == "experts")

    batch = Batch(decode_seqs=64, decode_context_tok=64)
    # alike: 4 x 64 tokens x 8 experts over 4 ranks are 512 rows on the mean rank
    assert rows(batch) > 512
    assert rows(batch._replace(peer_tok=3 * 64)) == rows(batch)
    # a prompt of 1,000 tokens elsewhere, and nothing on the two others
    assert rows(batch._replace(peer_tok=1000)) == pytest.approx(rows(Batch(decode_seqs=266, decode_context_tok=266)))
    assert rows(batch._replace(peer_tok=0)) < rows(batch)

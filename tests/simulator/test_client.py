"""What a replay refuses to begin, and what it keeps of those that wait."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import Linear, cases

from planner.simulator.bench import percentiles_of
from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits
from planner.workload.load import Load


def test_prompts_that_are_read_a_few_tokens_at_a_time_are_refused() -> None:
    """80 prompts of 1,024 tokens, two at a time, are 80 x 512 = 40,960 steps; 40 of them are half as many."""
    words = ["predict", "serve", "Qwen/Qwen3-0.6B", "--gpu", "h100", "--random-input-len", "1024"]
    words += ["--random-output-len", "1", "--max-concurrency", "2", "--max-num-batched-tokens", "2"]
    refused = run(*words, "--num-prompts", "80")
    assert refused.status == 2
    error, hint = refused.err.splitlines()[:2]
    assert error == "error: the prompts come to 40,960 steps of --max-num-batched-tokens 2"
    assert hint.startswith("hint: raise it, or send fewer prompts")
    assert run(*words, "--num-prompts", "40").status == 0


@settings(max_examples=150, deadline=None)
@given(cases())
def test_requests_that_are_handed_over_a_few_at_a_time_are_served_alike(
    case: tuple[Linear, Load, SchedulerLimits, Client],
) -> None:
    whole = replay(*case)
    with patch("planner.simulator.client.AHEAD", 3):
        parts = replay(*case)
    np.testing.assert_array_equal(parts.first_token_s, whole.first_token_s)
    np.testing.assert_array_equal(parts.end_s, whole.end_s)
    np.testing.assert_array_equal(parts.preemptions, whole.preemptions)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 5))
def test_a_replay_that_gives_up_has_those_that_ended_as_they_were(
    case: tuple[Linear, Load, SchedulerLimits, Client], most: int
) -> None:
    """Ended after so many requests, whatever had been sent by then."""
    whole, seen = replay(*case), []

    def hopeless(_metrics_s: Mapping[str, float], _name: str) -> bool:
        seen.append(1)
        return len(seen) >= most

    with patch("planner.simulator.client.AHEAD", 3):
        part = replay(*case, hopeless=hopeless)
    assert len(part.sent_s) == len(part.ready_s) == len(part.end_s) >= min(most, len(whole.end_s))
    columns = ("sent_s", "ready_s", "first_token_s", "end_s")
    ended, of_all = (set(zip(*(getattr(one, name).tolist() for name in columns), strict=True)) for one in (part, whole))
    assert ended <= of_all


def test_a_burst_takes_the_memory_of_its_figures() -> None:
    """Twenty numbers of 8 bytes for each request; as an object in a queue it would take more than 200 bytes again."""
    count = 30_000
    limits = SchedulerLimits(1000, 8000, 100_000)
    workload = Load(8, 1, count, recorded=Load(8, 1, count).requests())
    tracemalloc.start()
    try:
        replay(Linear(), workload, limits, keep_gaps=False)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < count * 20 * 8


def test_a_steady_load_is_the_middle_of_a_long_queue() -> None:
    """16 places, prompts of 300 tokens, answers of 40 on average: in a long queue they end at any time."""
    limits, places = SchedulerLimits(16, 8192, 100_000), 16
    steady = replay(Linear(), Load(300, 40, places, steady=True), limits, keep_steps=True)
    made_tok = int(np.random.default_rng(1).integers(1, 80, 3000).sum())
    queue = Load(300, 40, 3000).requests()
    queue = replace(queue, output_len=np.random.default_rng(1).integers(1, 80, 3000))
    long = replay(Linear(), Load(300, 40, 3000, recorded=queue), limits)
    rate, long_rate = places * 40 / steady.duration_s, made_tok / long.duration_s
    assert abs(rate / long_rate - 1) < 0.03
    [p99_s], [long_p99_s] = (percentiles_of(one.token_runs, [99]) for one in (steady, long))
    assert abs(p99_s / long_p99_s - 1) < 0.15
    wave = replay(Linear(), Load(300, 40, places), limits)
    assert percentiles_of(wave.token_runs, [99])[0] < p99_s / 1.5
    busy_s = sum(run.end_s - run.start_s for run in steady.step_runs)
    assert abs(busy_s / steady.duration_s - 1) < 1e-6 and steady.step_runs[0].start_s >= -1e-9
    assert steady.output_len.tolist() == [40] * places

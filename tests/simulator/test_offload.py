"""KV blocks in host memory: a case by hand, and what must hold of any.

``benchmarks/offload_against_vllm.py`` compares the replay with vLLM's own scheduler and offloading manager where vLLM
is installed.
"""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_prefix import random_texts, random_workload, with_prefixes

from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests

STEP_S, TOKEN_S, BLOCK_S = 10e-3, 1e-3, 2e-3


@dataclass
class PerToken:
    """10 ms of a step, and 1 ms of each token of a prompt."""

    def step_s(self, batch: Batch) -> float:
        return STEP_S + TOKEN_S * batch.prefill_tok


def limits(**changes: object) -> SchedulerLimits:
    known = {"max_num_seqs": 4, "max_num_batched_tokens": 1000, "kv_cache_tokens": 160, "block_size": 16}
    return SchedulerLimits(**{**known, "enable_prefix_caching": True, "host_block_s": BLOCK_S, **changes})  # type: ignore[arg-type]


def one_after_the_other(names: list[list[int]], sizes: list[list[int]], apart_s: float = 10.0) -> Requests:
    """Prompts of these pieces, and one token of answer each."""
    count = len(names)
    prompts = np.array([sum(one) for one in sizes])
    return Requests(prompts, np.ones(count, dtype=np.int64), np.arange(count) * apart_s, Prefixes.of(names, sizes))


def served(requests: Requests, within: SchedulerLimits) -> tuple[list[int], list[int], list[float]]:
    """For each request: tokens found on the GPU, tokens from the host, and TTFT in s."""
    done = replay(PerToken(), Load(16, 1, len(requests.input_len), recorded=requests), within)
    return (done.cached_tok - done.host_tok).tolist(), done.host_tok.tolist(), done.ttft_s.round(9).tolist()


def test_what_the_gpu_lost_is_loaded_instead_of_computed() -> None:
    # The GPU has 10 blocks. The first prompt has 8 full ones and a token more; the second, 8 others, takes 7 of them
    # last; of the third, which is the first again, the GPU has 1 block left: those given back last are taken last, the
    # beginning of a prompt is given back last, and 2 of the 10 blocks were free.
    requests = one_after_the_other([[1, 2], [3, 4], [1, 5]], [[128, 1], [128, 1], [128, 1]])
    gpu, host, ttft_s = served(requests, limits())
    assert (gpu, host) == ([0, 0, 16], [0, 0, 0])
    # 10 ms + 129 tokens; 10 ms + 113 tokens without the 16
    assert ttft_s == [0.139, 0.139, 0.123]
    gpu, host, ttft_s = served(requests, limits(host_blocks=100))
    assert (gpu, host) == ([0, 0, 16], [0, 0, 112])
    # 7 blocks x 2 ms over the link, then 10 ms and the last token
    assert ttft_s == [0.139, 0.139, pytest.approx(0.014 + 0.010 + 0.001)]


def test_the_host_forgets_the_end_of_what_was_used_longest_ago() -> None:
    # Room for 12 blocks: the second prompt of 8 pushes out the last 4 of the first.
    requests = one_after_the_other([[1, 2], [3, 4], [1, 5]], [[128, 1], [128, 1], [128, 1]])
    assert served(requests, limits(host_blocks=12))[:2] == ([0, 0, 16], [0, 0, 48])
    # Room for 8: nothing of the first is left.
    assert served(requests, limits(host_blocks=8))[:2] == ([0, 0, 16], [0, 0, 0])
    # Room for 7: no prompt fits, and blocks of a prompt are stored together or not at all.
    assert served(requests, limits(host_blocks=7))[:2] == ([0, 0, 16], [0, 0, 0])


def test_others_are_computed_while_blocks_are_loaded() -> None:
    # A slow link: 7 blocks x 1 s. The fourth request comes right after the third and does not wait for it.
    names, sizes = [[1, 2], [3, 4], [1, 5], [6]], [[128, 1], [128, 1], [128, 1], [16]]
    requests = one_after_the_other(names, sizes)
    requests.arrival_s[3] = requests.arrival_s[2] + 1e-3
    within = limits(host_blocks=100, host_block_s=1.0, kv_cache_tokens=176)
    _, host, ttft_s = served(requests, within)
    assert host[2] == 96  # 11 blocks: two of the first prompt are left
    assert ttft_s[3] == pytest.approx(0.026)
    assert ttft_s[2] == pytest.approx(6.0 + 0.010 + 0.001)


def test_a_prompt_that_is_all_there_computes_its_last_token() -> None:
    requests = one_after_the_other([[1], [2], [1]], [[128], [128], [128]])
    gpu, host, ttft_s = served(requests, limits(kv_cache_tokens=128, host_blocks=100))
    assert (gpu[2], host[2]) == (0, 128)
    assert ttft_s[2] == pytest.approx(8 * BLOCK_S + STEP_S + TOKEN_S)


def drawn(seed: int) -> tuple[Requests, Load, SchedulerLimits]:
    dice = random.Random(seed)
    workload = random_workload(dice)
    requests, _ = random_texts(dice, workload.requests(), answers=dice.random() < 0.5)
    seqs = dice.randint(1, 8)
    known = limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + dice.randint(0, 40),
        block_size=dice.choice([8, 16, 32]),
        async_scheduling=dice.random() < 0.5,
        scheduler_reserve_full_isl=dice.random() < 0.7,
    )
    return requests, workload, with_prefixes(dice, known, requests)


@given(seed=st.integers(0, 10**9), blocks=st.sampled_from([3, 10, 40, 1000]), block_s=st.sampled_from([0, 1e-4, 1e-2]))
@settings(max_examples=150, deadline=None)
def test_every_request_is_served_and_finds_only_what_was_there(seed: int, blocks: int, block_s: float) -> None:
    requests, workload, known = drawn(seed)
    done = replay(
        PerToken(), replace(workload, recorded=requests), replace(known, host_blocks=blocks, host_block_s=block_s)
    )
    assert len(done.end_s) == len(requests.input_len)
    assert (done.host_tok >= 0).all() and (done.host_tok % known.block_size == 0).all()
    assert (done.host_tok <= blocks * known.block_size).all()
    assert (done.cached_tok <= requests.input_len).all()
    assert (done.end_s >= done.first_token_s).all() and (done.first_token_s > done.sent_s).all()


@given(seed=st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_storing_what_nobody_sends_again_takes_no_time(seed: int) -> None:
    requests, workload, known = drawn(seed)
    known = replace(known, kv_cache_tokens=100_000)
    alone = Prefixes.of([[index] for index in range(len(requests.input_len))], requests.input_len[:, None].tolist())
    requests = replace(requests, prefixes=alone)
    without = replay(PerToken(), replace(workload, recorded=requests), known)
    beside = replay(PerToken(), replace(workload, recorded=requests), replace(known, host_blocks=100, host_block_s=0.1))
    assert not beside.host_tok.any()
    assert beside.end_s.tolist() == pytest.approx(without.end_s.tolist(), rel=1e-9)

"""The prefix cache of a replay beside a block-by-block one, hand-made caches, and published hit rates.

``benchmarks/replay_against_vllm.py --prefixes`` compares it with vLLM's own block manager where vLLM is installed.
"""

import dataclasses
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_prefix import CachingEngine, as_found, random_texts, random_workload, with_prefixes
from reference_scheduler import reference_replay

from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests


@dataclass
class Linear:
    def step_s(self, batch: Batch) -> float:
        return 5e-3 + 1.3e-5 * batch.decode_seqs + 2.3e-5 * batch.prefill_tok + 1e-7 * batch.decode_context_tok


@given(seed=st.integers(0, 10**9), answers=st.booleans(), asynchronous=st.booleans())
@settings(max_examples=150, deadline=None)
def test_hits_and_times_are_those_of_a_cache_block_by_block(seed: int, answers: bool, asynchronous: bool) -> None:
    dice = random.Random(seed)
    workload = random_workload(dice)
    requests, texts = random_texts(dice, workload.requests(), answers=answers)
    seqs = dice.randint(1, 8)
    limits = SchedulerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + dice.randint(0, 40),
        kv_cache_tokens=1000,
        block_size=dice.choice([8, 16, 32]),
        enable_chunked_prefill=dice.random() < 0.8,
        scheduler_reserve_full_isl=dice.random() < 0.7,
        async_scheduling=asynchronous,
    )
    limits = with_prefixes(dice, limits, requests)
    engines: list[CachingEngine] = []

    def engine(timer: Linear, limits: SchedulerLimits) -> CachingEngine:
        engines.append(CachingEngine(timer, limits, texts))
        return engines[-1]

    ours = replay(Linear(), replace(workload, recorded=requests), limits)
    expected = reference_replay(Linear(), requests, limits, workload.max_concurrency, None, engine)  # type: ignore[arg-type]
    assert ours.cached_tok.tolist() == as_found(engines, len(texts)).tolist()
    assert ours.preemptions.tolist() == expected.preemptions
    assert ours.first_token_s == pytest.approx([times[0] for times in expected.token_times_s], rel=1e-9)
    assert ours.end_s == pytest.approx([times[-1] for times in expected.token_times_s], rel=1e-9)


def requests_of(
    pieces: list[list[int]], sizes: list[list[int]], answers: list[int] | None = None, output_tok: int = 1
) -> Requests:
    """Prompts of these pieces, a long time after each other."""
    count = len(pieces)
    prompts = [sum(one[: len(one) - (answers or [0] * count)[at]]) for at, one in enumerate(sizes)]
    outputs = [sum(one) - prompt or output_tok for one, prompt in zip(sizes, prompts, strict=True)]
    arrival_s = np.arange(count) * 1e3
    return Requests(np.array(prompts), np.array(outputs), arrival_s, Prefixes.of(pieces, sizes, answers))


def found(requests: Requests, blocks: int = 1000) -> list[int]:
    limits = SchedulerLimits(8, 4096, blocks * 16, enable_prefix_caching=True)
    return replay(Linear(), Load(1, 1, len(requests.input_len), recorded=requests), limits).cached_tok.tolist()


def test_only_full_blocks_are_found_and_the_last_token_never() -> None:
    """40 shared tokens hold two blocks of 16. Of 32 tokens the last block holds the last token: one is found."""
    assert found(requests_of([[1, 2], [1, 3]], [[40, 5], [40, 7]])) == [0, 32]
    assert found(requests_of([[1], [1]], [[32], [32]])) == [0, 16]
    assert found(requests_of([[1], [1]], [[33], [33]])) == [0, 32]


def test_a_turn_finds_the_answer_before_it_but_for_its_last_token() -> None:
    """Prompt 20, answer 29: 48 tokens are computed, three blocks; the 49th was sampled and never computed."""
    chat = requests_of([[1, 2], [1, 2, 3]], [[20, 29], [20, 29, 50]], [1, 0])
    assert found(chat) == [0, 48]
    # 17 + 16 = 33 tokens, of which 32 are computed
    assert found(requests_of([[1, 2], [1, 2, 3]], [[17, 16], [17, 16, 9]], [1, 0])) == [0, 32]
    assert found(requests_of([[1, 2], [1, 2, 3]], [[17, 15], [17, 15, 9]], [1, 0])) == [0, 16]


def test_what_was_used_least_lately_is_forgotten_first_and_its_end_before_its_beginning() -> None:
    """Ten blocks. A (4 blocks) and B (4) leave two unused ones; C (4) takes those and the last two of A.

    Where A is used again before C comes, B loses two instead.
    """
    a, b, c = [1, 10], [2, 20], [3, 30]
    sizes = [[63, 1]] * 3
    order = requests_of([a, b, c, a], [*sizes, [63, 1]])
    assert found(order, blocks=10)[3] == 32
    assert found(requests_of([a, b, a, c, b], [[63, 1]] * 5), blocks=10)[2:] == [48, 0, 32]


def test_other_requests_before_the_first_leave_their_blocks() -> None:
    pieces, sizes = [[1], [1]], [[64], [64]]
    prefixes = Prefixes.of(pieces, sizes, before_tok=[80])
    requests = Requests(np.array([64]), np.array([1]), np.zeros(1), prefixes)
    assert found(requests) == [48]
    assert prefixes.reusable_tok.tolist() == [64]


def test_without_prefix_caching_nothing_is_found() -> None:
    requests = requests_of([[1], [1]], [[64], [64]])
    served = replay(Linear(), Load(1, 1, 2, recorded=requests), SchedulerLimits(8, 4096, 1600))
    assert served.cached_tok.tolist() == [0, 0] and served.cached_share == 0


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12))
def test_a_tree_says_what_two_prompts_share(pieces: list[list[int]]) -> None:
    """By comparing all prompts piece by piece."""
    sizes = [[10 + name for name in one] for one in pieces]
    expected = []
    for at, one in enumerate(pieces):
        shared = [0]
        for other in pieces[:at]:
            alike = 0
            while alike < min(len(one), len(other)) and one[alike] == other[alike]:
                alike += 1
            shared.append(sum(sizes[at][:alike]))
        expected.append(max(shared))
    assert Prefixes.of(pieces, sizes).reusable_tok.tolist() == expected


@pytest.mark.parametrize("blocks", [40, 100, 300])
@pytest.mark.parametrize("seed", range(8))
def test_a_cache_is_as_if_all_earlier_requests_had_passed_through_it(seed: int, blocks: int) -> None:
    """150 requests are sent one after the other, or have been answered before; 50 more find the same after them."""
    dice = random.Random(seed)
    sample = Load(60, 40, num_prompts=200, range_ratio=0.8, length_distribution="below", seed=seed).requests()
    requests, _ = random_texts(dice, sample, answers=dice.random() < 0.5)
    prefixes = requests.prefixes
    assert prefixes is not None
    earlier, total_tok = np.arange(150), requests.input_len + requests.output_len
    arrival_s = np.concatenate([earlier * 1e3, 150e3 + np.arange(50) * 0.1])
    late = requests.chosen(slice(150, None))
    assert late.prefixes is not None
    # the last token of an answer is sampled, never computed
    known = late.prefixes.after(prefixes.answer[earlier], total_tok[earlier] - 1, slice(0, 0))
    late = dataclasses.replace(late, prefixes=known, arrival_s=arrival_s[150:] - arrival_s[150])
    kv_blocks = max(blocks, -(-int(total_tok.max()) // 8))
    limits = SchedulerLimits(8, 64, kv_blocks * 8, block_size=8, enable_prefix_caching=True)

    def found(one: Requests) -> list[int]:
        return replay(Linear(), Load(1, 1, len(one.arrival_s), recorded=one), limits).cached_tok.tolist()

    assert found(late) == found(dataclasses.replace(requests, arrival_s=arrival_s))[150:]

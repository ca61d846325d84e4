"""CPU seconds that a replay takes: ten thousand requests of 1024 + 1024 tokens, on a linear timer.

python benchmarks/replay_speed.py
python benchmarks/replay_speed.py --prefixes 1000000    # a trace with blocks that prompts share, and its memory
"""

import argparse
import resource
import time
from dataclasses import dataclass, replace

import numpy as np

from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests


@dataclass
class Linear:
    """A step time that costs next to nothing to compute; counts how often it is asked."""

    calls: int = 0

    def step_s(self, batch: Batch) -> float:
        self.calls += 1
        return 3e-3 + 2e-5 * batch.decode_seqs + 1e-9 * batch.decode_context_tok + 4e-5 * batch.prefill_tok


CASES = {
    "equal lengths, concurrency 512": (Load(1024, 1024, 10_000, max_concurrency=512), 2_000_000),
    "uniform from 0.8 L to L, concurrency 512": (
        Load(1024, 1024, 10_000, 512, range_ratio=0.8, length_distribution="below"),
        2_000_000,
    ),
    "the same, KV cache for half of them": (
        Load(1024, 1024, 10_000, 512, range_ratio=0.8, length_distribution="below"),
        500_000,
    ),
    "uniform from 0.8 L to L, concurrency 64": (
        Load(1024, 1024, 10_000, 64, range_ratio=0.8, length_distribution="below"),
        2_000_000,
    ),
    "Poisson, 12 requests per second": (Load(1024, 1024, 10_000, request_rate=12), 2_000_000),
}


TURNS, BLOCKS, BLOCK_TOK = 4, 3, 512  #: of a conversation; that a turn adds; of a block, as in Mooncake's traces
BETWEEN = 300  #: requests from a turn to the next one


@dataclass
class Fast(Linear):
    """A server that keeps up with fifty such requests per second."""

    def step_s(self, batch: Batch) -> float:
        self.calls += 1
        return 3e-3 + 2e-5 * batch.decode_seqs + 1e-9 * batch.decode_context_tok + 3e-6 * batch.prefill_tok


def conversations(count: int) -> Requests:
    """Requests of conversations that overlap: each prompt holds the blocks of the turns before it."""
    number = np.arange(count)
    group, place = np.divmod(number, TURNS * BETWEEN)
    turn, conversation = place // BETWEEN, group * BETWEEN + place % BETWEEN
    blocks = (turn + 1) * BLOCKS
    first = np.cumsum(blocks) - blocks
    names = np.repeat(conversation * TURNS * BLOCKS - first, blocks) + np.arange(blocks.sum())
    sizes = np.full(len(names), BLOCK_TOK)
    answers, before = np.zeros(count, dtype=np.int64), np.zeros(0, dtype=np.int64)
    prefixes = Prefixes.of_arrays(names, sizes, blocks, answers, before)
    return Requests(blocks * BLOCK_TOK, 64 + number % 129, number / 50, prefixes)


def with_prefixes(count: int) -> None:
    """How long a trace with prefix blocks takes, and what it needs."""
    start = time.process_time()
    requests = conversations(count)
    made = time.process_time()
    timer = Fast()
    workload = Load(1, 1, count, request_rate=50.0)
    served = replay(
        timer, replace(workload, recorded=requests), SchedulerLimits(1024, 8192, 2_000_000, enable_prefix_caching=True)
    )
    spent_s = time.process_time() - made
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{count:,} requests of {requests.input_len.mean():,.0f} tokens in blocks of {BLOCK_TOK}")
    print(f"{made - start:.1f} s for the tree, {spent_s:.1f} s for the replay, {peak_gb:.2f} GB at most")
    print(f"{served.cached_share:.1%} found, {requests.reusable_tok / requests.input_len.mean():.1%} were there once")


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds that a replay takes.")
    parser.add_argument("--prefixes", type=int, metavar="N", help="instead: N requests with blocks that they share")
    if count := parser.parse_args().prefixes:
        with_prefixes(count)
        return
    print(f"{'workload':<45} {'CPU s':>6} {'timer calls':>12} {'preemptions':>12}")
    for name, (workload, kv_cache_tokens) in CASES.items():
        timer = Linear()
        start = time.process_time()
        served = replay(timer, workload, SchedulerLimits(1024, 8192, kv_cache_tokens))
        spent_s = time.process_time() - start
        print(f"{name:<45} {spent_s:>6.2f} {timer.calls:>12,} {served.preemptions.sum():>12,}")


if __name__ == "__main__":
    main()

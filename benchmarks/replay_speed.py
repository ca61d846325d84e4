"""CPU seconds that a replay takes: ten thousand requests of 1024 + 1024 tokens, on a linear timer.

python benchmarks/replay_speed.py
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.requests import Workload


@dataclass
class Linear:
    """A step time that costs next to nothing to compute; counts how often it is asked."""

    calls: int = 0

    def step_s(self, batch: Batch) -> float:
        self.calls += 1
        return 3e-3 + 2e-5 * batch.decode_seqs + 1e-9 * batch.decode_context_tok + 4e-5 * batch.prefill_tok


CASES = {
    "equal lengths, concurrency 512": (Workload(1024, 1024, 10_000, max_concurrency=512), 2_000_000),
    "uniform from 0.8 L to L, concurrency 512": (
        Workload(1024, 1024, 10_000, 512, range_ratio=0.8, length_distribution="below"),
        2_000_000,
    ),
    "the same, KV cache for half of them": (
        Workload(1024, 1024, 10_000, 512, range_ratio=0.8, length_distribution="below"),
        500_000,
    ),
    "uniform from 0.8 L to L, concurrency 64": (
        Workload(1024, 1024, 10_000, 64, range_ratio=0.8, length_distribution="below"),
        2_000_000,
    ),
    "Poisson, 12 requests per second": (Workload(1024, 1024, 10_000, request_rate=12), 2_000_000),
}


def main() -> None:
    print(f"{'workload':<45} {'CPU s':>6} {'timer calls':>12} {'preemptions':>12}")
    for name, (workload, kv_cache_tokens) in CASES.items():
        timer = Linear()
        start = time.process_time()
        served = replay(timer, workload, SchedulerLimits(1024, 8192, kv_cache_tokens))
        spent_s = time.process_time() - start
        print(f"{name:<45} {spent_s:>6.2f} {timer.calls:>12,} {served.preemptions.sum():>12,}")


if __name__ == "__main__":
    main()

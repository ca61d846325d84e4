"""The checks that vLLM makes when it starts, in its order, each with what is to spare."""

from __future__ import annotations

from collections.abc import Iterator

from planner.engine.config import CPU_KVCACHE_SPACE
from planner.fit.result import Condition
from planner.memory.budget import MemoryBudget, StageBudget
from planner.memory.overheads import Interval
from planner.units import GIB


def conditions(budget: MemoryBudget, loading_bytes: int = 0) -> tuple[Condition, ...]:
    """What decides whether the engine starts. ``loading_bytes``: weights at the peak of loading, where that is more."""
    return tuple(_conditions(budget, loading_bytes))


def _conditions(budget: MemoryBudget, loading_bytes: int) -> Iterator[Condition]:
    stage, config = budget.binding, budget.config
    memory, requested = budget.memory_bytes, stage.requested_bytes
    free = _beside(Interval.exact(memory), budget.start_up)
    if not config.cpu_kvcache_space:  # a CPU whose cache is given is not asked: cpu_worker.py
        yield Condition(
            "free memory below budget",
            _less(free, requested),
            f"Free memory on device ({free.mid / GIB:.2f}/{memory / GIB:.2f} GiB) on startup is less than desired GPU "
            f"memory utilization ({config.gpu_memory_utilization}, {requested / GIB:.2f} GiB)",
        )
    heaviest = max(max(s.weights.loaded_bytes for s in budget.stages), loading_bytes)
    yield Condition(
        "weights exceed memory",
        _less(free, heaviest),
        f"out of memory while loading: {heaviest / GIB:.2f} GiB of weights, {free.mid / GIB:.2f} GiB free",
    )
    for each in _distinct(budget.stages):
        yield from _cache_conditions(budget, each)


def _cache_conditions(budget: MemoryBudget, stage: StageBudget) -> Iterator[Condition]:
    available = stage.available
    if stage.given_bytes is not None:
        free = _beside(stage.left, budget.start_up)
        yield Condition(
            "KV cache exceeds memory",
            _less(free, stage.given_bytes),
            f"Available memory ({free.mid / GIB:.2f}/{budget.memory_bytes / GIB:.2f} GiB) on kv cache allocation is "
            f"less than requested memory for kv ({stage.given_bytes / GIB:.2f} GiB): decrease {CPU_KVCACHE_SPACE}",
        )
        available = Interval.exact(stage.given_bytes)
    over = stage.weights.loaded_bytes - stage.requested_bytes
    yield Condition(
        "weights exceed budget" if over > 0 else "no cache blocks",
        _less(available, stage.block_bytes),
        f"No available memory for the cache blocks: {stage.weights.loaded_bytes / GIB:.2f} GiB of weights in a "
        f"budget of {stage.requested_bytes / GIB:.2f} GiB leave {available.mid / GIB:.2f} GiB",
    )
    length = budget.config.max_model_len
    if not budget.pool.groups:
        return
    needed = budget.needed_bytes(stage, length)
    yield Condition(
        "max_model_len larger than cache",
        _less(available, needed),
        f"To serve at least one request with the model's max seq len ({length}), {needed / GIB:.2f} GiB KV cache is "
        f"needed, which is larger than the available KV cache memory ({available.mid / GIB:.2f} GiB)",
    )


def _beside(room: Interval, taken: Interval) -> Interval:
    """What ``taken`` leaves of ``room``; the worst of both is the worst of all."""
    return Interval(room.mid - taken.mid, room.low - taken.high, room.high - taken.low)


def _less(interval: Interval, amount: float) -> Interval:
    return Interval(interval.mid - amount, interval.low - amount, interval.high - amount)


def _distinct(stages: tuple[StageBudget, ...]) -> Iterator[StageBudget]:
    """Stages that differ in weights or block; middle stages are often alike."""
    seen: set[tuple[int, int]] = set()
    for stage in stages:
        key = (stage.weights.loaded_bytes, stage.block_bytes)
        if key not in seen:
            seen.add(key)
            yield stage

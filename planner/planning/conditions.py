"""The memory checks that vLLM makes when it starts, in its order, each with its margin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import Literal

from planner.memory import Interval, MemoryBudget, StageBudget
from planner.units import GIB

#: The condition that fails where graphs are captured outside the budget and do not fit there.
GRAPHS = "CUDA graphs exceed memory"
Verdict = Literal["fits", "does not fit", "too close to call"]
#: Standard deviations from the best estimate of an overhead to either end of its interval, taken as one of 90 %.
ENDS = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Condition:
    """One check of vLLM's start-up, with its margin."""

    name: str  #: in vLLM's terms
    margin: Interval  #: bytes per GPU to spare; negative where they lack
    message: str  #: what vLLM says, or would

    @property
    def verdict(self) -> Verdict:
        """``fits`` where even the low estimate is enough, ``does not fit`` where not even the high one is."""
        if self.margin.low >= 0:
            return "fits"
        return "does not fit" if self.margin.high < 0 else "too close to call"

    @property
    def probability(self) -> float:
        """Probability of passing: each side of the margin is half a normal distribution of its own width."""
        mid = self.margin.mid
        width = mid - self.margin.low if mid >= 0 else self.margin.high - mid
        return NormalDist().cdf(ENDS * mid / width) if width else float(mid >= 0)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Memory of an engine and its start-up checks, enough to compare settings by."""

    budget: MemoryBudget
    conditions: tuple[Condition, ...]

    @property
    def fits(self) -> bool:
        """The best estimate; ``verdict`` says how sure it is."""
        return all(condition.margin.mid >= 0 for condition in self.conditions)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all conditions."""
        verdicts = {condition.verdict for condition in self.conditions}
        if "does not fit" in verdicts:
            return "does not fit"
        return "too close to call" if "too close to call" in verdicts else "fits"

    @property
    def probability_fits(self) -> float:
        """Probability of starting: that of the least likely condition, as all depend on the same overheads."""
        return min((condition.probability for condition in self.conditions), default=1.0)


def check_memory(budget: MemoryBudget, loading_bytes: int = 0) -> Checked:
    """Check whether the engine starts. ``loading_bytes``: weights at the peak of loading, where that is more."""
    return Checked(budget=budget, conditions=tuple(_conditions(budget, loading_bytes)))


def _conditions(budget: MemoryBudget, loading_bytes: int) -> Iterator[Condition]:
    config, memory = budget.config, budget.memory_bytes
    requested = ceil(memory * config.gpu_memory_utilization)
    free = _beside(Interval.exact(memory), budget.start_up)
    # v1/worker/gpu_worker.py asks from 0.9.1 on; a CPU whose cache is given is not asked: cpu_worker.py
    if config.engine == "V1" and config.version.release >= (0, 9, 1) and not config.cpu_kvcache_space:
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
    distinct: dict[tuple[int, int], StageBudget] = {}  # middle stages are often alike
    for stage in budget.stages:
        distinct.setdefault((stage.weights.loaded_bytes, stage.block_bytes), stage)
    for stage in distinct.values():
        yield from _cache_conditions(budget, stage)
    stage = budget.binding
    # graphs are captured when the peak of the profile run is over; AMD's driver takes memory of the host for them
    if not stage.graphs_in_budget and stage.graphs.high > 0 and budget.overheads.where["vendor"] == "nvidia":
        beyond = _beside(_less(free, requested - stage.activation.low), stage.graphs)
        yield Condition(
            GRAPHS,
            beyond,
            f"out of memory while capturing graphs: {stage.graphs.mid / GIB:.2f} GiB beside a budget of "
            f"{requested / GIB:.2f} GiB, of {free.mid / GIB:.2f} GiB free",
        )


def _cache_conditions(budget: MemoryBudget, stage: StageBudget) -> Iterator[Condition]:
    available = stage.available
    if stage.given_bytes is not None:
        free = _beside(stage.left, budget.start_up)
        yield Condition(
            "KV cache exceeds memory",
            _less(free, stage.given_bytes),
            f"Available memory ({free.mid / GIB:.2f}/{budget.memory_bytes / GIB:.2f} GiB) on kv cache allocation is "
            f"less than requested memory for kv ({stage.given_bytes / GIB:.2f} GiB): decrease "
            f"{budget.config.kv_cache_given_by}",
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


def _beside(total: Interval, taken: Interval) -> Interval:
    """``total`` less ``taken``: the low end of one meets the high end of the other."""
    return Interval(total.mid - taken.mid, total.low - taken.high, total.high - taken.low)


def _less(interval: Interval, amount: float) -> Interval:
    return Interval(interval.mid - amount, interval.low - amount, interval.high - amount)

"""The checks that vLLM makes when it starts, in its order, each with what is to spare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from planner.engine import (
    CPU_KVCACHE_SPACE,
    EngineArgs,
    EngineConfig,
    EngineVersion,
    Layout,
    check_layout,
    legal_tensor_parallel_sizes,
    resolve,
    version_features,
)
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.memory import (
    SHIPPED_BASIS,
    Basis,
    Interval,
    MemoryBudget,
    StageBudget,
    memory_budget,
    stage_weights,
    with_kv_cache_space,
)
from planner.model import Model, PerModel, load_quantized
from planner.planning.fit.result import Checked, Condition
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


# --- The short answer: resolve the settings, divide the memory, make vLLM's checks; and how far each setting can go

_load_quantized = PerModel(load_quantized)


def served_model(model: Model, args: EngineArgs) -> Model:
    """The model as the engine holds it: ``--quantization`` may turn a 16-bit checkpoint into 8-bit weights."""
    return _load_quantized(model, args.quantization) if args.quantization else model


def check_start(
    model: Model,
    profile: GpuProfile,
    args: EngineArgs,
    version: EngineVersion,
    basis: Basis = SHIPPED_BASIS,
    *,
    as_started: bool = False,
) -> Checked:
    """Settings, budget and conditions, without limits and options.

    ``as_started``: a KV cache whose size is not given is what vLLM itself takes, also on a CPU.
    Raises IllegalPlanError for settings that vLLM refuses whatever the memory.
    """
    served = served_model(model, args)
    config = resolve(args, model, profile, version)
    check_layout(
        served,
        profile,
        Layout.of(config),
        allow_unvalidated=args.allow_unvalidated,
        refines_fp8_blocks=version_features(version, profile).refines_fp8_blocks,
    )
    if not as_started:
        config = with_kv_cache_space(served, profile, config, basis)
    return _checked(model, served, profile, config, basis)


def _checked(model: Model, served: Model, profile: GpuProfile, config: EngineConfig, basis: Basis) -> Checked:
    budget = memory_budget(served, profile, config, basis)
    loading = 0
    if served is not model and not budget.features.streams_online_quantization:
        loading = max(s.loaded_bytes for s in stage_weights(model, Layout.of(config), config.dtype))
    return Checked(budget=budget, conditions=conditions(budget, loading))


def min_tensor_parallel_size(
    model: Model, profile: GpuProfile, args: EngineArgs, version: EngineVersion, basis: Basis = SHIPPED_BASIS
) -> int | None:
    """The smallest legal TP size that fits, everything else as in ``args``; None where none does."""
    sizes = legal_tensor_parallel_sizes(
        served_model(model, args),
        profile,
        pipeline_parallel_size=args.pipeline_parallel_size,
        data_parallel_size=args.data_parallel_size,
        enable_expert_parallel=args.enable_expert_parallel,
        allow_unvalidated=args.allow_unvalidated,
        refines_fp8_blocks=version_features(version, profile).refines_fp8_blocks,
    )
    for size in sizes:
        try:
            fits = check_start(model, profile, replace(args, tensor_parallel_size=size), version, basis).fits
        except IllegalPlanError:  # a size that leaves another setting illegal
            continue
        if fits:
            return size
    return None


@dataclass(frozen=True, slots=True)
class SettingLimits:
    """How far single settings can go, the others as they are."""

    model: Model
    profile: GpuProfile
    args: EngineArgs
    checked: Checked
    basis: Basis = SHIPPED_BASIS

    def max_model_len(self) -> int:
        """The longest request that the cache holds, up to the model's own context; 0 when none fits."""
        budget = self.checked.budget
        limit = max(budget.config.max_model_len, budget.model.max_position_embeddings)
        if not budget.pool.groups:
            return limit
        return budget.pool.longest(int(budget.num_blocks.mid) - 1, limit)

    def max_num_seqs(self) -> int:
        """The largest ``max_num_seqs`` with which the engine still starts, up to ``max_num_batched_tokens``."""
        config = self.checked.budget.config
        low, high = 0, config.max_num_batched_tokens
        if self._fits(replace(config, max_num_seqs=high)):
            return high
        while high - low > max(1, low // 64):
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(replace(config, max_num_seqs=middle)) else (low, middle)
        return low

    def gpu_memory_utilization(self) -> float | None:
        """The smallest ``gpu_memory_utilization``, in steps of 0.01, that still fits; None where not even 1 does.

        None also where the cache is given: the share bounds nothing then.
        """
        budget = self.checked.budget
        if budget.config.cpu_kvcache_space:
            return None
        lacking = min(c.margin.mid for c in self.checked.conditions if c.name != "free memory below budget")
        wanted = budget.binding.requested_bytes - lacking
        smallest = max(0.01, ceil(100 * wanted / budget.memory_bytes) / 100)
        if smallest > 1 or not self._fits(replace(budget.config, gpu_memory_utilization=smallest)):
            return None
        return smallest

    def _fits(self, config: EngineConfig) -> bool:
        served = self.checked.budget.model
        return _checked(self.model, served, self.profile, config, self.basis).fits

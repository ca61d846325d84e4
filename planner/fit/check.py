"""The short answer: resolve the settings, divide the memory, make vLLM's checks; and how far each setting can go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from planner.engine.config import EngineArgs, EngineConfig
from planner.engine.features import features
from planner.engine.resolve import resolve
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError
from planner.fit.conditions import conditions
from planner.fit.result import Checked
from planner.hardware.schema import GpuProfile
from planner.memory.budget import SHIPPED_BASIS, Basis, memory_budget
from planner.memory.given import with_kv_cache_space
from planner.memory.per_model import PerModel
from planner.memory.weights import stage_weights
from planner.model.architecture import Model
from planner.model.quantization import load_quantized
from planner.parallelism import Layout, check_layout, legal_tensor_parallel_sizes

_load_quantized = PerModel(load_quantized)


def served_model(model: Model, args: EngineArgs) -> Model:
    """The model as the engine holds it: ``--quantization`` may turn a 16-bit checkpoint into 8-bit weights."""
    return _load_quantized(model, args.quantization) if args.quantization else model


def check(
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
        refines_fp8_blocks=features(version, profile).refines_fp8_blocks,
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
        refines_fp8_blocks=features(version, profile).refines_fp8_blocks,
    )
    for size in sizes:
        try:
            fits = check(model, profile, replace(args, tensor_parallel_size=size), version, basis).fits
        except IllegalPlanError:  # a size that leaves another setting illegal
            continue
        if fits:
            return size
    return None


@dataclass(frozen=True, slots=True)
class Limits:
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

"""The KV cache of a CPU has a size of its own: ``VLLM_CPU_KVCACHE_SPACE``, in whole GiB, for each rank.

::

    blocks = floor(VLLM_CPU_KVCACHE_SPACE x 2**30 / block bytes)        nothing is measured, so nothing is uncertain

Every version that serves on CPUs reads it (``int`` and GiB in ``platforms/cpu.py`` and ``envs.py``). From 0.20.0 on it
sets ``kv_cache_memory_bytes``, and a worker whose machine has less memory free beside the weights refuses to start
(``determine_available_memory`` in ``v1/worker/cpu_worker.py``); before, the cache was allocated unasked.

Where it is not set, versions differ (the same files): 4 GiB to 0.12; half the memory of a NUMA node from 0.13; from
0.20.0 what ``--gpu-memory-utilization`` leaves beside the resident set of the worker at that moment, which no plan can
know to the byte. So a plan always sets it: to the whole GiB that surely are left of that share.
"""

from __future__ import annotations

from dataclasses import replace

from planner.engine.config import CPU_KVCACHE_SPACE, EngineConfig
from planner.engine.version import EngineVersion
from planner.hardware.schema import GpuProfile
from planner.memory.budget import SHIPPED_BASIS, Basis, memory_budget
from planner.model.architecture import Model
from planner.units import GIB


def with_kv_cache_space(
    model: Model, profile: GpuProfile, config: EngineConfig, basis: Basis = SHIPPED_BASIS
) -> EngineConfig:
    """``config`` with a size of the KV cache, on a CPU where nobody named one; 1 GiB where not even that is left."""
    if not profile.kv_cache_is_given or config.cpu_kvcache_space:
        return config
    space = max(1, int(memory_budget(model, profile, config, basis).binding.left.low // GIB))
    taken = f"{CPU_KVCACHE_SPACE}={space}: the whole GiB that {config.gpu_memory_utilization:g} of the memory leaves"
    return replace(config, cpu_kvcache_space=space, defaults_taken=(*config.defaults_taken, taken))


def unset_kv_cache_space(profile: GpuProfile, version: EngineVersion) -> int | None:
    """GiB where the variable is not set; None: what ``--gpu-memory-utilization`` leaves. See above."""
    if version.release < (0, 13):
        return 4
    return int(profile.memory_bytes / 2 // GIB) if version.release < (0, 20) else None

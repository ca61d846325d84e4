"""Rules of vLLM's cache manager and loader that depend on the version or the settings, one function for each."""

from __future__ import annotations

from planner.engine.config import EngineConfig
from planner.engine.features import Features
from planner.engine.version import EngineVersion
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Attention, Model


def remainder_last(version: EngineVersion) -> bool:
    """Whether the layers left over by PP all go to the last stage (before 0.8.0: vLLM's pull request 13839)."""
    return version.release < (0, 8)


def keeps_windows(config: EngineConfig, model: Model) -> bool:
    """Whether layers with a window keep only their window: the hybrid cache manager, V1 from 0.9.1 on.

    Chunked attention (Llama 4) was exempt until 0.12: there the manager was off by default.
    """
    chunked = any(isinstance(m, Attention) and m.chunk for m in dict.fromkeys(model.mixers()))
    return config.engine == "V1" and config.version.release >= ((0, 12) if chunked else (0, 9, 1))


def batches_in_flight(config: EngineConfig, found: Features) -> int:
    """Batches whose tokens a window keeps besides its own (``max_concurrent_batches``)."""
    if found.window_batches == 1:
        return 1
    if config.pipeline_parallel_size > 1:
        return config.pipeline_parallel_size
    return found.window_batches if config.async_scheduling else 1


def states_per_request(config: EngineConfig) -> int:
    """Recurrent states of one request: two with prefix caching (mode "align": the last block's and the current one)."""
    return 2 if config.enable_prefix_caching else 1


def packs_sparse_latents(profile: GpuProfile) -> bool:
    """Whether sparse MLA keeps an 8-bit cache in rows of 656 bytes (FlashMLA, SM 12.x) rather than of 576.

    FlashInfer's kernels for SM 10.x keep plain rows: a B200 logged 78 x 576 + 21 x 132 bytes per token.
    """
    return profile.vendor == "nvidia" and (profile.compute_capability or (0, 0))[0] != 10


def refines_fp8_blocks(version: EngineVersion) -> bool:
    """Whether the scales of fp8 experts are re-cut when a shard cuts a block: read in 0.32; refused before."""
    return version.release >= (0, 32)

"""Rules of vLLM's cache manager that depend on the settings or the GPU, one function for each.

What depends on the version is in ``planner.engine.features``.
"""

from __future__ import annotations

from planner.engine.config import EngineConfig
from planner.engine.features import Features
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Attention, Model


def keeps_windows(model: Model, found: Features) -> bool:
    """Whether layers with a window, or with chunks, keep only what a query can still see."""
    chunked = any(isinstance(m, Attention) and m.chunk for m in dict.fromkeys(model.mixers()))
    return found.keeps_chunks if chunked else found.keeps_windows


def batches_in_flight(config: EngineConfig, found: Features) -> int:
    """Batches whose tokens a window keeps besides its own (``max_concurrent_batches``)."""
    if found.window_batches == 1:
        return 1
    if config.pipeline_parallel_size > 1:
        return config.pipeline_parallel_size
    return found.window_batches if config.async_scheduling else 1


def states_per_request(config: EngineConfig) -> int:
    """Recurrent states of one request: two with prefix caching (mode "align": the last block's and the current one).

    Each draft token has a state of its own, to go back to when it is rejected (``num_speculative_blocks``).
    """
    drafts = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
    return (2 if config.enable_prefix_caching else 1) + drafts


def packs_sparse_latents(profile: GpuProfile) -> bool:
    """Whether sparse MLA keeps an 8-bit cache in rows of 656 bytes (FlashMLA, SM 12.x) rather than of 576.

    FlashInfer's kernels for SM 10.x keep plain rows: a B200 logged 78 x 576 + 21 x 132 bytes per token.
    """
    return profile.vendor == "nvidia" and (profile.compute_capability or (0, 0))[0] != 10

"""Defaults that moved between vLLM versions: batch sizes, block size, prefix caching, chunked prefill.

Each was read off vLLM's source distributions, 0.6.3 to 0.33.0; the file and function are named. Start-up logs
agree where they tell (``GPU KV cache size``, ``max_num_seqs`` in the engine's own summary).
"""

from __future__ import annotations

from typing import Literal

from planner.engine.features import Features
from planner.engine.version import EngineVersion
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Attention, CompressedAttention, LatentAttention, Model, StateMixer
from planner.units import GIB

Usage = Literal["serve", "offline"]

#: V0, ``SchedulerConfig``: tokens of a step that chunks; 512 to 0.6.4.
_V0_CHUNK_TOKENS = 2048
#: V0: least tokens of a step when a model sees images (``_MULTIMODAL_MODEL_MAX_NUM_BATCHED_TOKENS``).
_V0_MULTIMODAL_TOKENS = 5120


def is_hybrid(model: Model) -> bool:
    """Whether the model has layers with a state, beside attention or alone."""
    return any(isinstance(mixer, StateMixer) for mixer in model.mixers())


def uses_latent_attention(model: Model) -> bool:
    """Whether vLLM takes its MLA path."""
    return any(isinstance(mixer, LatentAttention) for mixer in model.mixers())


def chunked_prefill(model: Model, max_model_len: int, found: Features) -> bool:
    """V1 always chunks. V0 does for long contexts, but not with images, MLA or sliding windows (``arg_utils.py``)."""
    if found.chunked_prefill_above is None or max_model_len <= found.chunked_prefill_above:
        return False
    if found.engine == "V1":
        return True
    windows = any(isinstance(m, Attention) and m.window for m in model.mixers())
    return not (model.vision or windows or uses_latent_attention(model))


def prefix_caching(model: Model, found: Features) -> bool:
    """On in V1 for attention models, later for hybrids, never for pure state-space models."""
    if not is_hybrid(model):
        return found.prefix_caching
    attention = any(not isinstance(mixer, StateMixer) for mixer in model.mixers())
    return attention and found.hybrid_prefix_caching


def batch_defaults(
    profile: GpuProfile, version: EngineVersion, usage: Usage, *, world_size: int = 1
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a V1 engine, before the model's length is looked at.

    Source: ``_set_default_args_v1``, later ``get_batch_defaults``. ``world_size`` is TP x PP, which matters on CPUs.
    """
    offline = usage == "offline"
    if profile.platform == "cpu":
        return (4096 * world_size, 256 * world_size) if offline else (2048 * world_size, 128 * world_size)
    if version.release >= (0, 28) and profile.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if _is_large(profile, version):
        return (16384, 1024) if offline else (8192, 1024)
    small_seqs = 1024 if version.release < (0, 8, 4) else 256
    return (8192, small_seqs) if offline else (2048, small_seqs)


def v0_batched_tokens(version: EngineVersion, model: Model, max_model_len: int, *, chunked: bool) -> int:
    """max_num_batched_tokens of a V0 engine: a whole context unless it chunks (``SchedulerConfig``)."""
    if chunked:
        return 512 if version.release < (0, 6, 5) else _V0_CHUNK_TOKENS
    tokens = max(max_model_len, 2048)
    return max(tokens, _V0_MULTIMODAL_TOKENS) if model.vision else tokens


def block_size(model: Model, profile: GpuProfile, version: EngineVersion) -> int:
    """Tokens of a KV block.

    16 for models with KV heads. MLA follows its kernel (``platforms/cuda.py`` to 0.17, the backends'
    ``get_preferred_block_size`` after): FlashMLA 64 on Hopper until FlashAttention took over in 0.18, CUTLASS 128
    and then FlashInfer 32 on Blackwell, AITER 1 on AMD up to 0.19. Blocks of hybrid models grow to the size of
    their state; that is the memory model's to say.
    """
    release = version.release
    if any(isinstance(mixer, CompressedAttention) for mixer in model.mixers()):
        return 256  # sparse_swa.py; the recipes name it too
    if profile.platform == "cpu":
        return 16 if uses_latent_attention(model) or release < (0, 9) else 128
    if not uses_latent_attention(model):
        return 16
    if profile.platform == "rocm":
        return 1 if (0, 8, 5) <= release < (0, 20) else 16
    capability = (profile.compute_capability or (0, 0))[0]
    sparse = any(isinstance(mixer, LatentAttention) and mixer.indexer for mixer in model.mixers())
    if sparse and capability in (9, 10):
        return 64
    if capability == 10 and release >= (0, 10, 2):
        return 128 if release < (0, 18) else 32
    return 64 if capability == 9 and (0, 8) <= release < (0, 18) else 16


def _is_large(profile: GpuProfile, version: EngineVersion) -> bool:
    """By name to 0.8.4 (H100 and H200), by memory from 0.8.5; A100 excepted from 0.9.0, GB10 from 0.33.0."""
    name = profile.name.lower()
    if version.release < (0, 8, 5):
        return "h100" in name or "h200" in name
    if version.release >= (0, 9) and "a100" in name:
        return False
    if version.release >= (0, 33) and profile.compute_capability == (12, 1):
        return False
    return profile.memory_bytes >= 70 * GIB

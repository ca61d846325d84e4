"""How a vLLM version behaves where versions differ: one record per version and GPU, read by memory and time.

Each switch names the release in which it turned, and the file of vLLM that says so; the source distributions of
0.6.3 to 0.33.0 were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from planner.engine.config import Engine, EngineConfig, SpeculativeMethod
from planner.engine.fallback import BOTH_SINCE, ORACLE_GONE_IN, V0_GONE_IN, falls_back
from planner.engine.version import EngineVersion
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Model

#: Activation peak of the profiling run over rows x vocabulary x 4 bytes. Sorting the logits for top-k and top-p
#: holds them about ten times over (21 logged start-ups, 0.6.4 to 0.11: 9.59 to 9.97); the Triton and FlashInfer
#: samplers do not sort (about 4).
SORTING_SAMPLER, SORT_FREE_SAMPLER = 9.7, 4.0

GraphMode = Literal["decode", "piecewise", "full-and-piecewise"]


@dataclass(frozen=True, slots=True)
class Features:
    """What an engine of one version does on one GPU when nothing is asked of it."""

    engine: Engine
    chunked_prefill_above: int | None  #: chunks when max_model_len is above this; 0 always, None never
    prefix_caching: bool  #: default for models with attention only
    hybrid_prefix_caching: bool  #: default for models that mix attention and state layers
    async_scheduling: bool  #: default
    async_scheduling_exists: bool
    async_scheduling_with_pipeline: bool  #: together with pipeline parallelism
    graph_mode: GraphMode  #: decode: full graphs of decode steps; piecewise: attention stays outside the graph
    max_graph_batch: int  #: largest batch that is captured, whatever ``max_num_seqs`` is
    graphs_in_budget: bool  #: graph memory is subtracted before the KV pool is cut; else it comes on top
    activation_includes_graphs: bool  #: the printed activation peak contains the graph estimate
    sampler_factor: float  #: see SORTING_SAMPLER
    kv_tokens: Literal["blocks", "concurrency"]  #: printed KV tokens: blocks x block size, or concurrency x length
    window_batches: int  #: batches in flight whose tokens a sliding window keeps blocks for
    default_gpu_memory_utilization: float
    keeps_windows: bool  #: layers with a sliding window keep only their window, beside layers of full attention
    keeps_chunks: bool  #: the same for chunked attention
    pipeline_remainder_last: bool  #: layers that do not divide by the stages all go to the last one
    refines_fp8_blocks: bool  #: scales of fp8 experts are re-cut when a shard cuts a block; refused before
    streams_online_quantization: bool  #: ``--quantization fp8`` never holds the 16-bit model
    reserves_whole_prompt: bool  #: default of ``--scheduler-reserve-full-isl``
    context_parallel_heads: bool  #: decode context parallelism for grouped-query attention; for latent attention before
    draft_models: bool  #: speculative decoding with a second, smaller model


def features(version: EngineVersion, profile: GpuProfile, *, engine: Engine | None = None) -> Features:
    """Behaviour of ``version`` on ``profile``; ``engine`` where it is not the default one."""
    release, rocm = version.release, profile.platform == "rocm"
    engine = engine or default_engine(version, profile)
    v1 = engine == "V1"
    asynchronous = v1 and release >= (0, 14) and profile.platform != "cpu"  # platforms/cpu.py switches it off
    # gpu_worker.py: an estimate for CUDA from 0.18.0, for ROCm from 0.26.0 (its pull request 44825 is quoted there)
    estimated = release >= ((0, 26) if rocm else (0, 18)) and profile.platform != "cpu"
    return Features(
        engine=engine,
        # arg_utils.py names CUDA from 0.8.0 on; AMD's build of 0.6.3 profiled 131,072 tokens whole (start-up log)
        chunked_prefill_above=0 if v1 else None if rocm else 32768,
        prefix_caching=v1,
        # config/model.py: unsupported to 0.25, opt-in in 0.26 and 0.27 (arg_utils.py), default from 0.28.0
        hybrid_prefix_caching=release >= (0, 28),
        async_scheduling=asynchronous,  # config/scheduler.py: False to 0.13, None (on where possible) from 0.14.0
        async_scheduling_exists=v1 and release >= (0, 10),
        async_scheduling_with_pipeline=release >= (0, 15),  # arg_utils.py to 0.11, config/vllm.py to 0.14: refused
        graph_mode=_graph_mode(version, engine),
        max_graph_batch=_max_graph_batch(version, profile, engine),
        graphs_in_budget=estimated and release >= (0, 20),  # envs.py: opt-in in 0.18 and 0.19, default from 0.20.0
        activation_includes_graphs=estimated and release >= (0, 27),
        sampler_factor=SORT_FREE_SAMPLER if release >= (0, 17) else SORTING_SAMPLER,  # topk_topp_triton.py
        kv_tokens="concurrency" if release >= (0, 20, 1) else "blocks",  # kv_cache_utils.py, 0.20.0 and 0.20.1
        # config/vllm.py, max_in_flight_tokens: from 0.26.0, two batches where scheduling is asynchronous
        window_batches=2 if asynchronous and release >= (0, 26) else 1,
        default_gpu_memory_utilization=0.92 if release >= (0, 20) else 0.90,  # config/cache.py
        keeps_windows=v1 and release >= (0, 9, 1),  # kv_cache_manager.py: the hybrid manager
        keeps_chunks=v1 and release >= (0, 12),  # config/vllm.py: off for Llama 4 before
        pipeline_remainder_last=release < (0, 8),  # distributed/utils.py; pull request 13839
        refines_fp8_blocks=release >= (0, 32),  # layers/quantization/fp8.py of 0.32 has it
        streams_online_quantization=release >= (0, 15),  # pull request 31914
        reserves_whole_prompt=v1 and release >= (0, 19),  # config/scheduler.py
        context_parallel_heads=v1 and release >= (0, 11, 1),  # config/model.py, verify_with_parallel_config
        draft_models=v1 and release >= (0, 15),  # v1/spec_decode/draft_model.py; V0 had its own until 0.9
    )


def features_of(config: EngineConfig, profile: GpuProfile) -> Features:
    """Behaviour of the engine that ``config`` describes."""
    return features(config.version, profile, engine=config.engine)


def default_engine(
    version: EngineVersion,
    profile: GpuProfile,
    *,
    model: Model | None = None,
    fp8_kv_cache: bool = False,
    fp32: bool = False,
    pipeline: bool = False,
    drafts: SpeculativeMethod | None = None,
) -> Engine:
    """V0 or V1, as the oracle in ``arg_utils.py`` decides when ``VLLM_USE_V1`` is not set; V0 where 0.11.0 would end.

    What else of a command line brings V0 back is in ``planner.engine.fallback``. On AMD upstream switches in 0.9.2;
    AMD's images, the only ones for these GPUs then, switch in 0.9.1 (their change log of 20250620).
    """
    release = version.release
    if version.engine:
        return version.engine
    if not BOTH_SINCE <= release < ORACLE_GONE_IN:
        return "V0" if release < BOTH_SINCE else "V1"
    if model and falls_back(model, version, on_cpu=profile.platform == "cpu"):
        return "V0"
    if release >= V0_GONE_IN:
        return "V1"
    if (fp32 and release < (0, 9, 2)) or (pipeline and release < (0, 9, 1)):
        return "V0"
    if drafts and release < ((0, 10) if drafts == "draft_model" else (0, 9)):
        return "V0"
    if profile.platform == "rocm":
        return "V1" if release >= (0, 9, 1) else "V0"
    if profile.platform == "cpu":
        return "V1" if release >= (0, 9, 1) else "V0"
    capability = profile.compute_capability or (0, 0)
    if (capability < (8, 0) and release < (0, 10, 2)) or (fp8_kv_cache and not _v1_reads_fp8(release, capability)):
        return "V0"
    return "V1"


def graph_batches(config: EngineConfig, found: Features) -> tuple[int, ...]:
    """Batch sizes that are captured as graphs, ascending; none with ``enforce_eager``.

    Source: ``_BATCH_SIZES_TO_CAPTURE`` of V0's model runner, which goes on to the first size that holds a full
    batch; ``_set_cudagraph_sizes`` of V1, in steps of 16 beyond 256 from 0.11.1 on.
    """
    if config.enforce_eager:
        return ()
    seqs, release = config.max_num_seqs, config.version.release
    if config.engine == "V0":
        limit = next((size for size in (1, 2, 4) if size >= seqs), 8 * ceil(seqs / 8))
    else:
        limit = min(found.max_graph_batch, config.max_num_batched_tokens)
        limit = min(limit, 2 * seqs) if release >= (0, 10) else limit
    coarse = 256 if release >= (0, 11, 1) else limit + 8
    sizes = (1, 2, 4, *range(8, min(limit + 1, coarse), 8), *range(coarse, limit + 1, 16))
    return tuple(size for size in sizes if size <= limit)


def _v1_reads_fp8(release: tuple[int, ...], capability: tuple[int, int]) -> bool:
    """FlashAttention 3 (Hopper) from 0.8.2, every Blackwell backend from 0.10.0."""
    return (capability[0] == 9 and release >= (0, 8, 2)) or (capability[0] == 10 and release >= (0, 10))


def _graph_mode(version: EngineVersion, engine: Engine) -> GraphMode:
    if engine == "V0":
        return "decode"
    return "full-and-piecewise" if version.release >= (0, 11) else "piecewise"


def _max_graph_batch(version: EngineVersion, profile: GpuProfile, engine: Engine) -> int:
    """8192 in V0, 512 in V1, 1024 on Blackwell data centre GPUs from 0.28.0 (``_set_cudagraph_sizes``)."""
    if engine == "V0":
        return 8192
    blackwell = (profile.compute_capability or (0, 0))[0] == 10
    return 1024 if blackwell and version.release >= (0, 28) else 512

"""How a vLLM version behaves where versions differ: one record per version and GPU, read by memory and time.

Each switch names the release in which it turned, and the file of vLLM that says so; the source distributions of 0.6.3
to 0.33.0 were read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from planner.engine.generation import default_engine
from planner.engine.settings import Engine, EngineConfig
from planner.engine.sharding import Fp8Blocks
from planner.engine.version import EngineVersion, Release
from planner.hardware import GpuProfile

GraphMode = Literal["decode", "piecewise", "full-and-piecewise"]
#: MLA's cache: one row of latents, such rows padded to 256 bytes, or the keys and values of every head.
Latents = Literal["rows", "padded rows", "heads"]
#: What cuts the logits to top-k and top-p. ``unknown``: FlashInfer where somebody installed it, sorting elsewhere.
Sampler = Literal["sorting", "triton", "flashinfer", "unknown"]


@dataclass(frozen=True, slots=True)
class Features:
    """What an engine of one version does on one GPU where no option says otherwise."""

    engine: Engine
    chunked_prefill_above: int | None  #: prompts are split where max_model_len is above this; 0 always, None never
    prefix_caching: bool  #: default for models with attention only
    hybrid_prefix_caching: bool  #: default for models that mix attention and state layers
    async_scheduling: bool  #: default
    async_scheduling_exists: bool
    async_scheduling_with_pipeline: bool  #: together with pipeline parallelism
    graph_mode: GraphMode  #: decode: full graphs of decode steps; piecewise: attention stays outside the graphs
    max_graph_batch: int  #: largest batch that is captured, whatever ``max_num_seqs`` is
    graphs_in_budget: bool  #: graph memory is subtracted before the KV cache is sized; else it comes on top
    activation_includes_graphs: bool  #: the printed activation peak contains the graph estimate
    sampler: Sampler  #: where nobody chooses: sorting holds the logits about ten times over, the others about four
    kv_tokens: Literal["blocks", "concurrency"]  #: logged KV tokens: blocks x block size, or concurrency x length
    window_batches: int  #: batches in flight whose tokens a sliding window keeps blocks for
    default_gpu_memory_utilization: float
    keeps_windows: bool  #: a layer with a sliding window keeps only its window, beside layers of full attention
    keeps_chunks: bool  #: the same for chunked attention
    latents: Latents  #: how multi-head latent attention keeps its cache
    absorbs_latents: bool  #: V0 keeps products of latent projections beside them, and switches chunks off late
    pipeline_remainder_last: bool  #: layers left over by the division into stages all go to the last stage
    fp8_blocks: Fp8Blocks  #: which blocks of fp8 weights a shard may cut
    streams_online_quantization: bool  #: ``--quantization fp8`` never holds the 16-bit model
    reserves_whole_prompt: bool  #: a prompt is admitted where all of it has room; ``--scheduler-reserve-full-isl``
    watermark: float  #: share of the KV blocks that an admission leaves free
    context_parallel_heads: bool  #: decode context parallelism serves grouped-query attention too, not only latent
    draft_models: bool  #: speculative decoding with a second, smaller model


def version_features(version: EngineVersion, profile: GpuProfile, *, engine: Engine | None = None) -> Features:
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
        sampler=_sampler(release, profile, engine),
        kv_tokens="concurrency" if release >= (0, 20, 1) else "blocks",  # kv_cache_utils.py, 0.20.0 and 0.20.1
        # config/vllm.py, max_in_flight_tokens: from 0.26.0, two batches where scheduling is asynchronous
        window_batches=2 if asynchronous and release >= (0, 26) else 1,
        default_gpu_memory_utilization=0.92 if release >= (0, 20) else 0.90,  # config/cache.py
        keeps_windows=v1 and release >= (0, 9, 1),  # kv_cache_manager.py: the hybrid manager
        keeps_chunks=v1 and release >= (0, 12),  # config/vllm.py: off for Llama 4 before
        latents=_latents(release, profile),
        absorbs_latents=(0, 7, 1) <= release < (0, 8),  # attention/backends/mla/utils.py; config.py, VllmConfig
        pipeline_remainder_last=release < (0, 8),  # distributed/utils.py; pull request 13839
        fp8_blocks="whole" if release < (0, 14) else "merged" if release < (0, 32) else "refined",
        streams_online_quantization=release >= (0, 15),  # pull request 31914
        reserves_whole_prompt=not v1 or release >= (0, 19),  # config/scheduler.py; V0: can_allocate of block_manager.py
        watermark=0.0 if v1 else 0.01,  # core/block_manager.py
        context_parallel_heads=v1 and release >= (0, 11, 1),  # config/model.py, verify_with_parallel_config
        draft_models=v1 and release >= (0, 15),  # v1/spec_decode/draft_model.py; V0 had its own until 0.9
    )


def features_of(config: EngineConfig, profile: GpuProfile) -> Features:
    """Behaviour of the engine that ``config`` describes."""
    found = version_features(config.version, profile, engine=config.engine)
    asked = config.flashinfer_sampler
    if asked is None:
        return found
    return replace(found, sampler="flashinfer" if asked else _own_sampler(config.version.release))


def graph_batches(config: EngineConfig, found: Features) -> tuple[int, ...]:
    """Batch sizes that are captured as graphs, ascending; none with ``enforce_eager``.

    Source: ``_BATCH_SIZES_TO_CAPTURE`` of V0's model runner, up to the first size that holds a full batch;
    ``_set_cudagraph_sizes`` of V1, in steps of 16 beyond 256 from 0.11.1 on.
    """
    if config.enforce_eager:
        return ()
    seqs, release = config.max_num_seqs, config.version.release
    if config.engine == "V0":
        limit = next((size for size in (1, 2, 4) if size >= seqs), 8 * ceil(seqs / 8))
    else:
        limit = min(found.max_graph_batch, config.max_num_batched_tokens)
        limit = min(limit, 2 * seqs) if release >= (0, 10) else limit
        if config.max_cudagraph_capture_size:
            limit = min(config.max_cudagraph_capture_size, config.max_num_batched_tokens)
    coarse = 256 if release >= (0, 11, 1) else limit + 8
    sizes = (1, 2, 4, *range(8, min(limit + 1, coarse), 8), *range(coarse, limit + 1, 16))
    return tuple(size for size in sizes if size <= limit)


def _latents(release: Release, profile: GpuProfile) -> Latents:
    """0.7.0 and before have no MLA (``deepseek_v2.py``); 0.7.2 and 0.7.3 align entries (``worker/cache_engine.py``)."""
    if release < (0, 7, 1):
        return "heads"
    return "padded rows" if (0, 7, 2) <= release < (0, 8) and profile.platform == "cuda" else "rows"


def _sampler(release: Release, profile: GpuProfile, engine: Engine) -> Sampler:
    """The sampler where ``VLLM_USE_FLASHINFER_SAMPLER`` is not set (``v1/sample/ops/topk_topp_sampler.py``).

    V1 took FlashInfer wherever it was installed to 0.11.0: by hand, or in the image. From 0.11.1 (pull request 26859)
    it has to be asked for, and from 0.21.0 (``envs.py``) it is the default of every NVIDIA GPU that it runs on.
    """
    if profile.platform == "cuda" and engine == "V1":
        if release < (0, 11, 1):
            return "unknown"
        if release >= (0, 21) and (profile.compute_capability or (0, 0)) >= (7, 5):
            return "flashinfer"
    return _own_sampler(release)


def _own_sampler(release: Release) -> Sampler:
    """Without FlashInfer: PyTorch's sort, from 0.17.0 on a Triton kernel (``topk_topp_triton.py``)."""
    return "sorting" if release < (0, 17) else "triton"


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

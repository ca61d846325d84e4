"""Behaviour that differs between vLLM versions: the engine, the model runner, and their features.

Read off the sources of 0.6.3 to 0.33.0. Releases from 0.8.0 to 0.10 have V0 and V1; ``_is_v1_supported_oracle`` in
``arg_utils.py`` and ``SupportsV0Only`` decide. With asynchronous scheduling the last stage of a pipeline sends its
tokens to all others. The first runner (``v1/worker/gpu_model_runner.py``) then has one step at a time in the pipeline.
The second (``v1/worker/gpu/model_runner.py``) has as many batches as stages.

>>> from planner.engine.version import parse_version
>>> needs_v0({"--num-scheduler-steps": "8", "--seed": "1"}, {}, parse_version("0.9.1"))
('--num-scheduler-steps 8',)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Literal

from planner.engine.flags import GRAPH_ESTIMATE, flag_status
from planner.engine.settings import Engine, EngineArgs, EngineConfig, SpeculativeMethod
from planner.engine.sharding import Fp8Blocks
from planner.engine.version import EngineVersion, Release, release_of
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.model import Attention, LatentAttention, Model, StateMixer
from planner.resources import package_dir, tables_of

#: First release with both engines, first without V0, and first without the oracle.
BOTH_SINCE, V0_GONE_IN, ORACLE_GONE_IN = (0, 8), (0, 11), (0, 11, 1)
#: First release that runs models with states on V1 by default ("V1 mamba models are unoptimized" before).
_STATES_SINCE: Release = (0, 10, 2)
#: V1 runs on CPUs from the first of these on; from the second on, until the oracle goes, without sliding windows.
_CPU_SINCE, _NO_WINDOWS_ON_CPU_SINCE = (0, 9, 1), (0, 9, 2)
_PIPELINES_SINCE: Release = (0, 9, 1)  #: first release whose V1 runs pipelines with the default executor
#: Largest ``--max-cudagraph-capture-size`` that is planned: that of InferenceX's lines for gpt-oss-120b and MiniMax-M3.
MOST_CAPTURED = 2048


def has_both_engines(version: EngineVersion) -> bool:
    return BOTH_SINCE <= version.release < V0_GONE_IN


def _brings_v0_back(rule: Mapping[str, Any], value: str) -> bool:
    if "default" not in rule:
        word = value.split(":")[0]
        return word in rule["only"] if "only" in rule else word not in rule.get("unless", ())
    try:
        return float(value) != float(rule["default"])
    except ValueError:
        return False  # the parser refuses it


def needs_v0(options: Mapping[str, str], env: Mapping[str, str], version: EngineVersion) -> tuple[str, ...]:
    """The words of a line that the V1 engine of ``version`` does not serve. ``options``: values by whole name."""
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return ()
    given = {**env, **options}
    if pipelines_on_v1(options, version):
        given.pop("--pipeline-parallel-size", None)
    return tuple(
        f"{word}{' ' if word.startswith('--') else '='}{given[word]}".strip()
        for rule in tables_of(package_dir("engine") / "old_engine.toml")["rule"]
        if (word := rule["word"]) in given
        and version.release < release_of(rule["until"])
        and _brings_v0_back(rule, given[word])
    )


def pipelines_on_v1(options: Mapping[str, str], version: EngineVersion) -> bool:
    """True if ``--distributed-executor-backend`` keeps a pipeline on V1 that would otherwise run on V0."""
    backends = ("ray",) if version.release < (0, 9) else ("ray", "mp", "external_launcher")
    both = BOTH_SINCE <= version.release < _PIPELINES_SINCE
    return both and options.get("--distributed-executor-backend") in backends


def v1_serves(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    release = version.release
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in model.distinct_mixers)
    if on_cpu and (release < _CPU_SINCE or (windows and _NO_WINDOWS_ON_CPU_SINCE <= release < ORACLE_GONE_IN)):
        return False
    return release >= releases("v1").get(model.architecture, BOTH_SINCE)


def asked_engine(only_v0: Sequence[str], use_v1: str | None, version: EngineVersion) -> Engine | None:
    """The engine that ``VLLM_USE_V1`` or words for V0 ask for, if any. Raises IllegalPlanError where vLLM stops."""
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return None
    asked: Engine | None = None if use_v1 not in ("0", "1") else "V1" if use_v1 == "1" else "V0"
    if only_v0 and asked == "V1":
        cause = f"VLLM_USE_V1=1 is not supported with {' and '.join(only_v0)} in vLLM {version}"
        raise IllegalPlanError(cause, hint=f"leave out {' and '.join(only_v0)}")
    wanted = "V0" if only_v0 else asked
    if wanted == "V0" and version.release >= V0_GONE_IN:
        cause = f"{' and '.join(only_v0) or 'VLLM_USE_V1=0'} asks for the V0 engine, which vLLM {version} does not have"
        raise IllegalPlanError(cause, hint=f"leave out {' and '.join(only_v0) or 'VLLM_USE_V1'}")
    return wanted


def default_engine(
    version: EngineVersion, profile: GpuProfile, model: Model | None = None, fp8_kv_cache: bool = False,
    fp32: bool = False, pipeline: bool = False, drafts: SpeculativeMethod | None = None,
) -> Engine:  # fmt: skip
    """The engine where ``VLLM_USE_V1`` is not set and no word asks for V0; V0 where 0.11.0 would stop. Upstream
    switches to V1 on AMD in 0.9.2, AMD's images in 0.9.1 (their change log of 20250620)."""
    release = version.release
    if version.engine:
        return version.engine
    if not BOTH_SINCE <= release < ORACLE_GONE_IN:
        return "V0" if release < BOTH_SINCE else "V1"
    if model and not v1_serves(model, version, on_cpu=profile.platform == "cpu"):
        return "V0"
    if model and is_hybrid(model) and release < _STATES_SINCE:
        return "V0"
    if release >= V0_GONE_IN:
        return "V1"
    if (fp32 and release < (0, 9, 2)) or (pipeline and release < (0, 9, 1)):
        return "V0"
    if drafts and release < ((0, 10) if drafts == "draft_model" else (0, 9)):
        return "V0"
    if profile.platform in ("rocm", "cpu"):
        return "V1" if release >= (0, 9, 1) else "V0"
    capability = profile.compute_capability or (0, 0)
    # FlashAttention 3 (Hopper) reads fp8 from 0.8.2, every Blackwell backend from 0.10.0
    reads_fp8 = release >= {9: (0, 8, 2), 10: (0, 10)}.get(capability[0], V0_GONE_IN)
    return "V0" if (capability < (8, 0) and release < (0, 10, 2)) or (fp8_kv_cache and not reads_fp8) else "V1"


#: ``sampling``: steps that sample a token.
LoneSteps = Literal["none", "sampling", "all"]
#: First release with the second runner for dense models, and for all others that are not named here.
_DENSE_FROM, _ALL_FROM = (0, 25), (0, 29)
_UNQUANTIZED = ("bf16", "fp16", "fp32")


def lone_steps(model: Model, config: EngineConfig, profile: GpuProfile) -> LoneSteps:
    """Steps that have a pipeline to themselves. The first runner waits for every step in 0.16 to 0.19, from 0.20 on not
    where all prompts go on (``_pp_receive_prev_sampled_token_ids_to_input_batch``; pull request 38726)."""
    release = config.version.release
    waits = config.pipeline_parallel_size > 1 and config.async_scheduling and release >= (0, 16)
    if not waits or release >= _second_runner_from(model, config, profile):
        return "none"
    return "sampling" if release >= (0, 20) else "all"


def _second_runner_from(model: Model, config: EngineConfig, profile: GpuProfile) -> Release:
    """The release in which a model takes the second runner, which waits no more (0.23: pull request 42187).

    Read off ``use_v2_model_runner`` in ``config/vllm.py``, 0.23 to 0.32, without its variable and options."""
    name = model.architecture
    if profile.platform == "rocm" and name in releases("second_runner_on_rocm"):
        return releases("second_runner_on_rocm")[name]
    others = _ALL_FROM if model.is_moe or is_hybrid(model) else _DENSE_FROM
    named = releases("second_runner").get(name, others)
    return (0, 24) if named == (0, 23, 0) and config.weight_dtype not in _UNQUANTIZED else named


GraphMode = Literal["decode", "piecewise", "full-and-piecewise"]
#: MLA's cache: one row of latents, such rows padded to 256 bytes, or the keys and values of every head.
Latents = Literal["rows", "padded rows", "heads"]
#: Without FlashInfer PyTorch sorts; from then on a Triton kernel samples (``topk_topp_triton.py``).
_TRITON_SAMPLER_SINCE: Release = (0, 17)
#: Sampler of top-k and top-p. ``unknown``: FlashInfer if it is installed, else sorting.
Sampler = Literal["sorting", "triton", "flashinfer", "unknown"]


#: Prefixes of models with state layers. ``mamba``: if asked, and all states are Mamba's.
HybridPrefixCaching = Literal["refused", "ignored", "mamba", "asked", "default"]
#: ``MambaModelConfig`` switches it off from 0.10.2 on, models assert before; pull requests 25752, 26377 and 30877;
#: ``is_prefix_caching_supported`` is the default.
_HYBRID_PREFIX_CACHING: tuple[tuple[Release, HybridPrefixCaching], ...] = (
    ((0, 28), "default"), ((0, 15), "asked"), ((0, 11, 1), "mamba"), ((0, 10, 2), "ignored"), ((0,), "refused"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Features:
    engine: Engine
    chunked_prefill_above: int | None  #: prompts are split where max_model_len is above this; 0 always, None never
    prefix_caching: bool  #: default for models with attention only
    hybrid_prefix_caching: HybridPrefixCaching  #: of models with state layers
    async_scheduling: bool  #: default
    async_scheduling_exists: bool
    async_scheduling_with_pipeline: bool  #: together with pipeline parallelism
    graph_mode: GraphMode  #: decode: full graphs of decode steps; piecewise: attention stays outside the graphs
    max_graph_batch: int  #: largest batch that is captured, whatever ``max_num_seqs`` is
    graphs_in_budget: bool  #: graph memory is subtracted before the KV cache is sized; else it comes on top
    activation_includes_graphs: bool  #: the printed activation peak contains the graph estimate
    sampler: Sampler  #: by default; sorting holds the logits about ten times over, the others about four
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
    reserves_whole_prompt: bool  #: a prompt is admitted if all of it fits; ``--scheduler-reserve-full-isl``
    watermark: float  #: share of the KV blocks that an admission leaves free
    context_parallel_heads: bool  #: decode context parallelism serves grouped-query attention too, not only latent
    draft_models: bool  #: speculative decoding with a second, smaller model


def version_features(version: EngineVersion, profile: GpuProfile, *, engine: Engine | None = None) -> Features:
    release, rocm, cuda = version.release, profile.platform == "rocm", profile.platform == "cuda"
    engine, blackwell = engine or default_engine(version, profile), (profile.compute_capability or (0, 0))[0] == 10
    v1 = engine == "V1"
    asynchronous = v1 and release >= (0, 14) and profile.platform != "cpu"  # platforms/cpu.py switches it off
    estimated, shared = _estimates_graphs(release, profile), profile.memory.utilization
    return Features(
        engine=engine,
        # arg_utils.py names CUDA from 0.8.0 on; AMD's build of 0.6.3 profiled 131,072 tokens whole (start-up log)
        chunked_prefill_above=0 if v1 else None if rocm else 32768,
        prefix_caching=v1,
        hybrid_prefix_caching=next(how for since, how in _HYBRID_PREFIX_CACHING if release >= since),
        async_scheduling=asynchronous,  # config/scheduler.py: False to 0.13, None (on where possible) from 0.14.0
        async_scheduling_exists=v1 and release >= (0, 10),
        async_scheduling_with_pipeline=release >= (0, 15),  # arg_utils.py to 0.11, config/vllm.py to 0.14: refused
        graph_mode="decode" if not v1 else "full-and-piecewise" if release >= (0, 11) else "piecewise",
        # _set_cudagraph_sizes: twice as many on Blackwell data centre GPUs from 0.28.0
        max_graph_batch=8192 if not v1 else 1024 if blackwell and release >= (0, 28) else 512,
        graphs_in_budget=estimated and release >= (0, 20),  # envs.py: opt-in in 0.18 and 0.19, default from 0.20.0
        activation_includes_graphs=estimated and release >= (0, 27),
        sampler=_sampler(release, profile, engine),
        kv_tokens="concurrency" if release >= (0, 20, 1) else "blocks",  # kv_cache_utils.py, 0.20.0 and 0.20.1
        # config/vllm.py, max_in_flight_tokens: from 0.26.0, two batches where scheduling is asynchronous
        window_batches=2 if asynchronous and release >= (0, 26) else 1,
        default_gpu_memory_utilization=shared.value if shared else default_utilization(version),
        keeps_windows=v1 and release >= (0, 9, 1),  # kv_cache_manager.py: the hybrid manager
        keeps_chunks=v1 and release >= (0, 12),  # config/vllm.py: off for Llama 4 before
        # deepseek_v2.py: no MLA to 0.7.0; worker/cache_engine.py: 0.7.2 and 0.7.3 align entries
        latents="heads" if release < (0, 7, 1) else "padded rows" if (0, 7, 2) <= release < (0, 8) and cuda else "rows",
        absorbs_latents=(0, 7, 1) <= release < (0, 8),  # attention/backends/mla/utils.py; config.py, VllmConfig
        pipeline_remainder_last=release < (0, 8),  # distributed/utils.py; pull request 13839
        fp8_blocks="whole" if release < (0, 14) else "merged" if release < (0, 32) else "refined",
        streams_online_quantization=release >= (0, 15),  # pull request 31914
        reserves_whole_prompt=not v1 or release >= (0, 19),  # config/scheduler.py; V0: can_allocate of block_manager.py
        watermark=0.0 if v1 else 0.01,  # core/block_manager.py
        context_parallel_heads=v1 and release >= (0, 11, 1),  # config/model.py, verify_with_parallel_config
        draft_models=v1 and release >= (0, 15),  # v1/spec_decode/draft_model.py; V0 had its own until 0.9
    )


def default_utilization(version: EngineVersion) -> float:
    """Return vLLM's own ``gpu_memory_utilization``, ``config/cache.py``; plans for shared memory have a smaller one."""
    return 0.92 if version.release >= (0, 20) else 0.90


def _estimates_graphs(release: tuple[int, ...], profile: GpuProfile) -> bool:
    # gpu_worker.py: for CUDA from 0.18.0, for ROCm from 0.26.0 (its pull request 44825 is quoted there)
    return release >= ((0, 26) if profile.platform == "rocm" else (0, 18)) and profile.platform != "cpu"


def features_of(config: EngineConfig, profile: GpuProfile) -> Features:
    features = version_features(config.version, profile, engine=config.engine)
    counted = config.env.switch(GRAPH_ESTIMATE)  # ``determine_available_memory`` of v1/worker/gpu_worker.py
    if counted is not None:
        features = replace(features, graphs_in_budget=counted and _estimates_graphs(config.version.release, profile))
    asked = config.flashinfer_sampler
    if asked is None:
        return features
    without: Sampler = "sorting" if config.version.release < _TRITON_SAMPLER_SINCE else "triton"
    return replace(features, sampler="flashinfer" if asked else without)


def sorts(config: EngineConfig, profile: GpuProfile) -> bool:
    """Return True if the sampler sorts the logits of each token."""
    return config.truncates and features_of(config, profile).sampler == "sorting"


def graph_batches(config: EngineConfig, features: Features) -> tuple[int, ...]:
    """Batch sizes that are captured as graphs, ascending; none with ``enforce_eager`` or DeepEP for prompts.

    V0: ``_BATCH_SIZES_TO_CAPTURE`` up to a full batch. V1: ``_set_cudagraph_sizes``; from 0.11.1 by 16 beyond 256."""
    if config.enforce_eager or "eager" in config.exchange:
        return ()
    seqs, release = config.max_num_seqs, config.version.release
    if config.engine == "V0":
        limit = next((size for size in (1, 2, 4) if size >= seqs), 8 * ceil(seqs / 8))
    else:
        limit = min(features.max_graph_batch, config.max_num_batched_tokens)
        each_tok = 1 + config.drafted_tok if release >= (0, 13) else 1  # of a decoding request; pull request 30330
        limit = min(limit, 2 * seqs * each_tok) if release >= (0, 10) else limit
        if config.max_cudagraph_capture_size:
            limit = min(config.max_cudagraph_capture_size, config.max_num_batched_tokens)
    coarse = 256 if release >= (0, 11, 1) else limit + 8
    sizes = (1, 2, 4, *range(8, min(limit + 1, coarse), 8), *range(coarse, limit + 1, 16))
    return tuple(size for size in sizes if size <= limit)


def state_blocks(model: Model, config: EngineConfig, features: Features) -> int:
    """Return the KV blocks that graphs of decode steps need, one for the state of each request.

    To 0.17 GDN and KDA for the largest graph (issue 34094); 0.18 and 0.19 capture smaller graphs instead (34571); from
    0.20.0 all for every place (pull request 38270, ``resolve_cudagraph_mode_and_sizes`` of ``config/compilation.py``).
    """
    release, kinds = config.version.release, {getattr(mixer, "kind", "") for mixer in model.distinct_mixers}
    captured = [size for size in graph_batches(config, features) if size <= config.max_num_seqs]
    if features.graph_mode != "full-and-piecewise" or not captured or not is_hybrid(model):
        return 0
    checked = release < (0, 18) and kinds & {"gdn", "kda"} and not config.speculative_config
    return config.max_num_seqs if release >= (0, 20) else captured[-1] if checked else 0


def capture_size(settings: EngineArgs, version: EngineVersion, profile: GpuProfile) -> int | None:
    """Return ``--max-cudagraph-capture-size`` for as many decoding requests as ``settings`` have places for.

    None where vLLM captures as many by itself, or has no such option."""
    decoded_tok = (settings.max_num_seqs or 0) * (1 + settings.drafted_tok)
    wanted = min(16 * ceil(decoded_tok / 16), MOST_CAPTURED)  # large graphs have sizes of 16 tokens
    beyond = wanted > version_features(version, profile).max_graph_batch and not settings.enforce_eager
    known = flag_status(version, "--max-cudagraph-capture-size")
    return settings.max_cudagraph_capture_size or (wanted if beyond and known else None)


def _sampler(release: Release, profile: GpuProfile, engine: Engine) -> Sampler:
    """The sampler by default (``v1/sample/ops/topk_topp_sampler.py``).

    FlashInfer: to 0.11.0 where installed (pull request 26859), from 0.21.0 on NVIDIA GPUs that run it (``envs.py``)."""
    if profile.platform == "cuda" and engine == "V1":
        if release < (0, 11, 1):
            return "unknown"
        if release >= (0, 21) and (profile.compute_capability or (0, 0)) >= (7, 5):
            return "flashinfer"
    return "sorting" if release < _TRITON_SAMPLER_SINCE else "triton"


def is_hybrid(model: Model) -> bool:
    return any(isinstance(mixer, StateMixer) for mixer in model.distinct_mixers)


def uses_latent_attention(model: Model) -> bool:
    return any(isinstance(mixer, LatentAttention) for mixer in model.distinct_mixers)


def takes_aiter_attention(model: Model) -> bool:
    """Return True if all layers suit ``AiterFlashAttentionBackend`` (``v1/attention/backends/rocm_aiter_fa.py``)."""
    mixers = [mixer for mixer in model.distinct_mixers if isinstance(mixer, Attention) and mixer.indexer is None]
    heads = {size for mixer in mixers for size in (mixer.head_dim, mixer.v_head_dim)}
    windows = {mixer.window for mixer in mixers if mixer.window}
    plain = len(mixers) == len(model.distinct_mixers) and not any(mixer.chunk or mixer.cross for mixer in mixers)
    return plain and heads <= {64, 128, 256} and len(windows) <= 1


@cache
def releases(what: str) -> Mapping[str, Release]:
    entries = tables_of(package_dir("engine") / "architectures.toml")[what]
    return {name: release_of(release) for release, names in entries.items() for name in names}

"""Which of vLLM's two engines a command line gets, from 0.8.0 to 0.11.0: options and models that only V0 had bring it
back.

``_is_v1_supported_oracle`` in ``arg_utils.py`` looks at every option; the ones below were read in 0.8.5, 0.9.0.1,
0.9.1, 0.9.2, 0.10.0, 0.10.1, 0.10.2 and 0.11.0 (which has no V0 any more and ends where it would need it), and
``SupportsV0Only`` in the models of the same releases. What the oracle thinks of the GPU, the cache and the drafts is
``planner.engine.features.default_engine``.

>>> from planner.engine.version import parse_version
>>> needs_v0({"--num-scheduler-steps": "8", "--seed": "1"}, {}, parse_version("0.9.1"))
('--num-scheduler-steps 8',)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from planner.engine.settings import Engine, EngineConfig, SpeculativeMethod
from planner.engine.version import EngineVersion, Release
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.model import Attention, Model, StateMixer

#: Releases with V1 as the default and V0 beside it; the next one, and no other, still asks the oracle.
BOTH_SINCE, V0_GONE_IN, ORACLE_GONE_IN = (0, 8), (0, 11), (0, 11, 1)
#: ``V1_BACKENDS`` of all these releases together, but for 0.11.0, where no name is V0's any more.
_V1_BACKENDS = (
    "FLASH_ATTN_VLLM_V1", "FLASH_ATTN", "PALLAS", "PALLAS_VLLM_V1", "TRITON_ATTN_VLLM_V1", "TRITON_MLA",
    "CUTLASS_MLA_VLLM_V1", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_VLLM_V1", "FLASH_ATTN_MLA", "FLASHINFER",
    "FLASHINFER_VLLM_V1", "FLASHINFER_MLA", "ROCM_AITER_MLA", "TORCH_SDPA_VLLM_V1", "FLEX_ATTENTION", "TREE_ATTN",
    "XFORMERS_VLLM_V1",
)  # fmt: skip

#: Architectures that V0 alone served at first, with the release whose V1 serves them.
_V1_SERVES_SINCE: dict[str, Release] = {
    "NemotronHForCausalLM": (0, 9, 2), "GraniteMoeHybridForCausalLM": (0, 9, 2),
    "MambaForCausalLM": (0, 10, 1), "FalconMambaForCausalLM": (0, 10, 1), "JambaForCausalLM": (0, 10, 1),
    "MiniMaxText01ForCausalLM": (0, 10, 1), "MiniMaxM1ForCausalLM": (0, 10, 1),
    "BloomForCausalLM": (0, 10, 2), "MllamaForConditionalGeneration": V0_GONE_IN,
}  # fmt: skip
#: From here on models with states get V1 without being asked for ("V1 mamba models are unoptimized" before).
_STATES_SINCE: Release = (0, 10, 2)
#: V1 is on CPUs, and without sliding windows there from the second until the oracle goes.
_CPU_SINCE, _NO_WINDOWS_ON_CPU_SINCE = (0, 9, 1), (0, 9, 2)
#: From here on V1 has pipelines by whatever executor is the default.
_PIPELINES_SINCE: Release = (0, 9, 1)


@dataclass(frozen=True, slots=True)
class _Rule:
    """``option`` brings V0 back where its value passes ``when``; of a release before ``until``."""

    option: str
    until: Release
    when: Callable[[str], bool] = lambda _: True


def _other_than(*defaults: str) -> Callable[[str], bool]:
    return lambda value: value not in defaults


def _is_not(number: float) -> Callable[[str], bool]:
    def differs(value: str) -> bool:
        try:
            return float(value) != number
        except ValueError:
            return False  # refused for what it is

    return differs


_RULES = (
    _Rule("--load-format", (0, 9), lambda value: value == "tensorizer"),
    _Rule("--load-format", V0_GONE_IN, lambda value: value == "sharded_state"),
    _Rule("--logits-processor-pattern", ORACLE_GONE_IN),
    _Rule("--preemption-mode", V0_GONE_IN),
    _Rule("--disable-async-output-proc", V0_GONE_IN),
    _Rule("--scheduling-policy", (0, 9, 2), _other_than("fcfs")),
    _Rule("--num-scheduler-steps", (0, 10, 1), _is_not(1)),
    _Rule("--scheduler-delay-factor", V0_GONE_IN, _is_not(0)),
    _Rule("--guided-decoding-backend", (0, 10), lambda v: v.split(":")[0] not in ("auto", "xgrammar", "guidance")),
    _Rule("--guided-decoding-backend", (0, 10, 1), lambda value: value == "lm-format-enforcer"),
    _Rule("--enable-prompt-adapter", (0, 10)),
    _Rule("--enable-prompt-embeds", V0_GONE_IN),
    _Rule("--quantization", (0, 9), lambda value: value == "gguf"),
    _Rule("--max-num-partial-prefills", ORACLE_GONE_IN, _is_not(1)),
    _Rule("--max-long-partial-prefills", ORACLE_GONE_IN, _is_not(1)),
    _Rule("--otlp-traces-endpoint", (0, 10, 2)),
    _Rule("--collect-detailed-traces", (0, 10, 2)),
    _Rule("--dtype", (0, 9, 2), lambda value: value in ("float32", "float")),
    _Rule("--pipeline-parallel-size", _PIPELINES_SINCE, _is_not(1)),
    _Rule("VLLM_ATTENTION_BACKEND", V0_GONE_IN, _other_than("", *_V1_BACKENDS)),
)


def needs_v0(options: Mapping[str, str], env: Mapping[str, str], version: EngineVersion) -> tuple[str, ...]:
    """The words of a command line that the V1 engine of ``version`` does not serve; none where there is one engine.

    ``options`` are whole names with their values, empty for switches.
    """
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return ()
    given = {**env, **options}
    if pipelines_on_v1(options, version):
        given.pop("--pipeline-parallel-size", None)
    return tuple(
        f"{rule.option}{' ' if rule.option.startswith('--') else '='}{given[rule.option]}".strip()
        for rule in _RULES
        if rule.option in given and version.release < rule.until and rule.when(given[rule.option])
    )


def pipelines_on_v1(options: Mapping[str, str], version: EngineVersion) -> bool:
    """Whether ``--distributed-executor-backend`` keeps a pipeline on V1 that would else be V0's."""
    backends = ("ray",) if version.release < (0, 9) else ("ray", "mp", "external_launcher")
    both = BOTH_SINCE <= version.release < _PIPELINES_SINCE
    return both and options.get("--distributed-executor-backend") in backends


def v1_serves(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether V1 serves the model if it is asked to, in a ``version`` that has V1."""
    release = version.release
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in model.mixers())
    if on_cpu and (release < _CPU_SINCE or (windows and _NO_WINDOWS_ON_CPU_SINCE <= release < ORACLE_GONE_IN)):
        return False
    return release >= _V1_SERVES_SINCE.get(model.architecture, BOTH_SINCE)


def falls_back(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether ``version``, which has both engines, takes V0 for the model's sake if neither is asked for."""
    states = any(isinstance(mixer, StateMixer) for mixer in model.mixers())
    return not v1_serves(model, version, on_cpu=on_cpu) or (states and version.release < _STATES_SINCE)


def asked_engine(only_v0: Sequence[str], use_v1: str | None, version: EngineVersion) -> Engine | None:
    """The engine that a line decides on, by ``VLLM_USE_V1`` or by words that only V0 serves; None: the default one.

    Raises IllegalPlanError where vLLM ends: V1 asked for beside such words, or V0 where there is none any more.
    """
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return None
    asked: Engine | None = None if use_v1 not in ("0", "1") else "V1" if use_v1 == "1" else "V0"
    if only_v0 and asked == "V1":
        raise IllegalPlanError(
            f"VLLM_USE_V1=1 is not supported with {' and '.join(only_v0)} in vLLM {version}",
            hint=f"leave out {' and '.join(only_v0)}",
        )
    wanted = "V0" if only_v0 else asked
    if wanted == "V0" and version.release >= V0_GONE_IN:
        raise IllegalPlanError(
            f"{' and '.join(only_v0) or 'VLLM_USE_V1=0'} asks for the V0 engine, which vLLM {version} does not have",
            hint=f"leave out {' and '.join(only_v0) or 'VLLM_USE_V1'}",
        )
    return wanted


# --- How a vLLM version behaves where versions differ: one record per version and GPU, read by memory and time
#
# Each switch names the release in which it turned, and the file of vLLM that says so; the source distributions of
# 0.6.3 to 0.33.0 were read.

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
    return version_features(config.version, profile, engine=config.engine)


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

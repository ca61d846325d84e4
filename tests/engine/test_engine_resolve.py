"""Settings that an engine runs with: defaults by version and GPU, and what vLLM refuses.

The expected defaults were computed by vLLM's own ``EngineArgs`` of the version named, with the GPU's name and memory.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engine.features import features_of, graph_batches, lone_steps, version_features
from planner.engine.flags import Environment, table_versions
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs, EngineConfig
from planner.engine.version import parse_version, release_of
from planner.errors import IllegalPlanError, InputError, PlannerError
from planner.hardware.profiles import load_profile
from planner.model.architecture import Model
from planner.model.build import model_from_config
from planner.model.resolve import resolve_model

GPUS = ("mi300x", "mi300x-cpx", "mi355x", "h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "cpu")
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
DENSE = model_from_config(LLAMA, model_id="example/llama-8b")
MOE = resolve_model("Qwen/Qwen3-30B-A3B", network=False).model
LATENT = resolve_model("deepseek-ai/DeepSeek-R1", network=False).model
HYBRID = resolve_model("Qwen/Qwen3-Next-80B-A3B-Instruct", network=False).model
FP8 = resolve_model("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", network=False).model
GEMMA = resolve_model("google/gemma-2-9b-it", network=False).model
SPARSE = resolve_model("deepseek-ai/DeepSeek-V3.2", network=False).model
VERSIONS = st.sampled_from(table_versions()).map(parse_version)


def settings(version: str, gpu: str, model: Any = DENSE, *, usage: Any = "serve", **asked: Any) -> EngineConfig:
    return resolve(EngineArgs(**asked), model, load_profile(gpu), parse_version(version), usage=usage)


@pytest.mark.parametrize(
    ("version", "gpu", "usage", "tokens", "seqs"),
    [
        # by name, every sequence count alike
        ("0.8.0", "h100-sxm", "serve", 8192, 1024),
        ("0.8.0", "h100-sxm", "offline", 16384, 1024),
        ("0.8.0", "b200-sxm", "serve", 2048, 1024),
        ("0.8.4", "b200-sxm", "serve", 2048, 256),
        # by memory, 70 GiB and more
        ("0.8.5", "a100-sxm-80gb", "serve", 8192, 1024),
        ("0.8.5", "l40s", "serve", 2048, 256),
        ("0.8.5", "l40s", "offline", 8192, 256),
        # the A100 is an exception
        ("0.9.0", "a100-sxm-80gb", "serve", 2048, 256),
        ("0.9.0", "a100-sxm-80gb", "offline", 8192, 256),
        ("0.33.0", "a100-sxm-80gb", "serve", 2048, 256),
        ("0.11.0", "mi300x", "serve", 8192, 1024),
        ("0.11.0", "mi300x-cpx", "serve", 2048, 256),
        # 160 GiB and more
        ("0.27.1", "mi300x", "serve", 8192, 1024),
        ("0.28.0", "mi300x", "serve", 16384, 1024),
        ("0.28.0", "b200-sxm", "serve", 16384, 1024),
        ("0.28.0", "h200-sxm", "serve", 8192, 1024),
        ("0.28.0", "h200-sxm", "offline", 16384, 1024),
        ("0.32.0", "cpu", "serve", 2048, 128),
        ("0.32.0", "cpu", "offline", 4096, 256),
    ],
)
def test_batch_defaults(version: str, gpu: str, usage: str, tokens: int, seqs: int) -> None:
    config = settings(version, gpu, usage=usage)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("version", "gpu", "max_model_len", "tokens", "chunked"),
    [
        ("0.6.3", "h100-sxm", 8192, 8192, False),  # max(max_model_len, 2048)
        ("0.6.3", "h100-sxm", 1024, 2048, False),
        ("0.6.3", "h100-sxm", 131072, 512, True),  # above 32k
        ("0.7.3", "h100-sxm", 131072, 2048, True),
        ("0.7.3", "h100-sxm", 32768, 32768, False),
        ("0.7.3", "mi300x", 131072, 131072, False),  # AMD's builds profile the whole context
        ("0.8.5", "mi300x", 131072, 131072, False),
    ],
)
def test_v0_takes_whole_prompts_unless_the_context_is_long(
    version: str, gpu: str, max_model_len: int, tokens: int, chunked: bool
) -> None:
    config = settings(version, gpu, max_model_len=max_model_len)
    assert (config.engine, config.max_num_seqs) == ("V0", 256)
    assert (config.max_num_batched_tokens, config.enable_chunked_prefill) == (tokens, chunked)


@pytest.mark.parametrize(
    ("version", "gpu", "engine"),
    [
        ("0.7.3", "h100-sxm", "V0"),
        ("0.8.0", "h100-sxm", "V1"),
        ("0.8.5", "mi300x", "V0"),
        ("0.9.1", "mi300x", "V1"),  # AMD's change log of 20250620: V1 on by default
        ("0.9.2.dev364 (V0 engine)", "mi300x", "V0"),
        ("0.11.0", "mi300x", "V1"),
    ],
)
def test_which_engine_runs(version: str, gpu: str, engine: str) -> None:
    assert settings(version, gpu).engine == engine


def test_an_fp8_cache_falls_back_to_v0_where_v1_could_not_read_it() -> None:
    assert settings("0.8.0", "h100-sxm", kv_cache_dtype="fp8").engine == "V0"
    assert settings("0.8.5", "h100-sxm", kv_cache_dtype="fp8").engine == "V1"  # FlashAttention 3
    assert settings("0.8.5", "a100-sxm-80gb", kv_cache_dtype="fp8").engine == "V0"
    assert settings("0.9.2", "b200-sxm", kv_cache_dtype="fp8").engine == "V0"
    assert settings("0.10.0", "b200-sxm", kv_cache_dtype="fp8").engine == "V1"


BLOOM, MISTRAL = "bigscience/bloom", "mistralai/Mistral-7B-v0.1"
VISION = "meta-llama/Llama-3.2-11B-Vision-Instruct"
JAMBA, NEMOTRON = "ai21labs/Jamba-v0.1", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"


@pytest.mark.parametrize(
    ("version", "model", "gpu", "engine"),
    [
        # SupportsV0Only in vllm/model_executor/models of these releases
        ("0.10.1", BLOOM, "h100-sxm", "V0"),
        ("0.10.2", BLOOM, "h100-sxm", "V1"),
        ("0.10.2", VISION, "h100-sxm", "V0"),
        # get_sliding_window of the oracle in 0.9.2 to 0.11.0
        ("0.9.1", MISTRAL, "cpu", "V1"),
        ("0.9.2", MISTRAL, "cpu", "V0"),
        ("0.10.2", MISTRAL, "h100-sxm", "V1"),
        ("0.11.1", MISTRAL, "cpu", "V1"),
        # not_cuda to 0.9.0.1, then x86 too
        ("0.9.0", DENSE.id, "cpu", "V0"),
        ("0.9.1", DENSE.id, "cpu", "V1"),
        # "V1 mamba models are unoptimized" in 0.9.2 to 0.10.1
        ("0.10.2", JAMBA, "h100-sxm", "V1"),
        ("0.10.2", NEMOTRON, "h100-sxm", "V1"),
    ],
)
def test_models_get_the_engine_that_serves_them(version: str, model: str, gpu: str, engine: str) -> None:
    found = DENSE if model == DENSE.id else resolve_model(model, network=False).model
    assert settings(version, gpu, found).engine == engine


@pytest.mark.parametrize(
    ("version", "model", "gpu", "cause"),
    [
        ("0.6.6", JAMBA, "h100-sxm", "V0 engine, whose memory for states is not modelled"),
        ("0.9.1", NEMOTRON, "h100-sxm", "V0 engine, whose memory for states is not modelled"),
        ("0.10.1", NEMOTRON, "h100-sxm", "V0 engine, whose memory for states is not modelled"),
        ("0.11.0", MISTRAL, "cpu", "would need the V0 engine on this device"),
    ],
)
def test_what_the_old_engine_does_with_states_is_refused(version: str, model: str, gpu: str, cause: str) -> None:
    with pytest.raises(IllegalPlanError, match=cause):
        settings(version, gpu, resolve_model(model, network=False).model)


def test_v1_can_be_asked_for_where_it_serves_the_model() -> None:
    jamba, nemotron = (resolve_model(name, network=False).model for name in (JAMBA, NEMOTRON))
    asked = replace(parse_version("0.9.2"), engine="V1")  # VLLM_USE_V1=1
    assert resolve(EngineArgs(), nemotron, load_profile("h100-sxm"), asked).engine == "V1"
    with pytest.raises(IllegalPlanError, match=r"the V1 engine of vLLM 0\.9\.2 does not serve Jamba"):
        resolve(EngineArgs(), jamba, load_profile("h100-sxm"), asked)


def test_memory_utilisation_moved_in_0_20() -> None:
    assert settings("0.19.1", "h100-sxm").gpu_memory_utilization == 0.90
    assert settings("0.20.0", "h100-sxm").gpu_memory_utilization == 0.92


def test_async_scheduling_is_on_from_0_14_except_with_a_pipeline_then() -> None:
    assert not settings("0.13.0", "h100-sxm").async_scheduling
    assert settings("0.14.0", "h100-sxm").async_scheduling
    assert not settings("0.14.0", "h100-sxm", pipeline_parallel_size=2).async_scheduling
    assert settings("0.16.0", "h100-sxm", pipeline_parallel_size=2).async_scheduling
    assert settings("0.10.0", "h100-sxm", async_scheduling=True).async_scheduling
    assert not settings("0.32.0", "cpu").async_scheduling


@pytest.mark.parametrize(
    ("model", "gpu", "expected"),
    [
        # vLLM's own sources of these releases: broadcasts of sampled tokens, and which runner is taken
        (DENSE, "h100-sxm", {"0.15.0": "none", "0.16.0": "all", "0.19.1": "all"}),
        (DENSE, "h100-sxm", {"0.20.0": "sampling", "0.22.1": "sampling", "0.23.0": "none"}),
        (FP8, "h100-sxm", {"0.23.0": "sampling", "0.24.0": "none"}),
        (GEMMA, "h100-sxm", {"0.24.0": "sampling", "0.25.0": "none"}),
        (MOE, "h100-sxm", {"0.15.0": "none", "0.20.0": "sampling", "0.28.0": "sampling", "0.29.0": "none"}),
        (HYBRID, "h100-sxm", {"0.28.0": "sampling", "0.29.0": "none"}),
        (SPARSE, "h100-sxm", {"0.28.0": "sampling", "0.29.0": "none"}),
        (SPARSE, "mi300x", {"0.31.0": "sampling", "0.32.0": "none"}),
    ],
    ids=["old dense", "dense", "fp8", "gemma", "moe", "hybrid", "sparse", "sparse on rocm"],
)
def test_stages_wait_for_tokens_in_the_first_model_runner(model: Model, gpu: str, expected: dict[str, str]) -> None:
    profile = load_profile(gpu)
    staged = {version: settings(version, gpu, model, pipeline_parallel_size=2) for version in expected}
    assert {version: lone_steps(model, config, profile) for version, config in staged.items()} == expected
    unstaged = [settings(version, gpu, model) for version in expected]
    apart = [replace(config, async_scheduling=False) for config in staged.values()]
    assert {lone_steps(model, config, profile) for config in unstaged + apart} == {"none"}


def test_prefix_caching_by_engine_and_model() -> None:
    assert not settings("0.7.3", "h100-sxm").enable_prefix_caching
    assert settings("0.8.0", "h100-sxm").enable_prefix_caching
    assert not settings("0.27.1", "h100-sxm", HYBRID).enable_prefix_caching
    assert settings("0.28.0", "h100-sxm", HYBRID).enable_prefix_caching


@pytest.mark.parametrize(
    ("model", "since"), [("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.15.0"), ("ibm-granite/granite-4.0-h-small", "0.11.1")]
)
def test_prefixes_of_recurrent_states_are_kept_from_a_version_on(model: str, since: str) -> None:
    """vLLM's pull requests 25752 (Mamba, 0.11.1) and 30877 (all, 0.15.0; ``--mamba-cache-mode``); 0.11.0's log says
    "disabling prefix caching since it is not yet supported"."""
    given: dict[str, Any] = {"model": resolve_model(model).model, "enable_prefix_caching": True}
    for version in ("0.10.2", "0.11.0", "0.11.1", "0.14.1", "0.15.0", "0.27.1", "0.32.0"):
        asked = settings(version, "h100-sxm", tensor_parallel_size=4, **given)
        kept = release_of(version) >= release_of(since)
        assert (asked.enable_prefix_caching, len(asked.ignored)) == (kept, 0 if kept else 1), version


def test_before_0_10_2_a_hybrid_model_does_not_start_with_prefix_caching() -> None:
    """Mamba's layers assert that it is off; ``MambaModelConfig`` turns it off later."""
    granite = resolve_model("ibm-granite/granite-4.0-h-small").model
    asked: dict[str, Any] = {"env": Environment({"VLLM_USE_V1": "1"}), "tensor_parallel_size": 4}
    assert not settings("0.10.1", "h100-sxm", granite, **asked).enable_prefix_caching
    with pytest.raises(IllegalPlanError, match=r"--enable-prefix-caching: .* does not start"):
        settings("0.10.1", "h100-sxm", granite, enable_prefix_caching=True, **asked)


@pytest.mark.parametrize(
    ("version", "gpu", "size"),
    [
        ("0.11.0", "h200-sxm", 64),  # FlashMLA
        ("0.11.0", "b200-sxm", 128),  # CUTLASS MLA
        ("0.9.1", "mi300x", 1),  # AITER MLA: --block-size=1 in AMD's commands for DeepSeek
        ("0.33.0", "mi300x", 16),
        ("0.11.0", "l40s", 16),
    ],
)
def test_blocks_of_latent_attention_follow_the_kernel(version: str, gpu: str, size: int) -> None:
    assert settings(version, gpu, LATENT).block_size == size
    assert settings(version, gpu, DENSE).block_size == 16


def test_graphs_count_against_the_budget_from_0_20_and_on_amd_from_0_26() -> None:
    h100, mi300x = load_profile("h100-sxm"), load_profile("mi300x")

    def in_budget(version: str, profile: Any) -> bool:
        return version_features(parse_version(version), profile).graphs_in_budget

    assert [in_budget(v, h100) for v in ("0.17.0", "0.19.0", "0.20.0", "0.33.0")] == [False, False, True, True]
    assert [in_budget(v, mi300x) for v in ("0.20.0", "0.25.1", "0.26.0", "0.33.0")] == [False, False, True, True]


def test_printed_kv_tokens_and_sampler_by_version() -> None:
    h100 = load_profile("h100-sxm")
    assert version_features(parse_version("0.20.0"), h100).kv_tokens == "blocks"
    assert version_features(parse_version("0.20.1"), h100).kv_tokens == "concurrency"
    # v1/sample/ops/topk_topp_sampler.py and envs.py of these releases
    kernels = {"0.7.3": "sorting", "0.11.0": "unknown", "0.11.1": "sorting", "0.16.0": "sorting", "0.17.0": "triton"}
    for version, kernel in (kernels | {"0.20.2": "triton", "0.21.0": "flashinfer"}).items():
        assert version_features(parse_version(version), h100).sampler == kernel
    assert version_features(parse_version("0.11.0"), load_profile("mi300x")).sampler == "sorting"


@pytest.mark.parametrize(
    ("version", "gpu", "seqs", "largest", "count"),
    [
        # V0: 1, 2, 4, then eights up to the first size that holds 256 sequences: 3 + 32
        ("0.7.3", "h100-sxm", 256, 256, 35),
        # 1, 2, 4, then 64 eights up to 512
        ("0.9.1", "h100-sxm", 64, 512, 67),
        # at most twice the sequences: 1, 2, 4, then 16 eights up to 128
        ("0.10.0", "h100-sxm", 64, 128, 19),
        # 1, 2, 4, eights up to 248 (31), sixteens from 256 to 512 (17)
        ("0.14.0", "h100-sxm", 1024, 512, 51),
        # the same, on to 1024 (49)
        ("0.28.0", "b200-sxm", 1024, 1024, 83),
    ],
)
def test_batches_that_are_captured_as_graphs(version: str, gpu: str, seqs: int, largest: int, count: int) -> None:
    config = settings(version, gpu, max_num_seqs=seqs, max_model_len=4096)
    sizes = graph_batches(config, features_of(config, load_profile(gpu)))
    assert (sizes[-1], len(sizes)) == (largest, count)
    assert list(sizes) == sorted(set(sizes))


def test_no_graphs_when_eager() -> None:
    config = settings("0.33.0", "h100-sxm", enforce_eager=True)
    assert graph_batches(config, features_of(config, load_profile("h100-sxm"))) == ()


@pytest.mark.parametrize(
    ("version", "backend", "tokens", "seqs", "graphs"),
    [
        # DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP of 0.27.1 and 0.32.0; to 0.19 VLLM_MOE_DP_CHUNK_SIZE
        ("0.32.0", "deepep_low_latency", 256, 256, True),
        ("0.27.1", "nixl_ep", 256, 256, True),
        ("0.19.0", "deepep_low_latency", 8192, 1024, True),
        # config/compilation.py: "are incompatible with CUDA Graphs"
        ("0.32.0", "deepep_high_throughput", 8192, 1024, False),
        ("0.32.0", "flashinfer_nvlink_one_sided", 8192, 1024, True),
        ("0.32.0", "naive", 8192, 1024, True),
    ],
)
def test_defaults_of_the_exchange_of_experts(version: str, backend: str, tokens: int, seqs: int, graphs: bool) -> None:
    asked = {"data_parallel_size": 8, "enable_expert_parallel": True}
    config = settings(version, "h200-sxm", MOE, **asked, all2all_backend=backend)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (tokens, seqs)
    assert bool(graph_batches(config, features_of(config, load_profile("h200-sxm")))) is graphs


def test_types_follow_the_checkpoint() -> None:
    config = settings("0.11.0", "h100-sxm")
    assert (config.dtype, config.kv_cache_dtype, config.weight_dtype) == ("bf16", "bf16", "bf16")
    fp32 = model_from_config({**LLAMA, "torch_dtype": "float32"}, model_id="example/fp32")
    assert settings("0.9.0", "h100-sxm", fp32).dtype == "fp16"
    assert settings("0.9.1", "h100-sxm", fp32).dtype == "bf16"
    assert settings("0.11.0", "h100-sxm", dtype="half").kv_cache_dtype == "fp16"


@pytest.mark.parametrize(
    ("model", "gpu", "dtype"),
    [
        ("google/gemma-3-4b-it", "t4", "fp32"),  # _FLOAT16_NOT_SUPPORTED_MODELS, and T4 has no bfloat16
        ("google/gemma-3-4b-it", "l4", "bf16"),
        ("openai/gpt-oss-20b", "l4", "bf16"),  # get_supported_act_dtypes of mxfp4.py
    ],
)
def test_types_that_a_model_cannot_be_computed_in(model: str, gpu: str, dtype: str) -> None:
    found = resolve_model(model, network=False).model
    assert settings("0.32.0", gpu, found).dtype == dtype
    with pytest.raises(IllegalPlanError, match="float16") as caught:
        settings("0.32.0", gpu, found, dtype="float16")
    assert settings("0.32.0", gpu, found, **caught.value.remedy).dtype == dtype


#: ``QUANTIZATION_METHODS`` and ``_ONLINE_SHORTHANDS`` of each release (0.28.0 is the first with ``mxfp4`` there),
#: ``get_min_capability``, and ``__init__`` of ptpc_fp8.py (ROCm alone) and of online/nvfp4.py (compute capability 10).
@pytest.mark.parametrize(
    ("method", "version", "gpu", "offered"),
    [
        ("experts_int8", "0.8.5", "h100-sxm", True),
        ("experts_int8", "0.32.0", "t4", False),
        ("fp8", "0.13.0", "t4", False),
        ("fp8", "0.14.0", "t4", True),
        ("experts_int8", "0.32.0", "h100-sxm", True),
        ("mxfp4", "0.27.1", "b200-sxm", False),
        ("mxfp4", "0.28.0", "h100-sxm", True),
        ("ptpc_fp8", "0.13.0", "mi300x", True),
        ("ptpc_fp8", "0.18.0", "h100-sxm", False),
        ("bitsandbytes", "0.14.0", "mi300x", False),
        ("bitsandbytes", "0.27.0", "mi300x", True),
        ("experts_int8", "0.32.0", "mi300x", False),  # supported_quantization of platforms/rocm.py
        ("int8_per_channel_weight_only", "0.32.0", "mi250", False),
        ("int8_per_channel_weight_only", "0.32.0", "a100", True),
        ("nvfp4_per_token", "0.32.0", "b200-sxm", True),
        ("nvfp4_per_token", "0.32.0", "rtx-5090", False),
        ("nvfp4_per_token", "0.32.0", "h200-sxm", False),
        ("awq", "0.32.0", "h100-sxm", False),
    ],
)
def test_methods_at_load_time(method: str, version: str, gpu: str, offered: bool) -> None:
    if offered:
        assert settings(version, gpu, MOE, quantization=method).quantization == method
        return
    with pytest.raises(IllegalPlanError, match=f"{version} cannot quantise .* at load time") as caught:
        settings(version, gpu, MOE, quantization=method)
    for other in caught.value.hint.removeprefix("serve a quantised checkpoint, or use one of: ").split(", "):
        assert settings(version, gpu, MOE, quantization=other)


def test_methods_for_experts_quantise_nothing_of_a_dense_model() -> None:
    """``ExpertsInt8Config`` and the online shorthands for MoE: linear layers stay in 16 bits. Hints leave them out."""
    dense = settings("0.32.0", "h100-sxm", quantization="experts_int8")
    assert dense.weight_dtype == "bf16" and "has no experts" in " ".join(dense.ignored)
    assert not settings("0.32.0", "h100-sxm", MOE, quantization="experts_int8").ignored
    with pytest.raises(IllegalPlanError) as caught:
        settings("0.32.0", "h100-sxm", quantization="awq")
    assert "fp8" in caught.value.hint and "int8" not in caught.value.hint


@pytest.mark.parametrize(
    ("model", "method", "version", "deprecated"),
    [
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", None, "0.13.0", False),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", None, "0.14.0", True),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", None, "0.32.0", True),
        ("Qwen/Qwen3-30B-A3B", "experts_int8", "0.19.0", True),
        ("Qwen/Qwen3-30B-A3B", "experts_int8", "0.20.0", False),
    ],
)
def test_deprecated_quantisations_need_a_flag(model: str, method: str | None, version: str, deprecated: bool) -> None:
    """``DEPRECATED_QUANTIZATION_METHODS`` of layers/quantization, checked in config/model.py."""
    found = resolve_model(model, network=False).model
    asked: dict[str, Any] = {"quantization": method, "max_model_len": 8192}
    if deprecated:
        with pytest.raises(IllegalPlanError, match="a deprecated quantisation") as caught:
            settings(version, "mi300x" if method is None else "h100-sxm", found, **asked)
        instead = "amd/Llama-3.1-405B-Instruct-FP8-KV" if method is None else "another quantisation"
        assert caught.value.hint == f"use {instead}, or add --allow-deprecated-quantization"
        asked |= caught.value.remedy
    assert settings(version, "h100-sxm", found, **asked).weight_dtype in ("fp8", "int8-gptq")


W8A8 = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "input_activations": {"dynamic": True}}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "fbgemm": {"quant_method": "fbgemm_fp8"},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt_fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp8": {"quant_method": "modelopt", "quant_algo": "MXFP8"},
    "compressed": {"quant_method": "compressed-tensors", "config_groups": {"group_0": W8A8 | {"targets": ["Linear"]}}},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "auto-round": {"quant_method": "auto-round", "bits": 4, "group_size": 128},
}


#: ``get_min_capability`` of the method's file (and of ``CompressedTensorsW8A16Fp8``) in that release of vLLM.
@pytest.mark.parametrize(
    ("checkpoint", "version", "least"),
    [
        ("fp8", "0.11.0", 80), ("fp8", "0.13.0", 80), ("fp8", "0.14.0", 75), ("fp8", "0.32.0", 75),
        ("fbgemm", "0.8.5", 80), ("fbgemm", "0.13.0", 80),
        ("modelopt", "0.14.0", 89), ("modelopt", "0.26.0", 89), ("modelopt", "0.27.1", 80), ("modelopt", "0.32.0", 80),
        ("modelopt_fp4", "0.13.0", 80), ("modelopt_fp4", "0.14.0", 75),
        ("mxfp8", "0.18.0", 100), ("mxfp8", "0.28.0", 80),
        ("compressed", "0.14.0", 80), ("compressed", "0.16.0", 75),
        ("awq", "0.6.4", 75), ("awq", "0.32.0", 75),
        ("auto-round", "0.13.0", 75), ("auto-round", "0.15.0", 75), ("auto-round", "0.32.0", 75),  # as inc
    ],
)  # fmt: skip
def test_least_compute_capability_of_a_checkpoint(checkpoint: str, version: str, least: int) -> None:
    model = model_from_config(LLAMA | {"quantization_config": CHECKPOINTS[checkpoint]}, model_id="example/quantised")
    for gpu, capability in {"t4": 75, "a100": 80, "l4": 89, "h100": 90, "b200": 100}.items():
        if capability >= least:
            assert settings(version, gpu, model).weight_dtype
            continue
        with pytest.raises(IllegalPlanError, match=f"{version} has no kernels for example/quantised") as caught:
            settings(version, gpu, model)
        words = str(caught.value).partition("(")[2].partition(")")[0].split()
        assert len(words) == len(set(words)), "a method that is called like its format is named once"


#: csrc/quantization/w8a8/cutlass/scaled_mm_c3x_sm100.cu and _sm120.cu (no int8), vLLM issue 54311.
@pytest.mark.parametrize("gpu", ["b200", "b300", "rtx-5090", "rtx-pro-6000", "gb10"])
def test_int8_activations_do_not_run_on_blackwell(gpu: str) -> None:
    model = resolve_model("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", network=False).model
    with pytest.raises(IllegalPlanError, match=r"no kernels for .* \(compressed-tensors int8\)") as caught:
        settings("0.32.0", gpu, model)
    assert "use nvidia/Llama-3.1-8B-Instruct-FP8" in caught.value.hint
    assert all(settings("0.32.0", other, model).weight_dtype == "int8-gptq" for other in ("h100", "l4", "mi300x"))
    assert settings("0.32.0", gpu, model, env=Environment(VLLM_DISABLED_KERNELS="CutlassInt8ScaledMMLinearKernel"))


#: ``supported_quantization`` of platforms/rocm.py in both releases; vLLM reads auto-round as inc.
@pytest.mark.parametrize(
    ("checkpoint", "without", "since"),
    [("modelopt", "0.14.0", "0.27.1"), ("modelopt_fp4", "0.14.0", "0.27.1"), ("auto-round", "0.27.1", "0.32.0")],
)
def test_amd_takes_checkpoints_of_nvidia_and_intel_late(checkpoint: str, without: str, since: str) -> None:
    model = model_from_config(LLAMA | {"quantization_config": CHECKPOINTS[checkpoint]}, model_id="example/quantised")
    assert settings(without, "h100-sxm", model).weight_dtype == settings(since, "mi300x", model).weight_dtype
    with pytest.raises(IllegalPlanError, match=f"{without} has no kernels for example/quantised") as caught:
        settings(without, "mi300x", model)
    assert "a newer --engine-version" in caught.value.hint


def test_an_8_bit_cache_that_a_gpu_cannot_read_is_replaced_by_the_type_of_the_model() -> None:
    model = resolve_model("nvidia/Llama-3.1-8B-Instruct-NVFP4", network=False).model
    with pytest.raises(IllegalPlanError, match="no kernel") as caught:
        settings("0.32.0", "t4", model)
    assert caught.value.hint == "use --kv-cache-dtype float16"
    assert settings("0.32.0", "t4", model, kv_cache_dtype="float16").kv_cache_dtype == "fp16"


@pytest.mark.parametrize(
    ("model", "gpu", "words", "hint"),
    [
        ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", "t4", {}, "--gpu l4"),  # neither bf16 nor fp16 is left
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "t4", {"dtype": "float32"}, "use --dtype float16"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "l4", {"dtype": "float32"}, "use --dtype bfloat16"),
        ("Qwen/Qwen3-8B", "h100", {"dtype": "float32", "quantization": "fp8"}, "use --dtype bfloat16"),
    ],
)
def test_no_quantised_weights_are_multiplied_in_32_bits(model: str, gpu: str, words: dict[str, str], hint: str) -> None:
    """``get_supported_act_dtypes`` of auto_awq.py, auto_gptq.py and online/base.py, checked in config/vllm.py."""
    with pytest.raises(IllegalPlanError, match="vLLM refuses") as caught:
        settings("0.32.0", gpu, resolve_model(model, network=False).model, **words)
    assert hint in caught.value.hint


def test_mxfp4_needs_bfloat16() -> None:
    with pytest.raises(IllegalPlanError, match=r"mxfp4.*T4") as caught:
        settings("0.32.0", "t4", resolve_model("openai/gpt-oss-20b", network=False).model)
    assert not caught.value.remedy and "--gpu l4" in caught.value.hint


def test_fp8_at_load_time() -> None:
    config = settings("0.11.0", "h100-sxm", quantization="fp8")
    assert (config.weight_dtype, config.quantization, config.dtype) == ("fp8", "fp8", "bf16")


@pytest.mark.parametrize(
    ("model", "version", "dtype"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "0.13.0", "bf16"),  # ModelOpt: its scales are used from 0.14.0 on
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "0.14.0", "fp8"),
        ("amd/Llama-3.3-70B-Instruct-FP8-KV", "0.33.0", "bf16"),  # Quark: only when asked
    ],
)
def test_auto_cache_type_of_checkpoints_with_scales(model: str, version: str, dtype: str) -> None:
    found = resolve_model(model, network=False).model
    assert settings(version, "h100-sxm", found).kv_cache_dtype == dtype
    assert settings(version, "h100-sxm", found, kv_cache_dtype="fp8").kv_cache_dtype == "fp8"


def test_defaults_that_were_taken_are_named() -> None:
    taken = " ".join(settings("2025-10", "h100-sxm").defaults_taken)
    for name in ("2025-10", "max_num_seqs 1024", "max_num_batched_tokens 8192", "gpu_memory_utilization 0.9"):
        assert name in taken
    asked = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.8, "max_model_len": 4096}
    assert "max_" not in " ".join(settings("0.11.0", "h100-sxm", **asked).defaults_taken)


@pytest.mark.parametrize(
    ("model", "gpu", "size", "least"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "b200-sxm", 16, 64),  # issue 48286: "No common block size for 16"
        ("deepseek-ai/DeepSeek-V3.2", "h200-sxm", 32, 64),
        ("deepseek-ai/DeepSeek-V3.2", "h200-sxm", 128, 0),  # which its kernels divide
        ("deepseek-ai/DeepSeek-V3.2", "mi355x", 16, 0),
        ("zai-org/GLM-5-FP8", "b200-sxm", 16, 64),
        ("deepseek-ai/DeepSeek-V4-Flash", "b200-sxm", 128, 256),
        ("MiniMaxAI/MiniMax-M3", "b200-sxm", 16, 128),
        ("deepseek-ai/DeepSeek-R1", "b200-sxm", 16, 0),  # Triton's kernels take it
    ],
)
def test_blocks_that_sparse_attention_cannot_divide_are_refused(model: str, gpu: str, size: int, least: int) -> None:
    served = resolve_model(model, network=False).model
    if not least:
        assert settings("0.32.0", gpu, served, block_size=size).block_size == size
        return
    assert settings("0.32.0", gpu, served).block_size == least
    with pytest.raises(IllegalPlanError, match=f"--block-size {size}: .* multiples of {least}") as refusal:
        settings("0.32.0", gpu, served, block_size=size)
    assert refusal.value.remedy == {"block_size": least}


def test_to_0_17_blocks_of_latent_attention_are_overwritten() -> None:
    """0.14.0: "Forcing kv cache block size to 64 for FlashMLA backend."."""
    config = settings("0.14.0", "h200-sxm", LATENT, block_size=16)
    assert config.block_size == 64 and any("--block-size 16: ignored" in note for note in config.ignored)


REFUSED: list[tuple[str, dict[str, Any], type[PlannerError], str]] = [
    ("0.33.0", {"gpu_memory_utilization": 1.5}, InputError, "--gpu-memory-utilization"),
    ("0.33.0", {"gpu_memory_utilization": 0.0}, InputError, "--gpu-memory-utilization"),
    ("0.33.0", {"max_num_seqs": 0}, InputError, "--max-num-seqs"),
    ("0.33.0", {"tensor_parallel_size": 0}, InputError, "--tensor-parallel-size"),
    ("0.33.0", {"max_model_len": -2}, InputError, "--max-model-len"),
    ("0.33.0", {"dtype": "int4"}, InputError, "--dtype"),
    ("0.33.0", {"kv_cache_dtype": "int8"}, InputError, "--kv-cache-dtype"),
    ("0.33.0", {"max_model_len": 200000}, IllegalPlanError, "--max-model-len"),
    ("0.33.0", {"max_num_batched_tokens": 64, "max_num_seqs": 128}, IllegalPlanError, "--max-num-batched-tokens"),
    ("0.10.2", {"kv_cache_dtype": "bfloat16", "dtype": "float16"}, IllegalPlanError, "--kv-cache-dtype"),
    ("0.33.0", {"kv_cache_dtype": "bfloat16", "dtype": "float16"}, IllegalPlanError, "--kv-cache-dtype"),
    ("0.33.0", {"kv_cache_dtype": "turboquant_4bit_nc"}, IllegalPlanError, "--kv-cache-dtype"),
    ("0.11.0", {"kv_cache_dtype": "nvfp4"}, IllegalPlanError, "0.20.0"),
    ("0.33.0", {"quantization": "marlin"}, IllegalPlanError, "0.10.2"),
    ("0.33.0", {"quantization": "nope"}, IllegalPlanError, "--quantization"),
    ("0.9.1", {"async_scheduling": True}, IllegalPlanError, "0.10.0"),
    ("0.9.1", {"async_scheduling": True, "pipeline_parallel_size": 2}, IllegalPlanError, "not before 0.10.0"),
    ("0.14.0", {"async_scheduling": True, "pipeline_parallel_size": 2}, IllegalPlanError, "--async-scheduling"),
    ("0.9.1", {"enable_chunked_prefill": False}, IllegalPlanError, "--no-enable-chunked-prefill"),
    ("0.33.0", {"enable_expert_parallel": True}, IllegalPlanError, "--enable-expert-parallel"),
    ("0.7.3", {"data_parallel_size": 2}, IllegalPlanError, "--data-parallel-size"),
    ("0.33.0", {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, IllegalPlanError, "--max-model-len"),
]


@pytest.mark.parametrize(("version", "asked", "error", "named"), REFUSED)
def test_what_vllm_refuses_is_refused_by_the_name_of_its_flag(
    version: str, asked: dict[str, Any], error: type[PlannerError], named: str
) -> None:
    with pytest.raises(error) as caught:
        settings(version, "h100-sxm", **asked)
    assert named in caught.value.cause
    assert caught.value.hint
    assert "\n" not in caught.value.cause + caught.value.hint


def test_a_checkpoint_that_the_version_cannot_read() -> None:
    gpt_oss = resolve_model("openai/gpt-oss-120b", network=False).model
    with pytest.raises(IllegalPlanError, match=r"mxfp4.*0\.10\.1"):
        settings("0.10.0", "h100-sxm", gpt_oss)
    assert settings("0.10.1", "h100-sxm", gpt_oss).weight_dtype == "mxfp4"


@pytest.mark.parametrize("version", ["0.9.2", "0.32.0"])
@pytest.mark.parametrize("quantization", [None, "modelopt"])
def test_a_checkpoint_without_quant_method_does_not_start(version: str, quantization: str | None) -> None:
    """``config/model.py``, ``_verify_quantization``: to 0.10 the method "" is unknown. Later the model is unquantised,
    and ``AutoWeightsLoader`` knows no parameter named ``weight_scale``; ``--quantization`` does not match.
    """
    static = resolve_model("Qwen/Qwen3-32B-FP8-Static-PerTensor", network=False).model
    assert static.quantization.method == ""
    with pytest.raises(IllegalPlanError, match="lacks quant_method"):
        settings(version, "h100-sxm", static, quantization=quantization)


def test_amd_fp8_checkpoints_take_the_option_of_amds_own_commands() -> None:
    fp8 = resolve_model("amd/Llama-3.1-70B-Instruct-FP8-KV", network=False).model
    asked = {"quantization": "fp8", "kv_cache_dtype": "fp8", "dtype": "float16", "max_model_len": 8192}
    config = settings("0.6.3", "mi300x", fp8, **asked)
    assert (config.weight_dtype, config.kv_cache_dtype, config.dtype) == ("fp8", "fp8", "fp16")


@given(
    version=VERSIONS,
    gpu=st.sampled_from(GPUS),
    model=st.sampled_from([DENSE, MOE, LATENT, HYBRID]),
    seqs=st.none() | st.integers(1, 4096),
    tokens=st.none() | st.integers(1, 65536),
    length=st.none() | st.integers(1, 40960),
    usage=st.sampled_from(["serve", "offline"]),
)
def test_settings_are_legal_together_and_keep_what_was_asked(
    version: Any, gpu: str, model: Any, seqs: int | None, tokens: int | None, length: int | None, usage: Any
) -> None:
    asked = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "max_model_len": length}
    try:
        config = resolve(EngineArgs(**asked), model, load_profile(gpu), version, usage=usage)
    except IllegalPlanError as error:
        old = f"vLLM {version} serves {model.id} by its V0 engine"
        unknown = f"vLLM {version} does not know"
        assert error.cause.startswith(("--max-num-batched-tokens", f"{model.id} is quantised", old, unknown))
        return
    for name, value in asked.items():
        assert value is None or getattr(config, name) == value
    assert config.max_num_batched_tokens >= config.max_num_seqs
    late = model is LATENT and (0, 7, 1) <= version.release < (0, 8)  # V0 checks before it sees MLA (config.py)
    assert config.enable_chunked_prefill or config.max_num_batched_tokens >= config.max_model_len or late
    assert 0 < config.gpu_memory_utilization <= 1


@pytest.mark.parametrize("version", ["0.14.0", "0.27.1", "0.32.0"])
def test_e5m2_caches_are_refused_with_fp8_checkpoints(version: str) -> None:
    """``attention/layer.py`` of 0.14.0, ``layers/attention/attention.py`` of 0.27.1 and 0.32.0."""
    for name in ("Qwen/Qwen3-32B-FP8", "nvidia/Llama-3.1-8B-Instruct-FP8"):
        model = resolve_model(name, network=False).model
        with pytest.raises(IllegalPlanError, match="--kv-cache-dtype fp8_e5m2") as caught:
            settings(version, "h100-sxm", model, kv_cache_dtype="fp8_e5m2")
        assert caught.value.hint == "use --kv-cache-dtype fp8"
    assert settings(version, "h100-sxm", kv_cache_dtype="fp8_e5m2").kv_cache_dtype == "fp8_e5m2"


def test_e5m2_caches_are_refused_with_latent_attention() -> None:
    """``supported_kv_cache_dtypes`` of every backend in v1/attention/backends/mla that platforms/cuda.py names."""
    model = resolve_model("deepseek-ai/DeepSeek-V2-Lite-Chat", network=False).model
    with pytest.raises(IllegalPlanError, match="latent attention and --kv-cache-dtype fp8_e5m2") as caught:
        settings("0.32.0", "h100-sxm", model, kv_cache_dtype="fp8_e5m2")
    assert caught.value.hint == "use --kv-cache-dtype fp8"
    assert settings("0.32.0", "h100-sxm", model, kv_cache_dtype="fp8")
    assert settings("0.32.0", "mi300x", model, kv_cache_dtype="fp8_e5m2")  # rocm_aiter_mla.py has it

"""Recipes and images, against the published documents that they were read from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engine.flags import table_versions
from planner.engine.published import (
    Recipe,
    default_version,
    docker_args,
    image_for,
    recipe_for,
    recipe_release,
    visible_devices,
)
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError
from planner.hardware.profiles import load_all, load_profile
from planner.model.resolve import resolve_model


def recipe(model: str, gpu: str, version: str, **more: Any) -> Recipe:
    return recipe_for(resolve_model(model, network=False).model, load_profile(gpu), parse_version(version), **more)


def test_amds_quick_start_for_mi355x_with_its_own_version() -> None:
    """The document launches with these, on the nightly image of October 2025."""
    found = recipe("amd/Llama-3.3-70B-Instruct-FP8-KV", "mi355x", "2025-10")
    document = {
        "SAFETENSORS_FAST_GPU": "1", "VLLM_ROCM_USE_AITER": "1", "VLLM_USE_V1": "1", "NCCL_DEBUG": "WARN",
        "VLLM_RPC_TIMEOUT": "1800000",
    }  # fmt: skip
    assert document.items() <= found.env.items()
    assert found.flags["compilation-config"] == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "custom_ops": ["-rms_norm", "-quant_fp8", "-silu_and_mul"],
    }
    assert found.settings == {
        "max_num_batched_tokens": 32768, "enable_prefix_caching": False, "async_scheduling": True,
        "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9,
    }  # fmt: skip
    assert any("MI355" in source for source in found.sources)


def test_its_mxfp4_variant() -> None:
    found = recipe("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "mi355x", "2025-10")
    assert found.env["VLLM_ROCM_USE_AITER_FP4_ASM_GEMM"] == "1"
    assert found.flags["compilation-config"] == {"cudagraph_mode": "FULL_AND_PIECEWISE"}


def test_what_a_version_no_longer_reads_is_left_out_and_said_so() -> None:
    found = recipe("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "mi355x", "0.33.0")
    assert not found.env.keys() & {"VLLM_USE_V1", "VLLM_RPC_TIMEOUT", "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM"}
    assert "VLLM_RPC_TIMEOUT=1800000" in found.left_out
    assert "VLLM_RPC_TIMEOUT" in recipe("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "mi355x", "0.22.0").env


def test_nvidias_quick_start_on_blackwell_and_the_later_names_of_its_fusions() -> None:
    model = "meta-llama/Llama-3.3-70B-Instruct"
    document = recipe(model, "b200-sxm", "0.10.0")
    assert document.env == {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_USE_V1": "1"}
    assert document.left_out == ("VLLM_USE_TRTLLM_ATTENTION=1",)  # from 0.10.1 on
    assert document.flags["compilation-config"] == {
        "full_cuda_graph": True,
        "custom_ops": ["+quant_fp8", "+rms_norm"],
        "pass_config": {"enable_fi_allreduce_fusion": True, "enable_noop": True},
    }
    later = recipe(model, "b200-sxm", "0.25.0")
    assert later.env == {}
    assert later.flags["compilation-config"] == {
        "pass_config": {"fuse_allreduce_rms": True, "fuse_attn_quant": True, "eliminate_noops": True}
    }


def test_one_gpu_sums_with_nobody() -> None:
    alone = recipe("meta-llama/Llama-3.3-70B-Instruct", "b200-sxm", "0.25.0", tensor_parallel_size=1)
    assert alone.flags["compilation-config"] == {"pass_config": {"fuse_attn_quant": True, "eliminate_noops": True}}
    reduce = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
    for size, there in ((1, False), (2, True)):
        assert (reduce in recipe("openai/gpt-oss-120b", "mi300x", "0.27.1", tensor_parallel_size=size).env) is there


def test_amds_documents_of_the_versions_before() -> None:
    first = recipe("amd/Llama-3.1-70B-Instruct-FP8-KV", "mi300x", "0.6.3")
    assert {"VLLM_USE_TRITON_FLASH_ATTN": "0", "NCCL_MIN_NCHANNELS": "112"}.items() <= first.env.items()
    assert first.flags == {"num-scheduler-steps": 10}
    dense = recipe("amd/Llama-3.1-70B-Instruct-FP8-KV", "mi300x", "0.9.1")
    assert dense.env["VLLM_V1_USE_PREFILL_DECODE_ATTENTION"] == "1"
    assert "VLLM_ROCM_USE_AITER" not in dense.env
    latent = recipe("deepseek-ai/DeepSeek-V3", "mi300x", "0.9.1")
    assert {"VLLM_ROCM_USE_AITER": "1", "VLLM_MLA_DISABLE": "0"}.items() <= latent.env.items()


def test_aiter_had_no_fp8_cache_on_mi300x_in_0_9_1() -> None:
    model = "deepseek-ai/DeepSeek-V3"
    assert recipe(model, "mi300x", "0.9.1", kv_cache_dtype="fp8").env["VLLM_ROCM_USE_AITER"] == "0"
    assert recipe(model, "mi355x", "0.11.0", kv_cache_dtype="fp8").env["VLLM_ROCM_USE_AITER"] == "1"


def test_the_engine_is_named_while_there_are_two() -> None:
    model = "meta-llama/Llama-3.3-70B-Instruct"
    assert recipe(model, "h100-sxm", "0.10.2").env["VLLM_USE_V1"] == "1"
    assert recipe(model, "mi300x", "0.8.5").env["VLLM_USE_V1"] == "0"
    assert "VLLM_USE_V1" not in recipe(model, "h100-sxm", "0.11.1").env
    assert recipe(model, "h100-sxm", "0.9.1", engine="V0").env["VLLM_USE_V1"] == "0"


@given(
    version=st.sampled_from(table_versions()),
    gpu=st.sampled_from(["mi300x", "mi355x", "h100-sxm", "b200-sxm", "l40s", "cpu"]),
    model=st.sampled_from(["meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-R1"]),
)
def test_suggested_settings_are_ones_that_the_version_takes(version: str, gpu: str, model: str) -> None:
    found = recipe(model, gpu, version)
    loaded, profile = resolve_model(model, network=False).model, load_profile(gpu)
    try:
        resolve(EngineArgs(max_model_len=4096), loaded, profile, parse_version(version))
    except IllegalPlanError:
        return  # the checkpoint itself is too new for the version
    config = resolve(EngineArgs(max_model_len=4096, **found.settings), loaded, profile, parse_version(version))
    for name, value in found.settings.items():
        assert name == "kv_cache_dtype" or getattr(config, name) == value


@pytest.mark.parametrize(
    ("gpu", "version", "name"),
    [
        ("mi300x", "0.27.1", "vllm/vllm-openai-rocm:v0.27.1"),
        ("mi300x-cpx", "0.27.1", "vllm/vllm-openai-rocm:v0.27.1"),
        ("mi300x", "0.9.1", "rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715"),
        ("mi355x", "0.24.0", "vllm/vllm-openai-rocm:v0.24.0"),
        ("b200-sxm", "0.25.0", "vllm/vllm-openai:v0.25.0"),
        ("h100-sxm", "0.27.1", "vllm/vllm-openai:v0.27.1"),
    ],
)
def test_pinned_images(gpu: str, version: str, name: str) -> None:
    image = image_for(load_profile(gpu), parse_version(version))
    assert (image.name, image.pinned, image.note) == (name, True, "")
    assert image.source


def test_images_without_a_source_say_so() -> None:
    image = image_for(load_profile("h100-sxm"), parse_version("0.33.0"))
    assert (image.name, image.pinned) == ("vllm/vllm-openai:v0.33.0", False)
    assert "no source" in image.note
    usual = image_for(load_profile("h100-sxm"), default_version(load_profile("h100-sxm")))
    assert (usual.pinned, usual.source, usual.note) == (False, "the naming rule of releases", "")
    elsewhere = image_for(load_profile("l40s"), parse_version("0.27.1"))
    assert elsewhere.pinned
    assert "not on l40s" in elsewhere.note


@pytest.mark.parametrize(("gpu", "version"), [("b200-sxm", "0.8.5"), ("mi355x", "0.9.1"), ("mi355x-cpx", "0.10.1")])
def test_no_image_from_before_a_gpu_is_named_for_it(gpu: str, version: str) -> None:
    with pytest.raises(IllegalPlanError, match=r"no image of vLLM .* runs on") as caught:
        image_for(load_profile(gpu), parse_version(version))
    first = "0.9.0" if gpu == "b200-sxm" else "0.10.2"
    assert first in caught.value.hint and image_for(load_profile(gpu), parse_version(first)).name


def test_amd_has_no_image_of_every_version() -> None:
    with pytest.raises(IllegalPlanError, match=r"0\.13\.0") as caught:
        image_for(load_profile("mi300x"), parse_version("0.13.0"))
    assert "0.11.2" in caught.value.hint and "a release from 0.14.0 on" in caught.value.hint
    # "vllm/vllm-openai-rocm:v0.14.1" in vllm-project/recipes, pull request 214
    assert image_for(load_profile("mi300x"), parse_version("0.14.1")).name == "vllm/vllm-openai-rocm:v0.14.1"
    atom = "ATOM 514ed7c8e (vLLM + ATOM plugin) rocm/atom-dev:vllm-v0.25.1-nightly_20260805"
    with pytest.raises(IllegalPlanError, match="ATOM"):
        image_for(load_profile("mi355x"), parse_version(atom))


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x", "h100-sxm", "b200-sxm", "rtx-4090", "cpu"])
def test_the_default_version_is_the_newest_that_has_been_out_for_thirty_days(gpu: str) -> None:
    assert default_version(load_profile(gpu)) == parse_version("0.32.0")


@pytest.mark.parametrize("profile", load_all(partitions=True), ids=lambda profile: profile.id)
def test_every_gpu_has_a_version_and_an_image_of_it(profile: Any) -> None:
    image = image_for(profile, default_version(profile))
    assert image.platform == profile.platform
    # a CPU is served without a container, by whatever vLLM is installed
    assert image.name == "" if profile.platform == "cpu" else str(default_version(profile)) in image.name


def test_containers_get_the_gpus_and_no_privileges() -> None:
    amd = docker_args(load_profile("mi300x"), 8)
    assert {"/dev/kfd", "/dev/dri", "video", "seccomp=unconfined"} <= set(amd)
    assert docker_args(load_profile("h100-sxm"), 4)[:2] == ["--gpus", "4"]
    for argv in (amd, docker_args(load_profile("h100-sxm"), 4), docker_args(load_profile("cpu"), 1)):
        assert "--privileged" not in argv
        assert "SYS_PTRACE" not in argv
    assert visible_devices(load_profile("mi300x"), 2) == {"HIP_VISIBLE_DEVICES": "0,1"}
    assert visible_devices(load_profile("mi300x"), 8) == {}


@pytest.mark.parametrize(
    ("model", "gpu", "version", "env"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "h200", "0.32.0", {"VLLM_MOE_USE_DEEP_GEMM": "0"}),
        ("Qwen/Qwen3-30B-A3B-FP8", "mi300x", "0.32.0", {"VLLM_ROCM_USE_AITER_MOE": "0"}),
        ("MiniMaxAI/MiniMax-M2.5", "mi325x", "0.32.0", {"VLLM_ROCM_USE_AITER_MOE": "0"}),
        ("MiniMaxAI/MiniMax-M2.5", "mi325x", "0.31.0", {}),  # refuses to cut the blocks
    ],
)
def test_experts_whose_blocks_are_cut_are_left_to_triton(
    model: str, gpu: str, version: str, env: dict[str, str]
) -> None:
    """``select_fp8_moe_backend`` of vLLM 0.32.0 raises where VLLM_USE_DEEP_GEMM=1, or VLLM_ROCM_USE_AITER=1, is set
    beside blocks of 64 or 32 (``refine_fp8_moe_block_shape``), unless the switch of the experts is off."""
    whole, cut = (recipe(model, gpu, version, cuts_blocks=cuts).env for cuts in (False, True))
    assert cut == whole | env and not env.keys() & whole.keys()


@pytest.mark.parametrize(
    ("model", "version", "backend"),
    [
        ("Qwen/Qwen3.5-122B-A10B-FP8", "0.19.0", "ROCM_AITER_UNIFIED_ATTN"),
        ("Qwen/Qwen3-Coder-Next-FP8", "0.32.0", "ROCM_AITER_UNIFIED_ATTN"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct-FP8", "0.27.1", "ROCM_AITER_FA"),
        ("zai-org/GLM-4.7", "0.27.1", "ROCM_AITER_FA"),
        ("meta-llama/Llama-3.3-70B-Instruct", "0.30.0", "ROCM_AITER_FA"),
        ("google/gemma-3-27b-it", "0.32.0", "ROCM_AITER_FA"),  # heads of 128, one window
        ("openai/gpt-oss-120b", "0.32.0", "ROCM_AITER_UNIFIED_ATTN"),
        ("Qwen/Qwen3.5-122B-A10B-FP8", "0.18.1", None), ("meta-llama/Llama-3.3-70B-Instruct", "0.18.1", None),
        ("microsoft/Phi-3-mini-4k-instruct", "0.32.0", None),  # heads of 96
        ("deepseek-ai/DeepSeek-R1", "0.32.0", None), ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "0.32.0", None),
    ],
)  # fmt: skip
def test_attention_of_amd_is_named_where_aiter_alone_does_not_bring_it(
    model: str, version: str, backend: str | None
) -> None:
    """``_get_backend_priorities`` of ``platforms/rocm.py``: AITER first in 0.18.1, ROCM_ATTN from 0.19.0 on."""
    found = recipe(model, "mi325x", version)
    assert (found.env["VLLM_ROCM_USE_AITER"], found.flags.get("attention-backend")) == ("1", backend)


@pytest.mark.parametrize(
    ("model", "gpu", "before", "since", "name"),
    [
        ("deepseek-ai/DeepSeek-R1", "h200", "0.11.0", "0.12.0", "VLLM_USE_FLASHINFER_MOE_FP8"),
        ("deepseek-ai/DeepSeek-V3", "mi300x", "0.11.0", "0.12.0", "VLLM_ROCM_USE_AITER_MOE"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "h200", "0.9.2", "0.10.0", "VLLM_USE_DEEP_GEMM"),
        ("moonshotai/Kimi-K2.5", "mi300x", "0.18.0", "0.20.0", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"),
    ],
)
def test_a_recipe_counts_from_the_release_that_it_demands(
    model: str, gpu: str, before: str, since: str, name: str
) -> None:
    """``min_vllm_version`` of vllm-project/recipes. vLLM 0.11.0 asserts ``self.block_quant is None`` where
    VLLM_USE_FLASHINFER_MOE_FP8=1 takes DeepSeek's blocks (``quantization/fp8.py``, ``Fp8MoEMethod``)."""
    early, settled = recipe(model, gpu, before, tensor_parallel_size=8), recipe(model, gpu, since)
    assert name not in early.env and name in settled.env
    assert ("tool-call-parser" in early.flags) is (before != "0.9.2")  # users need it; 0.10.0 lists parsers first


def test_a_recipe_of_no_stated_release_counts_always() -> None:
    """No minimum applies to the distilled models, which are no DeepSeek-R1."""
    for name, release in (("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", (0,)), ("deepseek-ai/DeepSeek-R1", (0, 12, 0))):
        assert recipe_release(resolve_model(name, network=False).model) == release

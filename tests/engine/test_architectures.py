"""Which releases know a model, against the registries of their source distributions."""

import pytest

from planner.engine.resolution import KvDtype, check_kernels, check_known
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError
from planner.hardware import load_profile
from planner.model.resolve import resolve_model


@pytest.mark.parametrize(
    ("name", "last_without", "first_with"),
    [  # _TEXT_GENERATION_MODELS and _MULTIMODAL_MODELS of models/registry.py of each pair
        ("deepseek-ai/DeepSeek-V3", "0.6.5", "0.6.6"),
        ("Qwen/Qwen3-8B", "0.8.3", "0.8.4"),
        ("openai/gpt-oss-120b", "0.10.0", "0.10.1"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.1", "0.10.2"),
        ("Qwen/Qwen3.5-9B", "0.14.1", "0.17.0"),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.19.1", "0.20.0"),
    ],
)
def test_a_release_without_the_architecture_refuses_the_model(name: str, last_without: str, first_with: str) -> None:
    model = resolve_model(name, network=False).model
    with pytest.raises(IllegalPlanError, match="does not know") as error:
        check_known(model, parse_version(last_without))
    assert first_with in error.value.hint
    check_known(model, parse_version(first_with))


def test_a_model_that_was_given_up_is_refused_by_name() -> None:
    """``_PREVIOUSLY_SUPPORTED_MODELS`` of 0.11.0: Llama 3.2 Vision left with V0."""
    model = resolve_model("meta-llama/Llama-3.2-11B-Vision-Instruct", network=False).model
    check_known(model, parse_version("0.10.2"))
    with pytest.raises(IllegalPlanError, match="no longer knows"):
        check_known(model, parse_version("0.11.0"))


def test_a_build_of_no_certain_release_is_not_judged() -> None:
    check_known(resolve_model("Qwen/Qwen3.5-9B", network=False).model, parse_version("2025-11"))


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5", "deepseek-ai/DeepSeek-V4-Flash"])
@pytest.mark.parametrize(
    ("gpu", "version", "runs"),
    [
        ("a100", "0.32.0", False),
        ("l40s", "0.32.0", False),
        ("rtx-4090", "0.27.1", False),
        ("h200", "0.32.0", True),
        ("b300", "0.32.0", True),
        ("rtx-5090", "0.32.0", True),
        ("rtx-5090", "0.20.0", False),
        ("mi300x", "0.32.0", True),
    ],
)
def test_sparse_attention_needs_a_gpu_with_its_kernels(name: str, gpu: str, version: str, runs: bool) -> None:
    """``supports_compute_capability`` of vLLM 0.32.0: 9 and 10 in ``flashmla_sparse.py`` and
    ``deepseek_v4/sparse_mla.py``, 12 in ``flashinfer_mla_sparse.py`` and ``deepseek_v4/nvidia/flashinfer_sparse.py``.
    ``TRITON_MLA``, all that is left on others, is not sparse."""
    model = resolve_model(name, network=False).model
    if runs:
        check_kernels(model, load_profile(gpu), parse_version(version), KvDtype("bf16", "auto"), "bfloat16")
    else:
        with pytest.raises(IllegalPlanError, match="sparse attention") as error:
            check_kernels(model, load_profile(gpu), parse_version(version), KvDtype("bf16", "auto"), "bfloat16")
        assert "--gpu h200" in error.value.hint


def test_latent_attention_without_an_indexer_runs_on_older_gpus() -> None:
    model = resolve_model("deepseek-ai/DeepSeek-V3.1", network=False).model
    check_kernels(model, load_profile("a100"), parse_version("0.32.0"), KvDtype("bf16", "auto"), "bfloat16")


@pytest.mark.parametrize(
    ("name", "gpu", "version", "reads"),
    [
        ("openai/gpt-oss-20b", "a100", "0.32.0", False),  # sinks: FlashAttention and FlashInfer have none there
        ("openai/gpt-oss-20b", "l40s", "0.32.0", True),
        ("openai/gpt-oss-20b", "h100", "0.32.0", True),
        ("deepseek-ai/DeepSeek-V2-Lite", "a100", "0.32.0", False),  # MLA
        ("deepseek-ai/DeepSeek-V2-Lite", "l40s", "0.32.0", True),
        ("deepseek-ai/DeepSeek-V2-Lite", "l40s", "0.14.0", False),  # TRITON_MLA of 0.14.0 has no fp8
        ("deepseek-ai/DeepSeek-V2-Lite", "mi300x", "0.32.0", True),
        ("Qwen/Qwen3-8B", "a100", "0.32.0", True),  # FlashInfer
        ("Qwen/Qwen3-8B", "a100", "0.11.0", False),  # get_attn_backend_cls: Triton for fp8 on all but sm_90 and 100
        ("Qwen/Qwen3-8B", "t4", "0.32.0", False),  # flashinfer.py: from sm_80 on
        ("microsoft/Phi-3-mini-4k-instruct", "a100", "0.32.0", False),  # heads of 96
        ("Qwen/Qwen3-8B", "a100", "0.9.1", True),  # V0
    ],
)
def test_triton_reads_8_bit_caches_from_sm_89_on(name: str, gpu: str, version: str, reads: bool) -> None:
    """``TritonAttentionImpl`` and ``TritonMLAImpl`` of vLLM 0.32.0: "requires SM89+"."""
    model, fp8 = resolve_model(name, network=False).model, KvDtype("fp8", "fp8")
    if reads:
        check_kernels(model, load_profile(gpu), parse_version(version), fp8, "bfloat16")
    else:
        with pytest.raises(IllegalPlanError, match="--kv-cache-dtype fp8") as error:
            check_kernels(model, load_profile(gpu), parse_version(version), fp8, "bfloat16")
        assert error.value.hint == "leave it at auto"

"""Weights per rank against parameter counts, arithmetic by hand and what vLLM logged ("Model loading took")."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import model

from planner.engine import EngineArgs, Layout, parse_version, resolve
from planner.errors import IllegalPlanError
from planner.hardware import load_profile
from planner.memory.weights import stage_weights
from planner.model.architecture import Component
from planner.model.quantization import as_quantized
from planner.timing import step_operators
from planner.units import GIB


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("meta-llama/Llama-2-7b-hf", 2 * 6_738_415_616),  # 13.48 GB
        ("meta-llama/Llama-2-13b-hf", 2 * 13_015_864_320),  # 26.03 GB
        ("meta-llama/Llama-3.1-8B", 2 * 8_030_261_248),
    ],
)
def test_16_bit_weights_are_two_bytes_a_parameter(name: str, num_bytes: int) -> None:
    (whole,) = stage_weights(model(name), Layout(), "fp16")
    assert whole.weight_bytes == num_bytes


@pytest.mark.parametrize(
    ("name", "layout", "architecture", "logged_gib", "tolerance"),
    [  # published start-up logs; the source of each is in hardware/calibration/memory.toml's logs and its pages
        ("meta-llama/Meta-Llama-3-8B-Instruct", Layout(), "sm_90", 14.9596, 1e-4),
        ("meta-llama/Llama-3.1-8B-Instruct", Layout(), "sm_89", 14.9889, 1e-4),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", Layout(), "sm_120", 56.9342, 1e-4),
        ("Qwen/Qwen3-32B", Layout(), "sm_90", 61.03, 1e-3),
        ("Qwen/Qwen3-235B-A22B-FP8", Layout(8), "sm_90", 27.6656, 1e-4),
        ("meta-llama/Llama-3.1-405B-Instruct", Layout(8), "gfx942", 94.5351, 1e-4),
        ("openai/gpt-oss-120b", Layout(), "sm_90", 64.38, 4e-3),
        ("openai/gpt-oss-120b", Layout(), "sm_80", 65.97, 2e-3),  # Marlin pads more
        ("Qwen/Qwen3-4B", Layout(), "sm_90", 7.5552, 1e-2),
        ("Qwen/Qwen2-7B-Instruct", Layout(2), "sm_80", 7.1217, 5e-3),
        ("deepseek-ai/DeepSeek-V2.5", Layout(16), "sm_80", 28.48, 1e-2),
    ],
)
def test_loaded_bytes_are_what_vllm_logged(
    name: str, layout: Layout, architecture: str, logged_gib: float, tolerance: float
) -> None:
    (rank,) = stage_weights(model(name), layout, "bf16", architecture)
    assert rank.loaded_bytes / GIB == pytest.approx(logged_gib, rel=tolerance)


def test_fp8_with_a_scale_per_channel_is_what_vllm_logged() -> None:
    """RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic, TP 2: 33.88 GiB."""
    (rank,) = stage_weights(as_quantized(model("meta-llama/Llama-3.3-70B-Instruct"), "fp8"), Layout(2), "bf16")
    assert rank.loaded_bytes / GIB == pytest.approx(33.88, rel=1e-3)


def test_rotary_table_has_a_row_for_each_position() -> None:
    """Llama-3.1: 131,072 positions x 128 elements x 2 bytes; Llama-3: 8,192 positions."""
    (long,) = stage_weights(model("meta-llama/Llama-3.1-8B-Instruct"), Layout(), "bf16")
    (short,) = stage_weights(model("meta-llama/Meta-Llama-3-8B-Instruct"), Layout(), "bf16")
    assert (long.rotary_bytes, short.rotary_bytes) == (131072 * 128 * 2, 8192 * 128 * 2)


def test_kv_heads_are_repeated_on_more_ranks_than_heads() -> None:
    """Qwen3-235B-A22B: 94 layers, 64 heads and 4 KV heads of 128, hidden size 4,096, 16 bits."""
    (rank,) = stage_weights(model("Qwen/Qwen3-235B-A22B"), Layout(8), "bf16")
    queries_and_output = 2 * (64 * 128 // 8) * 4096
    keys_and_values = 2 * 128 * 4096  # one whole head each, not half of one
    norms = 2 * 128
    assert rank.by_component[Component.ATTENTION] + 2 * 94 * norms == pytest.approx(
        2 * 94 * (queries_and_output + keys_and_values + norms), rel=1e-4
    )


def test_vocabulary_is_padded_before_it_is_cut() -> None:
    (rank,) = stage_weights(model("openai-community/gpt2"), Layout(2), "fp16")
    positions = 1024 * 768 * 2
    assert rank.by_component[Component.EMBEDDING] == 50304 // 2 * 768 * 2 + positions


def test_mtp_modules_are_not_loaded() -> None:
    deepseek = model("deepseek-ai/DeepSeek-V3")
    (whole,) = stage_weights(deepseek, Layout(), "bf16")
    assert deepseek.mtp
    assert Component.MTP not in whole.by_component
    assert whole.weight_bytes / deepseek.total_params == pytest.approx(1.0, abs=0.01)  # fp8, some of it 16 bits


def test_stages_hold_all_weights_once() -> None:
    llama = model("meta-llama/Llama-3.1-405B-Instruct")
    (whole,) = stage_weights(llama, Layout(), "bf16")
    stages = stage_weights(llama, Layout(1, 4), "bf16")
    assert [len(stage.layers) for stage in stages] == [31, 32, 32, 31]
    assert sum(stage.weight_bytes for stage in stages) == whole.weight_bytes
    assert Component.EMBEDDING in stages[0].by_component
    assert Component.LM_HEAD in stages[-1].by_component
    assert not {Component.EMBEDDING, Component.LM_HEAD} & stages[1].by_component.keys()


def test_a_tied_embedding_is_held_twice_by_several_stages() -> None:
    qwen = model("Qwen/Qwen3-4B")
    table = 151936 * 2560 * 2
    (whole,) = stage_weights(qwen, Layout(), "bf16")
    first, last = stage_weights(qwen, Layout(1, 2), "bf16")
    assert whole.by_component[Component.EMBEDDING] == table
    assert first.by_component[Component.EMBEDDING] == last.by_component[Component.EMBEDDING] == table


def test_experts_are_spread_over_tp_and_dp() -> None:
    """DeepSeek-V3: 256 experts. 16 ranks hold 16 each, whichever axis makes the ranks."""
    deepseek = model("deepseek-ai/DeepSeek-V3")
    (one,) = stage_weights(deepseek, Layout(), "bf16")
    (sixteen,) = stage_weights(deepseek, Layout(8, 1, 2, enable_expert_parallel=True), "bf16")
    experts = Component.ROUTED_EXPERT
    assert sixteen.by_component[experts] == pytest.approx(one.by_component[experts] / 16, rel=1e-6)
    (without_dp,) = stage_weights(deepseek, Layout(8), "bf16")
    assert sixteen.by_component[Component.ATTENTION] == without_dp.by_component[Component.ATTENTION]


def test_the_dtype_of_the_engine_decides_what_is_not_quantised() -> None:
    llama = model("meta-llama/Llama-2-7b-hf")
    (half,) = stage_weights(llama, Layout(), "fp16")
    (full,) = stage_weights(llama, Layout(), "fp32")
    assert full.weight_bytes == 2 * half.weight_bytes
    assert half.by_dtype == {"fp16": half.weight_bytes}


@given(
    name=st.sampled_from(
        [
            "meta-llama/Llama-3.1-8B",
            "Qwen/Qwen3-30B-A3B",
            "deepseek-ai/DeepSeek-V3",
            "openai/gpt-oss-120b",
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            "google/gemma-3-27b-it",
        ]
    ),
    size=st.sampled_from([1, 2, 4, 8]),
    experts=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp8", "int4-awq"]),
)
def test_more_ranks_never_need_more_per_gpu_and_together_hold_everything(
    name: str, size: int, experts: bool, dtype: str
) -> None:
    found = model(name) if model(name).quantization.method else as_quantized(model(name), dtype)
    whole = sum(w.weight_bytes for w in stage_weights(found, Layout(), "bf16"))
    here = stage_weights(found, Layout(size, enable_expert_parallel=experts), "bf16")[0]
    more = stage_weights(found, Layout(2 * size, enable_expert_parallel=experts), "bf16")[0]
    assert more.weight_bytes <= here.weight_bytes <= whole
    assert size * here.weight_bytes >= whole


@given(
    name=st.sampled_from(
        ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B-FP8", "zai-org/GLM-4.5-Air-FP8", "deepseek-ai/DeepSeek-V3"]
    ),
    size=st.sampled_from([1, 2, 4, 8]),
    ranks=st.sampled_from([1, 2]),
    experts=st.booleans(),
)
def test_a_step_reads_the_bytes_that_memory_holds(name: str, size: int, ranks: int, experts: bool) -> None:
    found, args = model(name), EngineArgs(tensor_parallel_size=size, data_parallel_size=ranks)
    layout = Layout(size, 1, ranks, experts and found.is_moe)
    args = replace(args, enable_expert_parallel=layout.enable_expert_parallel)
    try:
        config = resolve(args, found, load_profile("h100"), parse_version("0.20.0"))
    except IllegalPlanError:
        return
    (held,) = stage_weights(found, layout, config.dtype)
    read = {operator.name: operator for operator in step_operators(found, config)}
    for component in (Component.MLP, Component.SHARED_EXPERT):
        words = component.value.replace("_", " ")
        names = {f"{words} up", f"{words} down"} & read.keys()
        assert sum(read[name].fixed_bytes for name in names) == held.by_component.get(component, 0)
    assert read["lm_head"].fixed_bytes == held.by_component[Component.LM_HEAD]
    if found.is_moe:
        moe = next(layer.moe for layer in found.layers if layer.moe)
        on_rank = -(-moe.num_experts // layout.expert_ranks) if layout.enable_expert_parallel else moe.num_experts
        assert read["experts"].bytes_per_unit * on_rank == held.by_component[Component.ROUTED_EXPERT]

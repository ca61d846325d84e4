"""Precisions in time: no GPU is faster than its memory and its matrix units, whatever the weights are stored in."""

from functools import cache

import pytest
from memory_cases import model

from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.hardware.profiles import load_profile
from planner.model import catalog_ids
from planner.model.quantization import as_quantized
from planner.planning.deployment import Deployment, resolve_deployment
from planner.timing.step import Batch

LLAMA = "meta-llama/Llama-3.1-8B"
#: Parameters in the linear layers of Llama-3.1-8B: 32 x (4,096 x (6,144 + 4,096) + 3 x 4,096 x 14,336).
LINEAR_PARAMS = 32 * (4096 * (6144 + 4096) + 3 * 4096 * 14336)
HEAD_PARAMS = 128_256 * 4096  #: of lm_head, which stays in 16 bits
BITS = {"bf16": 16, "fp8": 8, "mxfp4": 4.25, "nvfp4": 4.5, "int4-awq": 4}
GPUS = ("mi300x", "mi355x", "h100-sxm", "b200-sxm", "a100-sxm-80gb")


@cache
def deployed(gpu: str, weight_dtype: str, quantization: str | None = None, kv_cache_dtype: str = "auto") -> Deployment:
    served = model(LLAMA) if weight_dtype == "bf16" else as_quantized(model(LLAMA), weight_dtype)
    args = EngineArgs(quantization=quantization, kv_cache_dtype=kv_cache_dtype, max_model_len=8192)
    return resolve_deployment(served, load_profile(gpu), args, parse_version("0.27.1"))


def one_token_s(gpu: str, weight_dtype: str, **flags: str) -> float:
    return deployed(gpu, weight_dtype, **flags).timer.step_s(Batch(decode_seqs=1, decode_context_tok=1))


def prompt_s(gpu: str, weight_dtype: str) -> float:
    return deployed(gpu, weight_dtype).timer.step_s(Batch(prefill_seqs=1, prefill_tok=8192, prefill_finishing=1))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("weight_dtype", BITS)
def test_one_token_takes_as_long_as_its_weights_take_to_arrive(gpu: str, weight_dtype: str) -> None:
    stored_bytes = LINEAR_PARAMS * BITS[weight_dtype] / 8 + HEAD_PARAMS * 2
    assert one_token_s(gpu, weight_dtype) > stored_bytes / load_profile(gpu).memory_bandwidth_bytes_per_s


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("weight_dtype", BITS)
def test_a_prompt_takes_as_long_as_the_matrix_units_of_its_format(gpu: str, weight_dtype: str) -> None:
    """Weight-only formats multiply in bf16, and so does a format that the GPU emulates."""
    profile = load_profile(gpu)
    native = {"fp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}.get(weight_dtype, "bf16")
    dtype = profile.emulated.get(weight_dtype, native)
    flop = 8192 * 2 * LINEAR_PARAMS
    assert prompt_s(gpu, weight_dtype) > flop / profile.peak_flop_per_s(dtype)


@pytest.mark.parametrize("weight_dtype", ["mxfp4", "nvfp4"])
def test_unpacking_on_an_mi300x_saves_memory_and_no_time(weight_dtype: str) -> None:
    # 4.25 bits read, 16 written, 16 read again: 36 bits for each value instead of 16
    assert one_token_s("mi300x", weight_dtype) > one_token_s("mi300x", "bf16")
    parts = {p.name: p for p in deployed("mi300x", weight_dtype).timer.breakdown(Batch(1, 1)).parts}
    bits = BITS[weight_dtype] + 2 * 16
    mlp_up_bytes = 32 * 2 * 4096 * 14336 * bits / 8
    assert parts["mlp up"].bytes == pytest.approx(mlp_up_bytes, rel=0.001)


def test_a_gpu_with_the_format_reads_it_as_it_is() -> None:
    """4.25 bits in place of 16 for the linear layers: 10.25 GB, which take 1.28 ms on MI355X at its peak."""
    least_s = LINEAR_PARAMS * (16 - 4.25) / 8 / load_profile("mi355x").memory_bandwidth_bytes_per_s
    assert one_token_s("mi355x", "bf16") - one_token_s("mi355x", "mxfp4") > least_s
    assert one_token_s("h100-sxm", "mxfp4") < 0.7 * one_token_s("h100-sxm", "bf16")  # unpacked in registers


@pytest.mark.parametrize("gpu", ["mi300x", "h100-sxm"])
def test_quantised_while_loading_is_as_fast_as_a_quantised_checkpoint(gpu: str) -> None:
    online = one_token_s(gpu, "bf16", quantization="fp8")
    assert online == pytest.approx(one_token_s(gpu, "fp8"), rel=0.01)
    # linear layers at 1 byte instead of 2, lm_head as before: (6.98 + 1.05) / (13.96 + 1.05) GB is the least
    least = (LINEAR_PARAMS + 2 * HEAD_PARAMS) / (2 * LINEAR_PARAMS + 2 * HEAD_PARAMS)
    assert least * 0.9 < online / one_token_s(gpu, "bf16") < 1


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x", "h100-sxm", "b200-sxm"])
def test_a_narrow_cache_is_read_in_less_time_and_never_half(gpu: str) -> None:
    """131,072 bytes a token in 16 bits, 65,536 in 8."""
    batch, empty = Batch(decode_seqs=64, decode_context_tok=64 * 8000), Batch(decode_seqs=64)
    wide, narrow = deployed(gpu, "fp8").timer, deployed(gpu, "fp8", kv_cache_dtype="fp8").timer
    wide_s, narrow_s = wide.step_s(batch) - wide.step_s(empty), narrow.step_s(batch) - narrow.step_s(empty)
    peak = load_profile(gpu).memory_bandwidth_bytes_per_s
    assert narrow_s < wide_s
    assert wide_s > 64 * 8000 * 131_072 / peak
    assert narrow_s > 64 * 8000 * 65_536 / peak


def test_a_checkpoint_is_timed_in_the_dtype_that_it_is_launched_in() -> None:
    def launched(name: str, dtype: str) -> Deployment:
        args = EngineArgs(dtype=dtype, max_model_len=2048)
        return resolve_deployment(model(name), load_profile("h100-sxm"), args, parse_version("0.27.1"))

    names = [name for name in catalog_ids() if model(name).dtype == "fp32"]
    assert names
    for name in names:
        auto, half, whole = (launched(name, dtype) for dtype in ("auto", "bfloat16", "float32"))
        assert [one.config.weight_dtype for one in (auto, half, whole)] == ["bf16", "bf16", "fp32"], name
        lone, many = Batch(1, 1), Batch(decode_seqs=256, decode_context_tok=256)
        assert auto.timer.breakdown(many) == half.timer.breakdown(many), name
        # twice the bytes, and no run in fp32; launches, most of a small model's step, take as long
        half_s, whole_s = half.timer.step_s(lone), whole.timer.step_s(lone)
        more_s = half.budget.binding.weights.loaded_bytes / half.profile.memory_bandwidth_bytes_per_s
        assert whole_s - half_s > 0.8 * more_s and whole_s < 2.5 * half_s, name

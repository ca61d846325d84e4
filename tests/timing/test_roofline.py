"""The time of one operator: limit cases of the roofline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from physics_cases import gpu, perfect

from planner.errors import InputError
from planner.timing.operators import TOKENS, Operator, OperatorKind
from planner.timing.roofline import kernel_time_s, rates

seconds = st.floats(0, 10)


@given(seconds, seconds, seconds)
def test_full_overlap_is_the_classic_roofline(launch: float, compute: float, memory: float) -> None:
    assert kernel_time_s(launch, compute, memory, 1.0) == launch + max(compute, memory)


@given(seconds, seconds, seconds)
def test_no_overlap_is_a_sum(launch: float, compute: float, memory: float) -> None:
    assert kernel_time_s(launch, compute, memory, 0.0) == pytest.approx(launch + compute + memory)


@given(seconds, seconds, seconds, st.floats(0, 1))
def test_time_lies_between_both(launch: float, compute: float, memory: float, overlap: float) -> None:
    time = kernel_time_s(launch, compute, memory, overlap)
    assert launch + max(compute, memory) <= time <= launch + compute + memory + 1e-9


def gemm(storage: str, compute_dtype: str) -> Operator:
    return Operator("gemm", OperatorKind.GEMM, TOKENS, 1, compute_dtype=compute_dtype, storage=storage)


def test_each_precision_has_its_own_share() -> None:
    shares = perfect(gemm_flop_16=0.5, gemm_flop_8=0.25, weight_bandwidth_16=0.9, weight_bandwidth_4=0.6)
    bf16, fp8, awq = (
        rates(op, gpu(), shares) for op in (gemm("bf16", "bf16"), gemm("fp8", "fp8"), gemm("int4-awq", "bf16"))
    )
    assert bf16.flop_per_s == 0.5 * 989e12
    assert fp8.flop_per_s == 0.25 * 1979e12
    assert awq.flop_per_s == bf16.flop_per_s  # weight-only: multiplied in 16 bits
    assert awq.bytes_per_s == pytest.approx(0.6 * 3.35e12)


def test_a_dtype_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="no fp8"):
        rates(gemm("fp8", "fp8"), gpu(fp8=None), perfect())


def test_an_emulated_format_runs_in_the_dtype_that_the_profile_says() -> None:
    emulating = gpu().model_copy(update={"emulated": {"mxfp4": "bf16"}})
    assert rates(gemm("mxfp4", "fp4"), emulating, perfect()).flop_per_s == 989e12

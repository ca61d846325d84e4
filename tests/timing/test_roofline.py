"""The time of one operator: limit cases of the roofline, and the efficiency that each precision meets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from physics_cases import gpu, perfect

from planner.errors import InputError
from planner.hardware.profiles import GpuProfile
from planner.planning.serving import Serving
from planner.timing.efficiencies import Efficiency
from planner.timing.operators import TOKENS, Operator, OperatorKind
from planner.timing.roofline import Cost, Part, Per, Term, TimedTerm, operator_term
from planner.timing.step import StepModel

seconds = st.floats(0, 10)


def time_s(fixed: float, compute: float, memory: float, overlap: float) -> float:
    """Of a term with these parts."""
    costs = tuple(Cost(part, Per.STEP, part_s) for part, part_s in zip(Part, (fixed, compute, memory), strict=True))
    return TimedTerm.of(Term("test", 1, TOKENS, costs), 0, lambda _: overlap).time_s(1, 1)


@given(seconds, seconds, seconds)
def test_full_overlap_is_the_classic_roofline(fixed: float, compute: float, memory: float) -> None:
    assert time_s(fixed, compute, memory, 1.0) == pytest.approx(fixed + max(compute, memory))


@given(seconds, seconds, seconds)
def test_no_overlap_is_a_sum(fixed: float, compute: float, memory: float) -> None:
    assert time_s(fixed, compute, memory, 0.0) == pytest.approx(fixed + compute + memory)


@given(seconds, seconds, seconds, st.floats(0, 1))
def test_time_lies_between_both(fixed: float, compute: float, memory: float, overlap: float) -> None:
    found = time_s(fixed, compute, memory, overlap)
    assert fixed + max(compute, memory) - 1e-9 <= found <= fixed + compute + memory + 1e-9


def gemm(storage: str, compute_dtype: str) -> Operator:
    """A matrix multiplication of one FLOP and one byte for each token."""
    return Operator("gemm", OperatorKind.GEMM, TOKENS, 1, 1.0, 0.0, 1.0, compute_dtype=compute_dtype, storage=storage)


def rates(operator: Operator, profile: GpuProfile, efficiency: Efficiency) -> tuple[float, float]:
    """FLOP/s and bytes/s."""
    timed = TimedTerm.of(operator_term(operator, profile), 0, efficiency.__getattribute__)
    compute_s, memory_s = (sum(part[1:]) * 1e12 for part in (timed.compute_s, timed.memory_s))
    return pytest.approx(1e12 / compute_s), pytest.approx(1e12 / memory_s)  # type: ignore[return-value]


def test_each_precision_has_its_own_share() -> None:
    shares = perfect(
        gemm_flop_16=0.5, gemm_flop_8=0.25, weight_bandwidth_16=0.9, weight_bandwidth_8=0.8, weight_bandwidth_4=0.6
    )
    assert rates(gemm("bf16", "bf16"), gpu(), shares) == (0.5 * 989e12, 0.9 * 3.35e12)
    assert rates(gemm("fp8", "fp8"), gpu(), shares) == (0.25 * 1979e12, 0.8 * 3.35e12)
    assert rates(gemm("int4-awq", "bf16"), gpu(), shares) == (0.5 * 989e12, 0.6 * 3.35e12)  # multiplied in 16 bits


def test_a_dtype_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="no fp8"):
        operator_term(gemm("fp8", "fp8"), gpu(fp8=None))


def test_an_emulated_format_runs_in_the_dtype_that_the_profile_says() -> None:
    emulating = gpu().model_copy(update={"emulated": {"mxfp4": "bf16"}})
    assert rates(gemm("mxfp4", "fp4"), emulating, perfect())[0] == 989e12


@pytest.mark.parametrize(
    ("model", "name", "fixed_bytes", "expert_bytes"),
    [
        # 58 layers x 256 experts x 3 x 7,168 x 2,048 / 8 GPUs: read in 4.25 bits, written in 16, the routed read again
        ("amd/DeepSeek-R1-0528-MXFP4", "mi300x", 206.9e9, 58 * 3 * 7168 * 256 * 2),
        ("amd/DeepSeek-R1-0528-MXFP4", "mi355x", 0, 58 * 3 * 7168 * 256 * 4.25 / 8),
        (
            "openai/gpt-oss-120b",
            "mi300x",
            None,
            36 * 3 * 2880 * 360 * 4.25 / 8,
        ),  # W4A16, padded: its kernels take 4 bits
    ],
)
def test_experts_with_4_bit_activations_are_unpacked_each_step(
    model: str, name: str, fixed_bytes: float | None, expert_bytes: float
) -> None:
    """``OCP_MXQuantizationEmulationTritonExperts`` of vLLM 0.32 unpacks all experts of a rank on gfx942."""
    engine = Serving(model, name, tensor_parallel_size=8).deployment
    (term,) = (one for one in StepModel(engine.model, engine.profile, engine.config).terms if one.name == "experts")
    assert fixed_bytes is None or term.fixed_bytes == pytest.approx(fixed_bytes, rel=1e-3)
    assert term.bytes_per_unit == pytest.approx(expert_bytes, rel=0.02)
